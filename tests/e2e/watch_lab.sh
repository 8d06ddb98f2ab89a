#!/bin/sh
# spark watch over three ranks in a lab: a dead rank, a stopped container engine, a frozen node, frozen tokens, each told
# within two intervals; it leaves nothing behind. Usage: watch_lab.sh SPARK ENGINE SOURCE_DIR
# Needs root; exits with 77 (skipped) without.
set -eu
test=watch_lab spark=$1 engine=$2 source=$3
. "${0%/*}/lab_setup.sh"
interval=4
"$engine" --help | grep -q -- --node-rank || skip "the engine has no ranks"
lab_up --engine "$engine" --nodes 3
# The nodes see this machine's client; with no engine behind it they are right to complain.
if command -v docker >/dev/null 2>&1 && ! has_docker; then skip "there is a docker client here, and no engine that answers"; fi
[ -x "$lab/shared/bin/spark-guard" ] || skip "no spark-guard was built"
"$spark" model synth --preset tiny --seed 1 --out "$lab/shared/checkpoint" >/dev/null 2>&1 || fail "no checkpoint"
service=dsv41-lab
in_containers=
if has_docker && grep -q '"container"' "$lab/site/config/lab.json"; then in_containers=yes; fi

start_rank() { # NODE
  words=$(at_site render "$1" | sed -e 's/.*spark-engine:lab //' -e 's/.*spark-engine //')
  if [ -n "$in_containers" ]; then
    on "$1" "docker rm -f $service >/dev/null 2>&1; docker run -d --name $service --network=host --ipc=host -e UCX_NET_DEVICES=enP7s7 \
      -v /srv/spark-lab/checkpoint:/srv/spark-lab/checkpoint:ro spark-engine:lab $words >/dev/null"
  else
    on "$1" "UCX_NET_DEVICES=enP7s7 setsid sh -c 'echo \$\$ >/run/rank.pid; exec \"\$@\"' sh projects/spark-deploy/build/release/apps/spark-engine $words \
      >/run/rank.log 2>&1 </dev/null &"
  fi
  pid_file=
  [ -n "$in_containers" ] || pid_file='--pid-file /run/rank.pid'
  on "$1" "setsid projects/spark-deploy/bin/spark-guard --service $service --threshold-mib 64 --interval 0.2 --phase steady --wait 30 $pid_file \
    >/run/guard.log 2>&1 </dev/null &"
}
serving() { on node1 'bash -c "exec 3<>/dev/tcp/127.0.0.1/8000"' 2>/dev/null; }
logs() { for node in node1 node2 node3; do on "$node" "docker logs $service 2>&1 | tail -n 5; tail -n 5 /run/rank.log 2>/dev/null"; done; }
# On a machine that is busy with other things ranks can take one another for dead: then they are started again.
attempts=0
until [ "$attempts" -gt 0 ] && serving; do
  attempts=$((attempts + 1))
  [ "$attempts" -le 4 ] || { logs >&2; fail "the ranks do not serve"; }
  for node in node2 node3 node1; do start_rank "$node" || fail "no rank on $node"; done
  tries=0
  until serving || [ "$tries" -ge 60 ]; do
    tries=$((tries + 1))
    [ $((tries % 10)) != 0 ] || ! logs | grep -q 'no sign of life' || break
    sleep 0.3
  done
done

# Once, while all is well.
status=0
at_site watch --once >"$work/out" 2>&1 || status=$?
[ "$status" = 0 ] || fail "watch --once gives exit status $status over a healthy cluster"
grep -q 'all in order' "$work/out" || fail "watch --once is not content"

