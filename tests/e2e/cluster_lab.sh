#!/bin/sh
# The service's whole life on a lab: sync, plan, start, a completion, status, replace, stop; what only reads leaves every
# node as it was, byte for byte. Usage: cluster_lab.sh SPARK ENGINE SOURCE_DIR [NODES]
# Needs root and Docker; exits with 77 (skipped) without.
set -eu
name=cluster_lab
here=$(dirname "$0")
. "$here/cluster_lib.sh"
lab_start "$@"

# A revision that is not published is refused; published, it goes to every node.
repo=$lab/site
( cd "$repo" && echo '# a change' >>docs/note.md && git add -A && git -c user.name=t -c user.email=t@t commit -qm 'A note' )
run 1 cluster sync --apply
says "is not on the origin's branch main"
( cd "$repo" && git push -q origin HEAD:main )
run 1 cluster start --apply
says '[start.commit]'
says 'spark cluster sync --apply'
states before
run 0 cluster sync
says 'plan only; --apply is required'
same_states before 'the plan of a sync'
run 0 cluster sync --apply
head=$(git -C "$repo" rev-parse HEAD)
for n in $all; do [ "$(on "node$n" "git -C projects/spark-deploy rev-parse HEAD")" = "$head" ] || fail "node$n is not at $head"; done

# Nothing that only reads changes a node.
states before
run 0 cluster start
says 'plan only; --apply is required'
says "node2: pre-arm startup memguard"
says "node1: docker run -d --name dsv41-lab"
run 0 cluster stop
run 1 status
says 'not running'
run 0 render node2
doctor_status=0
spark doctor --no-secret-scan --live --expect-stopped >"$work/out" 2>&1 || doctor_status=$?
run 0 probe node1
same_states before 'a command that only reads'

starts --apply
says 'cluster ready; memory guards are active on all nodes'
# Guards before any container, workers before the head, the token before the steady guards.
order=$(sed -n 's/^\(node[0-9]\): \(memguard active\|launched\|memguard switched\).*/\1 \2/p; s/^API ready.*/token/p' "$work/out" | tr '\n' ';')
case $order in
*launched*"memguard active"*) fail "a container before a guard: $order" ;;
*"node1 launched;token;"*"memguard switched;") ;;
*) fail "another order: $order" ;;
esac
guarded
completion node1
run 0 status
says 'API: healthy'
says 'memguard=active (steady'
says 'last: start'
run 0 status --json
says '"serving": true'
states before
run 0 status
spark doctor --no-secret-scan --live >"$work/out" 2>&1 || true
run 1 cluster start --apply
says '[start.exists]'
run 0 cluster start --replace
same_states before 'reading beside a running service'

# A benchmark of two samples, from the management network.
"$spark" lab run --dir "$lab" -- "$spark" --repository "$repo" --cluster-config config/lab.json bench --base-url http://192.0.2.1:8000 --cases prose-fixed --concurrency 1 \
  --min-samples 2 --max-samples 2 --precision 100 --output "$work/bench" >"$work/out" 2>&1 || fail "bench"
says 'prose-fixed-c1'
[ -s "$work/bench/bench.json" ] || fail "no bench.json"
grep -q '"kernel_backend": "native"' "$work/bench/bench.json" || fail "the report does not say what it measured"

ids() { for n in $all; do on "node$n" 'docker inspect -f {{.Id}} dsv41-lab'; done | tr '\n' ' '; }
first=$(ids)
starts --replace --apply
says 'stopped and kept as dsv41-lab-pre-'
[ "$(ids)" != "$first" ] || fail "nothing was replaced"
for n in $all; do [ "$(on "node$n" 'docker ps -aq | wc -l')" = 1 ] || fail "a retired container is left on node$n"; done
guarded
completion node1

