#!/bin/sh
# docs/first-site.md, tried: from three or four machines to a valid profile. Usage: first_site.sh SPARK SOURCE_DIR
set -eu
spark=$1
source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$source/config" "$source/manifests" "$source/upstreams.lock.json" "$source/.gitignore" "$work/"
mkdir "$work/docs" "$work/tests"
cp "$source"/docs/*.md "$work/docs/"
cd "$work"
rm -f config/site.json config/nodes.json config/*.local.json
printf "%s\n" /bin/ "/*.txt" /commands.sh >.git-exclude
git init -q . && mv .git-exclude .git/info/exclude && git add -A >/dev/null

fail() {
  echo "first_site: $1" >&2
  exit 1
}

# The commands of the guide, as they stand there.
sed -n '/^<!-- tried -->$/,/^<!-- end -->$/p' "$source/docs/first-site.md" | sed -n '/^```sh$/,/^```$/p' |
  grep -v '^```' >commands.sh
[ "$(grep -c . commands.sh)" -eq 5 ] || fail "the guide has $(grep -c . commands.sh) commands, not five"
mkdir bin && ln -s "$spark" bin/spark
PATH=$work/bin:$PATH sh -eu commands.sh >out.txt 2>err.txt || { cat out.txt err.txt; fail "a command of the guide failed"; }
grep -q 'Ring of four nodes' out.txt || fail "no cable map"
grep -q 'configuration OK' out.txt || { cat out.txt err.txt; fail "the doctor is not content"; }
grep -q 'It fits.' out.txt || fail "the plan does not fit"
grep -q '</svg>' cables.svg || fail "no picture"

# The guide's network configuration, for the guide's own node map.
grep '^spark .*fabric netplan' "$source/docs/first-site.md" >netplan.sh
PATH=$work/bin:$PATH sh -eu netplan.sh || fail "the guide's fabric netplan failed"
[ -f netplan/node4/40-cx7.yaml ] || fail "no network configuration of the guide's fourth node"
PATH=$work/bin:$PATH spark tuning create tp4-rocenante --nodes-config config/nodes-ring4.local.json --output experiments/tp4.json >/dev/null ||
  fail "docs/tuning.md's command failed"
# A start refuses whatever is uncommitted: what the pages' commands write must not be that.
rm commands.sh netplan.sh
new=$(git status --porcelain --untracked-files=all | grep -v '^A' || true)
[ -z "$new" ] || fail "the pages' commands leave uncommitted files: $new"
rm -rf netplan experiments

# In a folder of another kind.
mkdir elsewhere
if (cd elsewhere && "$spark" doctor >../err.txt 2>&1); then fail "an empty folder is a repository"; fi
grep -q 'run spark in the repository' err.txt || fail "an empty folder: no hint"
if (cd elsewhere && "$spark" fabric plan a=192.0.2.1 b=192.0.2.2 c=192.0.2.3 --output config/nodes.json 2>../err.txt); then fail "wrote nowhere"; fi
grep -q 'has no folder config to stand in' err.txt || fail "a missing folder: no reason"

# What the guide says about mistakes.
if "$spark" fabric plan a=192.0.2.1 b=192.0.2.2 2>err.txt; then fail "two machines were accepted"; fi
grep -q 'two machines are refused' err.txt || fail "two machines: no reason"
page=$(sed -n 's/.*\(docs\/[a-z-]*\.md\) says why.*/\1/p' err.txt)
grep -q '^| two machines | each' "$page" || fail "two machines: $page does not say why"
"$spark" fabric plan a=192.0.2.1 b=192.0.2.2 c=192.0.2.3 --output config/nodes.json 2>/dev/null
"$spark" doctor | grep -q 'configuration OK' || fail "the triangle is not valid"
if "$spark" fabric plan a=192.0.2.1 b=192.0.2.2 c=192.0.2.3 --output config/nodes.json 2>err.txt; then fail "overwrote"; fi
"$spark" fabric netplan --output netplan | grep -q 'sudo sh revert.sh' || fail "no way back"
sh -n netplan/a/revert.sh || fail "the revert script is no shell"
grep -q 'addresses: \[10.12.1.1/24\]' netplan/a/40-cx7.yaml || fail "no address"
"$spark" --cluster-config config/cluster-tp4.json topology probe node2 | grep -q -- '--rank 1 ' || fail "no probe"
"$spark" topology create --nodes-config config/nodes-ring4.local.json --output experiments/ring.json 2>/dev/null
"$spark" --cluster-config experiments/ring.json config show >/dev/null || fail "the derived profile does not load"
"$spark" tuning show tp4-rocenante | grep -q derived_layout || fail "no recipe"

# Generated texts are accepted by their readers, where those are installed.
"$spark" completion bash >completion.bash
bash -n completion.bash || fail "bash completion"
bash -c 'source ./completion.bash; COMP_WORDS=(spark fabric sh); COMP_CWORD=2; _spark; [ "${COMPREPLY[0]}" = show ]' ||
  fail "bash completion does not complete"
bash -c 'source ./completion.bash; COMP_WORDS=(spark --cluster-config x do); COMP_CWORD=3; _spark; [ "${COMPREPLY[0]}" = doctor ]' ||
  fail "bash completion takes a value for a command"
"$spark" completion zsh >completion.zsh
if command -v zsh >/dev/null; then zsh -n completion.zsh || fail "zsh completion"; fi
"$spark" completion fish >completion.fish
if command -v fish >/dev/null; then fish -n completion.fish || fail "fish completion"; fi
"$spark" man >spark.1
if command -v groff >/dev/null; then
  groff -man -Tutf8 -ww spark.1 2>err.txt >/dev/null && [ ! -s err.txt ] || { cat err.txt; fail "manual page"; }
fi
grep -q '^.SS fabric show' spark.1 || fail "the manual page lacks a command"
echo "first_site: good"