# Not a shell function, so that $! is the program itself.
"$spark" --repository "$lab/site" --cluster-config config/lab.json watch --interval $interval --frozen 6 --json >"$work/lines" 2>"$work/watch-errors" &
watcher=$! background=$!
line() { grep -F "\"node\":\"$1\",\"check\":\"$2\"" "$work/lines" | grep -F "\"change\":\"$3\""; }
# told NODE CHECK CHANGE [TEXT]: within two intervals from now on (and a second for this loop).
told() {
  tries=$(((2 * interval + 1) * 5))
  until line "$1" "$2" "$3" | grep -qF -- "${4:-}"; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || { cat "$work/lines" "$work/watch-errors" >&2; fail "not told within two intervals: $1 $2 $3 ${4:-}"; }
    sleep 0.2
  done
}
told cluster watch.began began
[ "$(grep -c . "$work/lines")" = 1 ] || { cat "$work/lines" >&2; fail "a healthy cluster makes it speak"; }

# A rank is killed.
if [ -n "$in_containers" ]; then
  on node2 "kill -9 \$(docker inspect -f {{.State.Pid}} $service)"
else
  on node2 'kill -9 $(cat /run/rank.pid)'
fi
told node2 service.running began

# The container engine stops.
if [ -n "$in_containers" ]; then
  "$spark" lab fault --dir "$lab" docker node2 >/dev/null
  told node2 container.engine began
  "$spark" lab heal --dir "$lab" docker >/dev/null
  told node2 container.engine ended
fi

# A node freezes.
if "$spark" lab fault --dir "$lab" freeze node3 >/dev/null 2>&1; then
  told node3 node.answer began
  "$spark" lab heal --dir "$lab" freeze >/dev/null
  told node3 node.answer ended
else
  echo "watch_lab: nodes cannot be frozen here"
fi

# Requests that get no token: the ranks are gone, a page stands for theirs.
if command -v python3 >/dev/null; then
  on node1 "docker rm -f $service >/dev/null 2>&1; [ ! -e /run/rank.pid ] || kill -9 \$(cat /run/rank.pid) 2>/dev/null
    mkdir -p /tmp/page && cd /tmp/page && printf 'vllm:num_requests_running 2\nvllm:num_requests_waiting 0\nvllm:generation_tokens_total 17\n' >metrics
    setsid python3 -m http.server --bind 127.0.0.1 8000 >/dev/null 2>&1 </dev/null &"
  sleep 6
  told node1 tokens.moving began 'frozen: 2 requests run'
  status=0
  at_site watch --once --interval 1 --frozen 2 >"$work/out" 2>&1 || status=$?
  [ "$status" = 1 ] || fail "watch --once gives exit status $status over frozen tokens"
  grep -q 'ERROR node1 tokens.moving: frozen' "$work/out" || fail "watch --once does not see frozen tokens"
  on node1 "printf 'vllm:num_requests_running 2\nvllm:generation_tokens_total 18\n' >/tmp/page/metrics"
  told node1 tokens.moving ended
fi

# A node without SSH.
"$spark" lab fault --dir "$lab" ssh node2 >/dev/null
told node2 node.answer began
status=0
at_site watch --once --node node2 >"$work/out" 2>&1 || status=$?
[ "$status" = 3 ] || fail "watch --once gives exit status $status when a node does not answer"
"$spark" lab heal --dir "$lab" >/dev/null
told node2 node.answer ended

# Ctrl-C: at once, and nothing is left.
kill -INT "$watcher"
(sleep 20; kill -9 "$watcher") 2>/dev/null &
deadline=$!
status=0
wait "$watcher" || status=$?
kill "$deadline" 2>/dev/null || true
background=
[ "$status" = 130 ] || fail "exit status $status after Ctrl-C"
if grep -lza -e "spark-ssh[^/]*-w$watcher/" /proc/[0-9]*/cmdline 2>/dev/null | grep -v "/$$/" | grep -q .; then fail "an SSH connection is left"; fi
[ -z "$(find /tmp "${XDG_RUNTIME_DIR:-/tmp}" -maxdepth 1 -name "spark-ssh*-w$watcher" 2>/dev/null)" ] || fail "a folder of sockets is left"
python3 -c 'import json, sys; [json.loads(line) for line in open(sys.argv[1])]' "$work/lines" 2>/dev/null || ! command -v python3 >/dev/null ||
  fail "a line is no JSON"
echo "watch_lab: good"
