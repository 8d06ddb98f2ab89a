#!/bin/sh
# doctor --live against a lab: every fault that can be injected gives the finding that names the right cable or node,
# and asking changes nothing on a node. Usage: live_lab.sh SPARK SOURCE_DIR [NODES]
# Needs root; exits with 77 (skipped) without.
set -eu
spark=$1
source=$2
nodes=${3:-3}
skip() { echo "live_lab: skipped: $1"; exit 77; }
[ "$(id -u)" -eq 0 ] || skip "a lab needs root"
[ -x /usr/sbin/sshd ] || skip "no openssh-server"
command -v ip >/dev/null || skip "no iproute2"
command -v ping >/dev/null || skip "no ping"
unshare --net --mount --pid --fork true 2>/dev/null || skip "this machine allows no namespaces"

work=$(mktemp -d /tmp/spark-live-XXXXXX)
lab=$work/lab
cleanup() {
  status=$?
  trap - EXIT INT TERM
  "$spark" lab down --dir "$lab" >/dev/null 2>&1 || true
  rm -rf "$work"
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
fail() { echo "live_lab: $1" >&2; [ ! -f "$work/out" ] || cat "$work/out" >&2; exit 1; }

"$spark" --repository "$source" lab up --dir "$lab" --nodes "$nodes" >"$work/up" 2>&1 || { cat "$work/up" >&2; fail "up failed"; }
SPARK_SSH_CONFIG=$lab/ssh_config
export SPARK_SSH_CONFIG

# doctor STATUS: its output is in $work/out
doctor() {
  wanted=$1
  status=0
  "$spark" --repository "$lab/site" --cluster-config config/lab.json doctor --no-secret-scan --live --expect-stopped >"$work/out" 2>&1 || status=$?
  [ "$status" = "$wanted" ] || fail "exit status $status instead of $wanted"
}
says() { grep -qF -- "$1" "$work/out" || fail "does not say: $1"; }
silent() { ! grep -qE -- "$1" "$work/out" || fail "should not say: $1"; }

# A checkpoint and a program, so that nothing but the faults is wrong.
for n in $(seq "$nodes"); do
  ssh -F "$lab/ssh_config" -o BatchMode=yes "node$n" sh -s <<'NODE'
set -eu
engine=/root/projects/spark-deploy/build/release/apps/spark-engine
[ -e "$engine" ] || { mkdir -p "${engine%/*}" && printf '#!/bin/sh\n' >"$engine"; }
NODE
done
doctor 1
silent '\[fabric\.(link|mtu|address|path|route|gid|device|rdma)'
silent '\[live\.(reachable|answer|same-machine|clock)'
says 'host.hardware: is "generic"'

# What a node holds: content and mode of its own files, containers and images.
state() {
  ssh -F "$lab/ssh_config" -o BatchMode=yes "$1" '
    find /root /home /etc /srv /tmp /var/lib /usr/local -xdev -not -path "/var/lib/docker/*" -printf "%p %m %s %T@ %l\n" 2>/dev/null | sort
    find /root /home /etc /tmp -xdev -type f -exec sha256sum {} + 2>/dev/null | sort
    docker ps -a --no-trunc 2>/dev/null; docker images --no-trunc 2>/dev/null; ip -o link; ip -o addr | sed "s/valid_lft.*//"'
}
state node1 >"$work/before"
doctor 1
"$spark" --repository "$lab/site" --cluster-config config/lab.json probe node1 --json >/dev/null || fail "probe"
"$spark" --repository "$lab/site" --cluster-config config/lab.json doctor --no-secret-scan --live --fragmentation-commands >/dev/null || fail "commands"
state node1 >"$work/after"
cmp "$work/before" "$work/after" || { diff "$work/before" "$work/after" >&2 || true; fail "asking changed node1"; }

# fault "KIND NODE [PEER]" STATUS TEXT...
fault() {
  what=$1 wanted=$2
  shift 2
  # shellcheck disable=SC2086
  "$spark" lab fault --dir "$lab" $what >/dev/null 2>"$work/out" || { echo "live_lab: not possible here: $what: $(head -n 1 "$work/out")"; return 0; }
  doctor "$wanted"
  for text in "$@"; do says "$text"; done
  "$spark" lab heal --dir "$lab" >/dev/null 2>&1 || fail "cannot heal $what"
}
fault 'cable node1 node2' 1 'node1 port 0 path 1: the interface enp1s0f0np0 is switched off; it belongs to cable 1 (node1 port 0 - node2 port 1)'
fault 'mtu node2 node3' 1 'node2 port 0 path 1: enp1s0f0np0 has an MTU of 1500; it belongs to cable 2 (node2 port 0 - node3 port 1)' \
  'node2 port 0 path 2: enP2p1s0f0np0 has an MTU of 1500'
fault 'subnet node1 node2' 1 'node1 port 0 path 1: enp1s0f0np0 has the address 10.99.' 'cable 1 (node1 port 0 - node2 port 1)'
fault 'swap node2' 1 'cable 1 (node1 port 0 - node2 port 1): is plugged in, but the two ends do not hear one another' \
  'the two plugs at node2 are probably exchanged'
fault 'disk node3' 1 'node3: / has' '[disk.space]'
fault 'clock node2' 1 'node2: its clock is at least' 'ahead of'
fault 'memory node1' 1 'node1: 0.' '[memory.available]'
fault 'ssh node3' 3 'node3: cannot be reached' '[live.reachable]'
doctor 1
silent '\[fabric\.(link|mtu|address|path|route)|\[live\.reachable|\[memory\.'
echo 'live_lab: good'
