#!/bin/sh
# Everything that `spark` reads without a node, given what no file should be: missing, a folder, unreadable, endless,
# huge, junk, nested without end, of another kind; outputs that cannot be written, wholly or at all; no standard
# output. Each must end by itself with a message of its own and a non-zero code, and leave nothing half-written.
# Usage: hostile_offline.sh SPARK SOURCE_DIR
set -u
# In a mount namespace of its own, where that is allowed: its full disk shows nowhere else and goes with it.
if [ -z "${SPARK_HOSTILE_ALONE:-}" ] && unshare --mount true 2>/dev/null; then
  SPARK_HOSTILE_ALONE=1 exec unshare --mount sh "$0" "$@"
fi
spark=$1
source=$2
work=$(mktemp -d)
mounted=""
cleanup() {
  [ -z "$mounted" ] || umount "$mounted"
  rm -rf "$work"
}
trap cleanup EXIT
cp -r "$source/config" "$source/manifests" "$source/upstreams.lock.json" "$source/docs" "$source/host" "$work/"
mkdir -p "$work/tests/data" "$work/experiments" "$work/bad"
cd "$work" || exit 1
rm -f config/site.json config/nodes.json config/*.local.json
cp config/nodes.example.json config/nodes.json
cp config/examples/nodes-ring4.json config/nodes-ring4.local.json
cp config/site.example.json config/site.json
git init -q . && git add -A >/dev/null 2>&1
failures=0
runs=0

# refused COMMAND...: ends soon, with 1 or 2 (3: no node), says something in words of its own.
refused() {
  runs=$((runs + 1))
  status=0
  (ulimit -v 3000000; timeout -k 1 30 "$@") >out 2>err </dev/null || status=$?
  if [ "$status" -ne 1 ] && [ "$status" -ne 2 ]; then complain "exit status $status" "$@"; return; fi
  [ -s out ] || [ -s err ] || complain "no message" "$@"
  # What the C++ library or the kernel would say when nobody thought of the case.
  if grep -qE 'std::|basic_string|_M_|map::at|json\.exception|terminate called|bad_alloc|out of memory|filesystem error|Aborted|core dumped|SPARK_CHECK' out err; then
    complain "an unforeseen error" "$@"
  fi
  left=$(find . -name '*.??????' -newer bad -not -path './.git/*' | head -n 1)
  [ -z "$left" ] || complain "left $left" "$@"
}
complain() {
  failures=$((failures + 1))
  echo "hostile_offline: $1: $(shift; echo "$@" | cut -c1-200)" >&2
  head -c 300 err >&2
}

printf 'engine started\n' >good.log
# What files can be
mkdir bad/folder
: >bad/empty
printf '\000\001\377\376PNG\r\n\032\n' >bad/junk
head -c 100000 /dev/urandom >bad/random
awk 'BEGIN { for (i = 0; i < 200000; ++i) printf "["; }' >bad/deep
awk 'BEGIN { for (i = 0; i < 200000; ++i) printf "{\"a\":"; }' >bad/deep-objects
awk 'BEGIN { printf "{"; for (i = 0; i < 60000; ++i) printf "\"k%d\":0,", i; print "\"z\":0}"; }' >bad/wide
printf '3' >bad/number
printf '[]' >bad/array
printf 'null' >bad/null
printf '"text"' >bad/text
printf '{}' >bad/object
printf '{"schema_version": "one", "nodes": 3, "engine": [], "suites": 4, "points": null, "schema": 1}' >bad/kinds
printf '{"schema_version": 1, "schema_version": 1}' >bad/double
printf '{"a": "\377"}' >bad/not-utf8
printf '{"schema_version": 99999999999999999999999999999}' >bad/large-number
printf '{"extends": "bad/self"}' >bad/self
ln -s loop bad/loop
mkfifo bad/pipe
truncate -s 20G bad/huge
ln -s /dev/zero bad/endless
secret=""
if [ "$(id -u)" != 0 ]; then : >bad/secret && chmod 0 bad/secret && secret=secret; fi

for kind in missing folder empty junk random deep deep-objects wide number array null text object kinds double \
  not-utf8 large-number self loop huge endless $secret; do
  file=bad/$kind
  refused "$spark" --cluster-config "$file" doctor --no-secret-scan
  refused "$spark" --nodes-config "$file" doctor --no-secret-scan
  refused "$spark" --cluster-config "$file" config show
  refused "$spark" --cluster-config "$file" render node1
  refused "$spark" --cluster-config "$file" plan
  refused "$spark" --nodes-config "$file" fabric show
  refused "$spark" --nodes-config "$file" fabric netplan --output netplan
  refused "$spark" --nodes-config "$file" render --all
  refused "$spark" --nodes-config "$file" topology probe node1
  refused "$spark" config diff config/cluster.json "$file"
  refused "$spark" plan --model "$file"
  refused "$spark" model inspect "$file"
  refused "$spark" fabric import "node1=$file" "node2=$file" "node3=$file"
  refused "$spark" tuning create tp3-rocenante --nodes-config "$file" --output experiments/a.json
  refused "$spark" topology create --nodes-config "$file" --output experiments/b.json
  refused "$spark" bench --report "$file"
  case $kind in object) ;; *) refused "$spark" --site-config "$file" doctor --no-secret-scan ;; esac
  refused "$spark" doctor --boot-log good.log --boot-log-policy "$file"
  # A log may hold anything; what is no file, or without an end, is refused.
  case $kind in missing|folder|loop|huge|endless|secret) refused "$spark" doctor --boot-log "$file" ;; esac
  case $kind in missing|loop) refused "$spark" doctor --model "$file" ;; esac
  cp config/tuning.json kept.json
  rm -f config/tuning.json
  if [ -e "$file" ] || [ -L "$file" ]; then ln -s "../$file" config/tuning.json; fi
  refused "$spark" tuning show tp3-rocenante
  rm -f config/tuning.json
  mv kept.json config/tuning.json
done
[ -z "$(ls experiments)" ] || { failures=$((failures + 1)); echo "hostile_offline: a refused profile was written" >&2; }
[ ! -e netplan ] || { failures=$((failures + 1)); echo "hostile_offline: a refused netplan was written" >&2; }
# A pipe that nobody writes to is waited for, not for ever.
refused "$spark" bench --report bad/pipe

# Words that make no sense
for words in '' 'docter' 'doctor extra' '--no-such' 'doctor --json=5' 'config' 'config show --node' 'config show --node nobody' \
  'config diff one' 'render' 'render nobody' 'render node1 --all' 'render node1 --format xml' 'plan --streams 0' \
  'plan --streams 99999999999999999999' 'plan --streams x' 'plan --prompts -1' 'plan --context -1' 'plan --workload poem' \
  'fabric plan' 'fabric plan a=192.0.2.1' 'fabric plan a=1 b=2 c=3' 'fabric plan a b c' \
  'fabric plan a=192.0.2.1 a=192.0.2.2 b=192.0.2.3' 'fabric plan =192.0.2.1 b=192.0.2.2 c=192.0.2.3' \
  'fabric plan a=192.0.2.1 b=192.0.2.2 c=192.0.2.3 --first-octet 0' 'fabric import a=' 'fabric import =x' 'fabric import a' \
  'tuning show nothing' 'tuning create' 'tuning create tp4-rocenante --nodes-config config/nodes.json --output /etc/x.json' \
  'tuning create tp4-rocenante --nodes-config config/nodes.json --output experiments/../x.json' \
  'topology create --nodes-config config/nodes-ring4.local.json --output config/cluster.json' 'topology probe nobody' \
  'topology probe node1 --master-port 0' 'topology probe node1 --master-port 70000' 'completion tcsh' 'man extra' 'probe' \
  'probe --root /no/such' 'probe nobody' 'doctor --boot-log' 'doctor --manifest config/nodes.json' 'bench --report' \
  'bench --concurrency 0 --base-url http://127.0.0.1:1' 'bench --cases nothing --base-url http://127.0.0.1:1' \
  'bench --base-url ftp://x' 'bench --base-url http://127.0.0.1:1 --min-samples 9 --max-samples 3' \
  '--repository /no/such doctor' '--repository /etc/passwd doctor' '--cluster-config /etc/passwd doctor' \
  '--cluster-config ../../etc/passwd doctor' 'model' 'model synth' 'model ranks --ranks 99' 'lab status --dir /no/such' \
  'host check --root /no/such' 'host check --without nothing'; do
  # shellcheck disable=SC2086  # the words are meant to fall apart
  refused "$spark" $words
done
long=$(awk 'BEGIN { for (i = 0; i < 100000; ++i) printf "x"; }')
refused "$spark" "$long"
refused "$spark" render "$long"
refused "$spark" --cluster-config "$long" doctor
refused "$spark" tuning show "$long"
refused "$spark" fabric plan "$long=192.0.2.1" b=192.0.2.2 c=192.0.2.3
refused "$spark" render "$(printf 'node1\n\033[31m')"

# Standard output that is closed, full, or read by nobody
for words in 'doctor --no-secret-scan' 'config show' 'config settings' 'plan' 'plan --json' 'fabric show' 'render --all' \
  'tuning show tp4-rocenante' 'completion bash' 'man' 'probe --root / --json' 'doctor --rules --markdown' \
  'fabric plan a=192.0.2.1 b=192.0.2.2 c=192.0.2.3' 'topology probe node1' 'model ranks' '--help' '--version' 'plan --help'; do
  for place in closed full; do
    runs=$((runs + 1))
    status=0
    # shellcheck disable=SC2086
    if [ "$place" = closed ]; then "$spark" $words >&- 2>err || status=$?; else "$spark" $words >/dev/full 2>err || status=$?; fi
    [ "$status" -ne 0 ] || complain "standard output $place, and exit status 0" $words
    [ -s err ] || complain "standard output $place, and no message" $words
  done
done

# Outputs that cannot be written: a folder that is not there, is read-only, is a file; a name that exists
outputs() {
  refused "$spark" fabric plan a=192.0.2.1 b=192.0.2.2 c=192.0.2.3 --output "$1"
  refused "$spark" fabric show --svg "$1"
  refused "$spark" fabric netplan --output "$1"
  refused "$spark" probe --root / --record "$1"
}
refused "$spark" fabric plan a=192.0.2.1 b=192.0.2.2 c=192.0.2.3 --output no/such/file
refused "$spark" fabric show --svg no/such/file
outputs config/nodes.json/file
outputs /proc/file
outputs /sys/kernel/file
refused "$spark" fabric plan a=192.0.2.1 b=192.0.2.2 c=192.0.2.3 --output config/nodes.json
refused "$spark" topology create --nodes-config config/nodes-ring4.local.json --output no/such/file.json

# A full disk, and one without room for a new name
mkdir disk
if mount -t tmpfs -o size=64k,nr_inodes=64 tmpfs disk 2>/dev/null; then
  mounted=$work/disk
  head -c 100000 /dev/zero >disk/filler 2>/dev/null
  echo old >disk/old.svg 2>/dev/null || true
  outputs disk/new
  [ ! -e disk/new ] || complain "a full disk holds a file" disk/new
  left=$(find disk -type f -not -name filler -not -name old.svg | head -n 1)
  [ -z "$left" ] || complain "a full disk holds $left" disk
  rm -f disk/filler
  i=0
  while [ $i -lt 70 ]; do touch "disk/$i" 2>/dev/null; i=$((i + 1)); done
  outputs disk/another
  umount disk && mounted=""
else
  echo "hostile_offline: no right to mount, the full disk is left out" >&2
fi

# Killed while it writes, over and over: the old file or the new one, never a part
"$spark" fabric show --svg whole.svg >/dev/null || complain "cannot draw" whole.svg
cp whole.svg picture.svg
i=0
while [ $i -lt 40 ]; do
  "$spark" fabric show --svg picture.svg >/dev/null 2>&1 &
  pid=$!
  sleep "0.0$((i % 10))"
  kill -9 $pid 2>/dev/null
  wait $pid 2>/dev/null
  cmp -s whole.svg picture.svg || complain "kill -9 left another file" picture.svg
  rm -f picture.svg.*
  i=$((i + 1))
done

if [ "$failures" -ne 0 ]; then echo "hostile_offline: $failures of $runs went wrong" >&2; exit 1; fi
echo "hostile_offline: $runs runs, good"
