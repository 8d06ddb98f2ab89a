#!/bin/sh
# The lab, tried: up, SSH, cables, the memory guard on a container, faults, leftovers of a killed run, down.
# Usage: lab.sh SPARK ENGINE SOURCE_DIR
# Needs root; exits with 77 (skipped) without.
set -eu
test=lab spark=$1 engine=$2 source=$3
. "${0%/*}/lab_setup.sh"

up() { lab_up --engine "$engine" "$@"; }
reaches() { in_node "$1" ping -q -c 1 -W 1 -M do -s "${3:-8972}" "$2" >/dev/null 2>&1; }
outside() { # what this machine shows of a lab; mounts of other tests and of the machine's own come and go beside it
  ip -o link | sed 's/: <.*//' | sort
  grep -e spark-lab -e "$work" /proc/self/mounts || true
}

before=$(outside)
up --nodes 3
[ "$(outside)" = "$before" ] || fail "the lab shows on this machine"
"$spark" lab status --dir "$lab" >"$work/status" || { cat "$work/status" >&2; fail "not healthy"; }

# Nodes are themselves, and nobody else.
for n in 1 2 3; do [ "$(on "node$n" hostname)" = "node$n" ] || fail "node$n has another name"; done
on node1 'echo mine >/root/mine; echo mine >/usr/share/mine'
on node2 'ls /root/mine /usr/share/mine' 2>/dev/null && fail "nodes share files"
[ ! -e /usr/share/mine ] || fail "a node writes to this machine"
on node1 'ls -A /root /home' | grep -q '\.ssh' && fail "keys of this machine are in a node"
# What stands behind "--" arrives word for word.
[ "$(in_node node1 printf '%s|' '[ -e' '[a,b]' --dir -- '')" = '[ -e|[a,b]|--dir|--||' ] || fail "a command of lab shell is changed"
[ "$("$spark" lab run --dir "$lab" -- printf '%s|' '[a]' --help)" = '[a]|--help|' ] || fail "a command of lab run is changed"
if command -v ping >/dev/null; then
  reaches node1 10.12.1.2 || fail "no cable from node1 to node2"
  reaches node2 10.23.2.3 || fail "no second stripe from node2 to node3"
  reaches node3 10.13.1.1 || fail "no cable from node3 to node1"
  "$spark" lab run --dir "$lab" -- ping -q -c 1 -W 1 192.0.2.3 >/dev/null || fail "no management network"
  pinged=yes
else
  pinged=
fi
at_site doctor >"$work/doctor" || { cat "$work/doctor" >&2; fail "the lab's site has findings"; }
at_site render node2 >/dev/null || fail "no launch"
[ "$(on node2 'git -C projects/spark-deploy status --porcelain')" = "" ] || fail "the checkout is not clean"

