# shellcheck shell=sh
# What the tests with a lab share; sourced. Before: $test (its name, for messages), $spark, $source. After: $work, a
# temporary folder, and $lab, the lab's directory, both gone when the test ends, however it ends.
#
#   test=lab spark=$1 source=$2
#   . "${0%/*}/lab_setup.sh"
#   lab_up --nodes 3
#   on node2 hostname

skip() {
  echo "$test: skipped: $1"
  exit 77
}
[ "$(id -u)" -eq 0 ] || skip "a lab needs root"
[ -x /usr/sbin/sshd ] || skip "no openssh-server"
command -v ip >/dev/null || skip "no iproute2"
unshare --net --mount --pid --fork true 2>/dev/null || skip "this machine allows no namespaces"

work=$(mktemp -d "/tmp/spark-$test-XXXXXX")
lab=$work/lab
SPARK_SSH_CONFIG=$lab/ssh_config
export SPARK_SSH_CONFIG
lab_cleanup() {
  status=$?
  trap - EXIT INT TERM
  [ -z "${background:-}" ] || kill $background 2>/dev/null || true
  "$spark" lab down --dir "$lab" >/dev/null 2>&1 || true
  rm -rf "$work"
  exit "$status"
}
trap lab_cleanup EXIT
trap 'exit 130' INT TERM

fail() {
  echo "$test: $1" >&2
  [ ! -f "$work/out" ] || cat "$work/out" >&2
  exit 1
}
lab_up() {
  "$spark" --repository "$source" lab up --dir "$lab" "$@" >"$work/up" 2>&1 || { cat "$work/up" >&2; fail "up failed"; }
}
has_docker() { grep -q 'nodes, docker' "$work/up"; }
on() { # NODE COMMAND...
  node=$1
  shift
  ssh -F "$lab/ssh_config" -o BatchMode=yes "$node" "$@"
}
in_node() { # the same without SSH
  node=$1
  shift
  "$spark" lab shell --dir "$lab" "$node" -- "$@"
}
at_site() { "$spark" --repository "$lab/site" --cluster-config config/lab.json "$@"; }
