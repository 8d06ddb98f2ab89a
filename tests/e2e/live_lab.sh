#!/bin/sh
# doctor --live against a lab: every fault that can be injected gives the finding that names the right cable or node,
# undoing it makes the doctor say again what it said before, and asking changes nothing on a node.
# Usage: live_lab.sh SPARK SOURCE_DIR [NODES]
# Needs root; exits with 77 (skipped) without.
set -eu
test=live_lab spark=$1 source=$2 nodes=${3:-3}
. "${0%/*}/lab_setup.sh"
command -v ping >/dev/null || skip "no ping"
[ "$nodes" = 3 ] || [ -n "${SPARK_LONG_TESTS:-}" ] || skip "the ring is tried when SPARK_LONG_TESTS is set"
lab_up --nodes "$nodes" --memory 6G

# doctor STATUS: its output is in $work/out
doctor() {
  wanted=$1
  status=0
  at_site doctor --no-secret-scan --live --expect-stopped >"$work/out" 2>&1 || status=$?
  [ "$status" = "$wanted" ] || fail "${what:-healthy}: exit status $status instead of $wanted"
}
says() { grep -qF -- "$1" "$work/out" || fail "${what:-healthy}: does not say: $1"; }
silent() { ! grep -qE -- "$1" "$work/out" || fail "${what:-healthy}: should not say: $1"; }
# What it says, without figures that differ from one moment to the next.
# Node by node: whether figures of two nodes are the same, and make one line of them, is such a thing as well.
outline() {
  awk '
    /^(WARN|ERROR): node[0-9]+(, node[0-9]+)+: / {
      line = substr($0, length($1) + 2); colon = index(line, ": ")
      count = split(substr(line, 1, colon - 1), nodes, ", ")
      for (i = 1; i <= count; i++) print $1, nodes[i] substr(line, colon)
      next
    }
    !/^[0-9]+ errors?(, [0-9]+ warnings?)?$/' "$work/out" |
    sed 's/[0-9.]* \(GiB\|MiB\|KiB\|B\|s\|ms\|%\)\b/N \1/g' | sort -u
}

# A program, so that nothing but the faults (and the missing checkpoint) is wrong.
for n in $(seq "$nodes"); do
  on "node$n" sh -s <<'NODE'
set -eu
engine=/root/projects/spark-deploy/build/release/apps/spark-engine
[ -e "$engine" ] || { mkdir -p "${engine%/*}" && printf '#!/bin/sh\n' >"$engine"; }
NODE
done
doctor 1
silent '\[(fabric\.(link|mtu|address|path|route|gid|device|rdma)|live\.(reachable|answer|same-machine|clock)|docker\.|disk\.|memory\.)'
says 'host.hardware: is "generic"'
outline >"$work/healthy"

# What a node holds: content and mode of its own files, containers and images.
state() {
  on "$1" '
    find /root /home /etc /srv /tmp /var/lib /usr/local -xdev -not -path "/var/lib/docker/*" -printf "%p %m %s %T@ %l\n" 2>/dev/null | sort
    find /root /home /etc /tmp -xdev -type f -exec sha256sum {} + 2>/dev/null | sort
    docker ps -a --no-trunc 2>/dev/null; docker images --no-trunc 2>/dev/null; ip -o link; ip -o addr | sed "s/valid_lft.*//"'
}
state node1 >"$work/before"
doctor 1
at_site probe node1 --json >/dev/null || fail "probe"
at_site doctor --no-secret-scan --live --fragmentation-commands >/dev/null || fail "commands"
at_site watch --once >/dev/null || [ $? = 1 ] || fail "watch"
state node1 >"$work/after"
cmp "$work/before" "$work/after" || { diff "$work/before" "$work/after" >&2 || true; fail "asking changed node1"; }

# fault "KIND NODE [PEER] [--value V]" STATUS TEXT...
tried=0
fault() {
  what=$1 wanted=$2
  shift 2
  # shellcheck disable=SC2086
  if ! "$spark" lab fault --dir "$lab" $what >/dev/null 2>"$work/out"; then
    echo "live_lab: not possible here: $what: $(head -n 1 "$work/out")"
    "$spark" lab heal --dir "$lab" >/dev/null 2>&1 || fail "cannot heal $what" # what was half made
    return 0
  fi
  doctor "$wanted"
  for text in "$@"; do says "$text"; done
  "$spark" lab heal --dir "$lab" >/dev/null 2>&1 || fail "cannot heal $what"
  what="after $what"
  # A machine that is busy gives memory and connections back a moment later.
  for again in 1 2 3 4 5 6 7 8 9 10; do
    doctor 1
    ! outline | diff "$work/healthy" - >"$work/difference" || break
    [ "$again" != 10 ] || { cat "$work/difference" >&2; fail "$what: other findings than before"; }
    sleep 1
  done
  tried=$((tried + 1))
}

# Every cable, at its first end: "NODE PORT PEER PORT NUMBER", NODE's next.
last=$nodes
for n in $(seq "$nodes"); do
  next=$((n % nodes + 1))
  # Cables lead from port 0 to the next node's port 1; they are numbered from the first node on.
  cable="cable $n (node$n port 0 - node$next port 1)"
  [ "$n" != "$last" ] || cable="cable $n ("
  fault "cable node$n node$next" 1 \
    "node$n port 0 path 1: the interface enp1s0f0np0 is switched off; it belongs to $cable" \
    "node$n port 0 path 2: the interface enP2p1s0f0np0 is switched off"
done
fault 'mtu node2 node3' 1 'node2 port 0 path 1: enp1s0f0np0 has an MTU of 1500; it belongs to cable 2 (node2 port 0 - node3 port 1)' \
  'node2 port 0 path 2: enP2p1s0f0np0 has an MTU of 1500'
fault 'mtu node3 node2 --value 4000' 1 'node3 port 1 path 1: enp1s0f1np1 has an MTU of 4000; it belongs to cable 2 (node2 port 0 - node3 port 1)'
fault 'subnet node1 node2' 1 'node1 port 0 path 1: enp1s0f0np0 has the address 10.99.' 'cable 1 (node1 port 0 - node2 port 1)'
fault 'swap node2' 1 'cable 1 (node1 port 0 - node2 port 1): is plugged in, but the two ends do not hear one another' \
  'the two plugs at node2 are probably exchanged'
fault 'swap node3' 1 'cable 2 (node2 port 0 - node3 port 1): is plugged in, but the two ends do not hear one another' \
  'the two plugs at node3 are probably exchanged'
fault 'disk node3' 1 'node3: / has' '[disk.space]'
fault 'clock node2' 1 'node2: its clock is at least' 'ahead of'
fault 'clock node1 --value -90' 1 'node1: its clock is at least' 'behind'
# Not the standard value: taking gigabytes takes a busy machine too long.
fault 'memory node1 --value 4G' 1 'GiB of memory are available; expected: above the startup guard' 'ERROR: node1: ' '[memory.available]'
fault 'ssh node3' 3 'node3: cannot be reached' '[live.reachable]'
fault 'freeze node2' 3 'node2: ' '[live.reachable]'
if has_docker && grep -q '"container"' "$lab/site/config/lab.json"; then
  fault 'docker node3' 1 'node3: Docker does not answer' '[docker.engine]'
fi
# Every kind of fault that a lab knows has been tried.
for kind in $("$spark" lab fault --help | sed -n 's/^ *\([a-z]*\) NODE.*/\1/p'); do
  grep -qE "^ *fault '?\"?$kind " "$0" || fail "the fault $kind is not tried here"
done
echo "live_lab: good, $tried faults"
