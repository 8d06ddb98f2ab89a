# shellcheck shell=sh
# What the tests of spark-engine's start share; sourced. Before: $test (its name, for messages), $spark, $engine. After: a
# temporary folder of its own is the current one, with the checkpoint `model`; both it and $server go when the test ends.
#
#   test=engine_start spark=$1 engine=$2
#   . "${0%/*}/engine_lib.sh"
work=$(mktemp -d)
server=
cleanup() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
cd "$work"

fail() {
  echo "$test: $1" >&2
  for file in out.txt err.txt; do
    [ ! -f "$file" ] || { echo "--- $file"; cat "$file"; } >&2
  done
  exit 1
}
# expect CODE TEXT ARGUMENTS...: exit code and a text on either stream
expect() {
  code=$1
  text=$2
  shift 2
  got=0
  "$engine" "$@" >out.txt 2>err.txt </dev/null || got=$?
  [ "$got" -eq "$code" ] || fail "exit code $got, not $code, of: $*"
  cat out.txt err.txt | grep -qF -- "$text" || fail "no \"$text\" from: $*"
}

"$spark" model synth --preset tiny --seed 1 --out model >/dev/null