# Containers, where there is an engine.
if has_docker; then
  ids=$(for n in 1 2 3; do on "node$n" 'docker image inspect -f {{.Id}} spark-engine:lab'; done | sort -u)
  [ "$(echo "$ids" | wc -l)" -eq 1 ] || fail "the image differs between nodes: $ids"
  on node1 'docker run --rm --network=host spark-engine:lab --version' | grep -q '^spark-engine' || fail "the image does not run"
  # Three ranks in three containers, workers first, and an answer from the head.
  if "$engine" --help | grep -q -- --node-rank; then
    "$spark" model synth --preset tiny --seed 1 --out "$lab/shared/checkpoint" >/dev/null 2>&1 || fail "no checkpoint"
    for n in 2 3 1; do
      words=$(at_site render "node$n" | sed 's/.*spark-engine:lab //')
      on "node$n" "docker run -d --name rank --network=host -e UCX_NET_DEVICES=enP7s7 \
        -v /srv/spark-lab/checkpoint:/srv/spark-lab/checkpoint:ro spark-engine:lab $words >/dev/null" || fail "rank on node$n"
    done
    i=0
    until on node1 'docker logs rank 2>&1' | grep -q '^listening on'; do
      i=$((i + 1))
      [ "$i" -lt 150 ] || { for n in 1 2 3; do on "node$n" 'docker logs rank 2>&1 | tail -n 5' >&2; done; fail "the ranks do not serve"; }
      sleep 0.2
    done
    body='{"model": "deepseek-v4.1-flash", "prompt": "hello", "max_tokens": 4, "temperature": 0, "ignore_eos": true}'
    printf 'POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' "${#body}" "$body" |
      on node1 "bash -c 'exec 3<>/dev/tcp/127.0.0.1/8000; cat >&3; cat <&3'" >"$work/answer"
    grep -q '"completion_tokens":4' "$work/answer" || { cat "$work/answer" >&2; fail "no completion from three ranks"; }
    for n in 1 2 3; do on "node$n" 'docker rm -f rank >/dev/null'; done
  fi
  # The guard's real kill path: a container, an impossible threshold.
  if [ -x "$lab/shared/bin/spark-guard" ]; then
    on node1 'tar -C /srv/spark-lab/bin -c spark-guard | docker import - victim >/dev/null
      docker run -d --name victim --memory=64m --network=host victim /spark-guard --service none --threshold-mib 1 --interval 1 \
        --wait 300 --run-folder / --docker-socket "" >/dev/null' || fail "no container to guard"
    on node1 'projects/spark-deploy/bin/spark-guard --service victim --threshold-gib 100000 --interval 0.1 --phase steady' 2>/dev/null &&
      fail "the guard did not kill"
    [ "$(on node1 'docker inspect -f {{.State.ExitCode}} victim')" = 137 ] || fail "the container did not end with 137"
    on node1 'grep -x state=killed /run/spark-guard/victim.status && grep -x means=cgroup /run/spark-guard/victim.status' >/dev/null ||
      { on node1 'cat /run/spark-guard/victim.status' >&2; fail "the guard does not say what it did"; }
    on node1 'docker rm victim >/dev/null'
  fi
  "$spark" lab fault --dir "$lab" docker node3 >/dev/null
  on node3 'docker ps' >/dev/null 2>&1 && fail "Docker still runs"
  "$spark" lab heal --dir "$lab" docker >/dev/null
  on node3 'docker ps' >/dev/null || fail "Docker did not come back"
else
  echo "lab: no container engine here: $(sed -n 's/^The lab runs: //p' "$work/up")"
fi

# Faults do what they say, and healing undoes it.
if [ -n "$pinged" ]; then
  "$spark" lab fault --dir "$lab" cable node1 node2 >/dev/null
  reaches node1 10.12.1.2 && fail "the cable is up"
  [ "$(on node2 'cat /sys/class/infiniband/rocep1s0f1/ports/1/state')" = "1: DOWN" ] || fail "the other end does not notice"
  "$spark" lab heal --dir "$lab" >/dev/null
  reaches node1 10.12.1.2 || fail "the cable is still down"
  "$spark" lab fault --dir "$lab" mtu node1 node2 --value 1500 >/dev/null
  reaches node1 10.12.1.2 && fail "large packets pass"
  reaches node1 10.12.1.2 1000 || fail "small packets do not pass"
  "$spark" lab fault --dir "$lab" swap node3 >/dev/null
  reaches node3 10.13.1.1 && fail "the cables are where they were"
  "$spark" lab fault --dir "$lab" subnet node2 node3 >/dev/null
  "$spark" lab heal --dir "$lab" >/dev/null
  reaches node1 10.12.1.2 && reaches node2 10.23.1.3 && reaches node3 10.13.1.1 || fail "not healed"
fi
"$spark" lab fault --dir "$lab" disk node1 >/dev/null
on node1 'echo x >/root/full' 2>/dev/null && on node1 'head -c 100000 /dev/zero >/root/full' 2>/dev/null && fail "the disk takes more"
"$spark" lab heal --dir "$lab" disk >/dev/null
on node1 'head -c 100000 /dev/zero >/root/full' || fail "the disk is still full"
"$spark" lab fault --dir "$lab" clock node2 --value 3600 >/dev/null
[ $(($(on node2 'date +%s') - $(date +%s))) -gt 3500 ] || fail "the clock is right"
if "$spark" lab fault --dir "$lab" memory node2 --value 6G >/dev/null 2>"$work/err"; then
  [ "$(on node2 "awk '/MemAvailable/ {print \$2}' /proc/meminfo")" -lt 6400000 ] || fail "there is memory"
