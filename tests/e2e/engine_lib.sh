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
# serve ARGUMENTS...: until the server says that it is ready, on a Unix socket
serve() {
  rm -f out.txt err.txt  # the line of the server before
  "$engine" "$@" --uds "$work/socket" >out.txt 2>err.txt </dev/null &
  server=$!
  i=0
  until grep -qs '^listening on unix:' out.txt; do
    i=$((i + 1))
    [ "$i" -lt 600 ] || fail 'not ready after a minute'
    kill -0 "$server" 2>/dev/null || fail "does not start: $*"
    sleep 0.1
  done
}
# It is told to stop, and ends cleanly.
end_server() {
  kill -TERM "$server"
  wait "$server" || fail 'no clean end'
  server=
}

"$spark" model synth --preset tiny --seed 1 --out model >/dev/null
