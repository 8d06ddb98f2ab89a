#!/bin/sh
# What stands in bin/ and script/ beside the programs. Usage: scripts.sh SOURCE_DIR
set -eu
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() {
  echo "scripts: $1" >&2
  exit 1
}

# Every command that the pages use is in bin/: it runs what was built, wherever it is called from, or says what builds it.
cp -r "$source/bin" .
mkdir -p build/release/apps path elsewhere
for name in spark spark-engine spark-guard; do
  ln -s "$work/bin/$name" path/
  code=0
  path/$name 2>err.txt || code=$?
  [ "$code" -eq 127 ] || fail "$name that is not built: exit code $code"
  grep -q "^$name is not built yet: run .*script/build" err.txt || fail "$name does not say what builds it"
  printf '#!/bin/sh\necho "%s $*"\n' "$name" >build/release/apps/$name
  chmod +x build/release/apps/$name
  [ "$(cd elsewhere && ../path/$name a 'b c')" = "$name a b c" ] || fail "$name is not run"
done

# The demo keeps what a failed start left in its lab, before the lab goes.
sed -n '/^keep_evidence() {$/,/^}$/p' "$source/script/demo" >keep.sh
grep -q . keep.sh || fail "script/demo keeps no evidence"
. ./keep.sh
keep_evidence lab/failed-starts kept 2>err.txt
[ ! -s err.txt ] && [ ! -e kept ] || fail "evidence of nothing"
mkdir -p lab/failed-starts/1 kept/0
echo 'last words' >lab/failed-starts/1/node1.log
keep_evidence lab/failed-starts kept 2>err.txt
grep -q 'lie in kept now' err.txt || fail "the demo does not say where the evidence is"
grep -q 'next: ' err.txt || fail "the demo does not say what to do next"
rm -r lab
[ "$(cat kept/1/node1.log)" = 'last words' ] && [ ! -e kept/0 ] || fail "the evidence is gone"
kept=$(grep -n '^    .*|| keep_evidence ' "$source/script/demo" | cut -d: -f1)
down=$(grep -n '^    bin/spark lab down .*|| true$' "$source/script/demo" | cut -d: -f1)
[ "${kept:-99999}" -lt "${down:-0}" ] || fail "the lab goes before its evidence is kept"
echo "scripts: good"