else
  grep -q 'memory cgroup' "$work/err" || { cat "$work/err" >&2; fail "memory"; }
fi
"$spark" lab fault --dir "$lab" ssh node3 >/dev/null
on node3 true 2>/dev/null && fail "SSH still answers"
"$spark" lab fault --dir "$lab" mtv node1 node2 2>&1 | grep -q 'did you mean mtu' || fail "no help with a misspelt fault"
"$spark" lab fault --dir "$lab" memory node2 --value abc >"$work/out" 2>&1 && fail "a wrong value is taken"
grep -q injected "$work/out" && fail "says that a refused fault is there"
"$spark" lab status --dir "$lab" >"$work/status" && fail "status is content"
"$spark" lab heal --dir "$lab" >/dev/null
if "$spark" lab fault --dir "$lab" freeze node2 >/dev/null 2>&1; then
  timeout 2 ssh -F "$lab/ssh_config" -o BatchMode=yes node2 true 2>/dev/null && fail "a frozen node answers"
  "$spark" lab heal --dir "$lab" freeze >/dev/null
fi

# Of a command that was killed the record tells what was meant, not what was done: healing works from wherever it ended.
ports() { # a node's links and addresses, without what follows a moment later
  in_node "$1" sh -c 'ip -o link; ip -o -4 addr' |
    sed 's/NO-CARRIER,//; s/,LOWER_UP//; s/ qdisc.* link.ether / /; s/ brd .*//; s/valid_lft.*//'
}
record() { # KIND NODE [PEER [VALUE]]
  sed "s/\"faults\": \[\]/\"faults\": [{\"kind\": \"$1\", \"node\": \"$2\", \"peer\": \"${3:-}\", \"value\": \"${4:-}\"}]/" \
    "$lab/state.json" >"$work/state"
  cat "$work/state" >"$lab/state.json"
}
heals() { # TEXT...: the record is healed, and node1 is what it was
  "$spark" lab heal --dir "$lab" >"$work/out" 2>&1 || fail "$*: cannot be healed"
  grep -q '^healed' "$work/out" || fail "$*: nothing was recorded"
  ports node1 >"$work/ports.now"
  diff "$work/ports" "$work/ports.now" >&2 || fail "$*: node1 is not what it was"
}
ports node1 >"$work/ports"
for what in "swap node1" "subnet node1 node2" "mtu node1 node2 1500" "cable node1 node2" "ssh node1" "clock node1"; do
  # shellcheck disable=SC2086
  record $what
  heals "$what, recorded but not made"
done
on node1 true || fail "SSH does not answer after it was healed without a fault"
for what in "swap node1" "subnet node1 node2"; do
  # shellcheck disable=SC2086
  "$spark" lab fault --dir "$lab" $what >/dev/null
  cp "$lab/state.json" "$work/kept"
  heals "$what"
  cat "$work/kept" >"$lab/state.json" # as when the record could not be written
  heals "$what, healed twice"
done
in_node node1 sh -c 'p=enp1s0f0np0; ip link set $p down; ip addr flush dev $p; ip link set $p name spark-01; ip link set enp1s0f1np1 down'
record swap node1
heals "a swap that was killed half way"
"$spark" lab fault --dir "$lab" mtu node1 node2 >/dev/null
"$spark" lab fault --dir "$lab" swap node1 >/dev/null
in_node node1 sh -c 'cat /sys/class/net/en[pP]*f*/mtu' >"$work/mtu" || fail "the interfaces cannot be read after they changed places"
[ "$(grep -c 1500 "$work/mtu")" = 2 ] || { cat "$work/mtu" >&2; fail "a port's MTU leaves with its cable"; }
"$spark" lab heal --dir "$lab" mtu >/dev/null
heals "mtu and swap of one port"
for n in 1 2 3; do
  "$spark" lab fault --dir "$lab" clock "node$n" >/dev/null &
  clocks="${clocks:-} $!"