# A second command finds the lock; a hold is honoured.
flock "$repo/results/private/launch/dsv41-lab/lock" "$spark" --repository "$repo" --cluster-config config/lab.json cluster stop --apply >"$work/out" 2>&1 && fail "two commands at once"
says 'another `spark cluster` command is at work here'
on node1 "echo '{\"holder\": \"a colleague\"}' >spark-hold.json"
run 1 cluster stop --apply
says 'somebody holds the cluster: spark-hold.json on node1'
guarded
on node1 'rm spark-hold.json'

run 0 cluster stop --apply
says 'cluster stopped'
no_service
run 1 status
says 'Exited (0)'
run 1 cluster start --apply
says '--replace stops and replaces it'
# What a start could not remove in time goes with prune; what runs or has its name does not.
on node2 'docker create --name dsv41-lab-pre-1700000000 spark-engine:lab >/dev/null'
mkdir -p "$repo/results/private/failed-starts/20200101T000000Z-dsv41-lab" "$repo/results/private/failed-starts/20200101T000000Z-other"
run 1 status
says 'kept=dsv41-lab-pre-1700000000'
states before
run 0 cluster prune --keep 0
says 'plan only; --apply is required'
same_states before 'the plan of a prune'
run 0 cluster prune --keep 0 --apply
says 'node2: removed dsv41-lab-pre-1700000000'
says 'node1: nothing to remove'
[ ! -e "$repo/results/private/failed-starts/20200101T000000Z-dsv41-lab" ] || fail "old evidence is left"
[ -e "$repo/results/private/failed-starts/20200101T000000Z-other" ] || fail "evidence of another service is gone"
for n in $all; do [ "$(on "node$n" 'docker ps -aq | wc -l')" = 1 ] || fail "prune removed more on node$n"; done

run 0 cluster stop --remove --parallel --apply
for n in $all; do [ "$(on "node$n" 'docker ps -aq | wc -l')" = 0 ] || fail "a container is left on node$n"; done
run 0 cluster stop --apply
says 'nothing was there'

# The same without containers: every rank a process of its own, guarded by its pid.
profile=config/lab-processes.json
run 0 cluster start
says 'pre-arm startup memguard'
# Logs that find no place here do not make a start fail that has succeeded.
logs=$repo/results/private/logs/dsv41-lab
rm -rf "$logs" && mkdir -p "${logs%/*}" && : >"$logs"
starts --apply
says 'WARN: the logs of the ranks were not brought here'
says 'cluster ready'
rm "$logs"
completion node1
run 0 status
says 'dsv41-lab|process'
processes() {
  for n in $all; do
    on "node$n" '
      read -r pid </run/spark-launch/dsv41-lab.pid
      bin=/root/projects/spark-deploy/bin/spark-guard
      watched=$($bin status --service dsv41-lab --run-folder /run/spark-guard | sed -n "s/^pid=//p")
      [ "$pid" = "$watched" ] && kill -0 "$pid"' || fail "node$n: a process without its guard"
  done
}
processes
run 1 cluster start --apply
says '[start.exists]'
starts --replace --apply
processes
spark doctor --no-secret-scan --live >"$work/out" 2>&1 || true
! grep -qE '\[service\.(running|guard|ports)\]' "$work/out" || fail "the doctor does not see the ranks"
# A successor that cannot run: what ran before comes back, though its program is no longer on the disk.
program=$lab/shared/bin/spark-engine
cp "$program" "$work/spark-engine"
rm "$program"
printf '#!/bin/sh\nsleep 1\nexit 3\n' >"$program"
chmod 755 "$program"
run 1 cluster start --replace --apply
says 'the service from before serves again'
processes
completion node1
rm "$program"
cp "$work/spark-engine" "$program"
starts --replace --apply
processes
for n in $all; do [ "$(on "node$n" 'ls -d /run/spark-launch/*/ 2>/dev/null | wc -l')" = 0 ] || fail "something kept is left on node$n"; done
run 0 cluster stop --apply
for n in $all; do
  on "node$n" '! pgrep -x spark-engine >/dev/null' || fail "an engine is left on node$n"
done
no_service
echo "$name: good"