done
for clock in $clocks; do wait "$clock" || fail "one of three faults at the same time"; done
[ "$("$spark" lab heal --dir "$lab" | grep -c '^healed: clock')" = 3 ] || fail "faults at the same time lose one another's record"

"$spark" lab fault --dir "$lab" clock node2 >/dev/null
if "$spark" lab fault --dir "$lab" freeze node2 >/dev/null 2>&1; then
  "$spark" lab fault --dir "$lab" disk node2 >"$work/out" 2>&1 && fail "a frozen node does what it is told"
  grep -q 'node2: is frozen' "$work/out" || fail "does not say which node is frozen"
  "$spark" lab heal --dir "$lab" clock >"$work/out" 2>&1 && fail "heals in a frozen node"
  grep -q 'node2: is frozen' "$work/out" || fail "does not say which node is frozen when it heals"
fi
"$spark" lab heal --dir "$lab" >"$work/out" 2>&1 || fail "a frozen node keeps the lab from being healed"
"$spark" lab status --dir "$lab" >"$work/status" || { cat "$work/status" >&2; fail "not healthy again"; }

# Somebody else is told what he needs, in a sentence of ours.
as_nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups "$spark" "$@"; }
if as_nobody --version >/dev/null 2>&1; then
  chmod 755 "$work"
  for words in status "run -- true" "shell node1 -- true" heal "fault ssh node1" "connect node1" down up; do
    # shellcheck disable=SC2086
    as_nobody lab --dir "$lab" $words >"$work/out" 2>&1 </dev/null && fail "lab $words works for everybody"
    grep -q root "$work/out" || fail "lab $words: does not say that a lab is root's"
    ! grep -q 'filesystem error' "$work/out" || fail "lab $words: a library's message"
  done
  chmod 700 "$work"
fi

# A repository that has no profiles makes a lab without a site, and no hint at one.
mkdir "$work/elsewhere"
"$spark" --repository "$work/elsewhere" lab up --dir "$lab" --no-docker >"$work/out" 2>&1 || fail "up without a site"
grep -q '/site ' "$work/out" && fail "names a site that is not there"

# Up over a running lab, and over what kill -9 leaves at any moment.
"$spark" --repository "$source" lab up --dir "$lab" --no-docker >/dev/null 2>&1 || fail "up over a running lab"
"$spark" lab fault --dir "$lab" docker node1 >"$work/out" 2>&1 && fail "stops an engine that is not there"
grep -q 'no container engine' "$work/out" || fail "does not say that there is no engine"
record docker node1
"$spark" lab heal --dir "$lab" >/dev/null || fail "cannot heal an engine that never was"
in_node node1 test ! -e /run/docker.pid || fail "healing starts an engine in a lab without"
for delay in 0.05 0.15 0.25 0.4; do
  setsid "$spark" --repository "$source" lab up --dir "$lab" --no-docker >/dev/null 2>&1 &
  victim=$!
  sleep "$delay"
  kill -9 "$victim" 2>/dev/null || true
  wait "$victim" 2>/dev/null || true
done
touch "$lab/ssh_config.unfinished-q7Xb2a" # a write that was killed
up --nodes 4 --no-docker
"$spark" lab status --dir "$lab" >/dev/null || fail "not healthy after kill -9 of earlier runs"
"$spark" lab down --dir "$lab" >/dev/null || fail "down"
"$spark" lab down --dir "$lab" | grep -q 'no lab' || fail "down is not idempotent"
[ ! -e "$lab" ] || { ls -lA "$lab" >&2; fail "the directory is still there"; }
outside >"$work/after"
[ "$(cat "$work/after")" = "$before" ] || { cat "$work/after" >&2; fail "something is left on this machine"; }
[ -z "$(find /sys/fs/cgroup -maxdepth 2 -name "spark-lab-$(printf %s "$lab" | sha256sum | cut -c1-8)" 2>/dev/null)" ] || fail "a cgroup is left"
mkdir "$lab" && echo precious >"$lab/file"
"$spark" lab up --dir "$lab" >/dev/null 2>&1 && fail "took a directory with files"
[ "$(cat "$lab/file")" = precious ] || fail "touched foreign files"
rm -r "$lab"
echo "lab: ok"
