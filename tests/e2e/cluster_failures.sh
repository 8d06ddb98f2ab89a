#!/bin/sh
# Everything that can go wrong with a start, a service and the `spark` process itself, on a lab: nothing ever runs without
# a guard, `spark status` explains what is left, and the next command repairs it.
# Usage: cluster_failures.sh SPARK ENGINE SOURCE_DIR [NODES]; SPARK_LONG_TESTS=1 kills `spark` at 30 moments, SPARK_FAILURE_TESTS=1 at 6.
# Without either it is skipped: it takes minutes, and on a machine that is short of processors ranks take one another for dead.
# Needs root and Docker; exits with 77 (skipped) without.
set -eu
name=cluster_failures
here=$(dirname "$0")
. "$here/cluster_lib.sh"
[ -n "${SPARK_LONG_TESTS:-}${SPARK_FAILURE_TESTS:-}" ] || skip "tried when SPARK_FAILURE_TESTS or SPARK_LONG_TESTS is set"
lab_memory=6G
lab_start "$@"
repo=$lab/site
image=$(on node1 'docker image inspect -f {{.Id}} spark-engine:lab')

# The same profile with little patience, published and on every node.
cat >"$repo/config/lab-impatient.json" <<'J'
{"schema_version": 1, "extends": "config/lab.json", "deployment": {"ready_timeout_seconds": 5}}
J
( cd "$repo" && git add -A && git -c user.name=t -c user.email=t@t commit -qm 'Little patience' && git push -q origin HEAD:main )
run 0 cluster sync --apply

fault() { "$spark" lab fault --dir "$lab" "$@" >"$work/fault" 2>&1; }
heal() { "$spark" lab heal --dir "$lab" >/dev/null 2>&1 || fail "cannot heal"; }
# Nothing of a start is there: no container, no guard, no claim.
untouched() {
  no_service
  for n in $all; do [ -z "$(on "node$n" 'docker ps -aq')" ] || fail "a container is left on node$n after: $1"; done
  on node1 '[ ! -e .spark-cluster-claim ]' || fail "the claim is left after: $1"
}
# a refused start: STATUS WHAT TEXT...
refused() {
  wanted=$1 what=$2
  shift 2
  run "$wanted" cluster start --apply
  for text in "$@"; do says "$text"; done
  untouched "$what"
}

echo "$name: refusals"
fault ssh node3
status=0
spark cluster start --apply >"$work/out" 2>&1 || status=$?
[ "$status" = 3 ] || fail "ssh down: exit status $status"
says 'node3: cannot be reached'
run 3 status
says 'node3'
heal
untouched 'ssh down'
fault docker node2
run 1 cluster start --apply
says 'Docker does not answer'
run 1 status
says 'docker does not answer'
heal
untouched 'Docker down'
on node2 'docker rmi -f spark-engine:lab >/dev/null'
refused 1 'image missing' '[start.image]' 'node2: the image spark-engine:lab does not exist' 'to fix: docker save'
on node2 'docker load -q -i /srv/spark-lab/image.tar >/dev/null'
on node3 'tar -C /etc -c hostname | docker import - spark-engine:lab >/dev/null'
refused 1 'image differs' '[service.image-id]' 'is not one image' 'on node3'
on node3 'docker rmi -f spark-engine:lab >/dev/null; docker load -q -i /srv/spark-lab/image.tar >/dev/null'
[ "$(on node3 'docker image inspect -f {{.Id}} spark-engine:lab')" = "$image" ] || fail "the image of node3 was not put back"
on node3 'cd projects/spark-deploy/bin && mv spark-guard kept'
refused 1 'no guard' '[service.guard-program]' 'node3: the memory guard cannot run'
on node3 'cd projects/spark-deploy/bin && printf "#!/bin/sh\n[ \"\$1\" = --version ]\n" >spark-guard && chmod +x spark-guard'
refused 1 'guard cannot arm' 'arm node3: ' 'everything it did was taken back'
on node3 'cd projects/spark-deploy/bin && mv -f kept spark-guard'
if fault memory node2 --value 4600M; then
  refused 1 'memory low at start' '[memory.available]' 'node2: 4.'
  heal
else
  echo "$name: memory faults are not possible here: $(head -n 1 "$work/fault")"
fi
profile=config/does-not-exist.json
run 1 cluster start --apply
profile=config/lab.json

echo "$name: a rank dies while the start waits, and an API that never answers"
spark cluster start --apply >"$work/out" 2>&1 & starting=$!
i=0
until on node1 'docker inspect dsv41-lab' >/dev/null 2>&1 && on node3 'docker kill dsv41-lab' >/dev/null 2>&1; do i=$((i + 1)); [ "$i" -lt 1200 ] || fail "no rank to kill"; sleep 0.05; done
status=0
wait "$starting" || status=$?
[ "$status" = 1 ] || fail "a rank died: exit status $status"
says 'node3'
says 'everything it did was taken back'
folder=$(sed -n 's/^node3: logs and state are in //p' "$work/out")
[ -s "$folder/node3.inspect.json" ] && [ -e "$folder/node1.log" ] && [ -s "$folder/node2.state" ] || fail "no evidence in $folder"
untouched 'a rank died'
run 1 status
says 'rolled-back'
profile=config/lab-impatient.json
spark cluster start --apply >"$work/out" 2>&1 & starting=$!
i=0
until on node3 'docker pause dsv41-lab' >/dev/null 2>&1; do i=$((i + 1)); [ "$i" -lt 1200 ] || fail "no rank to pause"; sleep 0.05; done
status=0
wait "$starting" || status=$?
[ "$status" = 1 ] || fail "API never ready: exit status $status"
says 'the API generated no token within 5 s'
says 'logs and state are in'
untouched 'API never ready'
profile=config/lab.json

echo "$name: failures of a running service"
starts --apply
guarded
on node2 'docker kill dsv41-lab >/dev/null'
sleep 1
run 1 status
says 'node2: the service ended with exit code 137'
guarded
starts --replace --apply
guarded
completion node1
if fault memory node2 --value 2900M; then
  i=0
  until on node2 '[ "$(docker inspect -f {{.State.Running}} dsv41-lab)" = false ]'; do i=$((i + 1)); [ "$i" -lt 100 ] || fail "the guard did not kill"; sleep 0.1; done
  run 1 status
  says 'node2: the memory guard killed the service: low-memory'
  run 1 cluster start --replace --apply
  says '[memory.available]'
  guarded
  heal
  starts --replace --apply
  guarded
fi
# A start that fails restores, guarded, what it had replaced.
old=$(on node1 'docker inspect -f {{.Id}} dsv41-lab')
on node3 'cd projects/spark-deploy/bin && mv spark-guard kept && printf "#!/bin/sh\ncase \$1 in status | switch | --version) exec /srv/spark-lab/bin/spark-guard \"\$@\" ;; esac\n[ -e /root/armed ] && exec /srv/spark-lab/bin/spark-guard \"\$@\"\ntouch /root/armed; exit 1\n" >spark-guard && chmod +x spark-guard'
run 1 cluster start --replace --apply
says 'arm node3: '
says 'the service from before serves again'
[ "$(on node1 'docker inspect -f {{.Id}} dsv41-lab')" = "$old" ] || fail "another container serves"
on node3 'rm /root/armed; cd projects/spark-deploy/bin && mv -f kept spark-guard'
guarded
completion node1
run 0 status
# Ctrl-C takes everything back.
run 0 cluster stop --remove --apply
"$spark" --repository "$repo" --cluster-config "$profile" cluster start --apply >"$work/out" 2>&1 & starting=$!
i=0
until on node2 'docker inspect dsv41-lab' >/dev/null 2>&1; do i=$((i + 1)); [ "$i" -lt 1200 ] || fail "no rank"; sleep 0.05; done
kill -INT "$starting"
status=0
wait "$starting" || status=$?
[ "$status" = 130 ] || fail "interrupted: exit status $status"
untouched 'an interrupt'

times=6
[ "${SPARK_LONG_TESTS:-0}" != 1 ] || times=30
echo "$name: kill -9 of spark at $times moments"
seed=${SPARK_TEST_SEED:-$$}
echo "$name: SPARK_TEST_SEED=$seed"
# When to kill: after this many lines of the journal (0: of the preflight), and so much later.
moment() { awk -v seed="$seed" -v i="$1" -v most="$2" 'BEGIN { srand(seed * 1000 + i); rand(); print int(rand() * most); printf "%.3f", 0.4 * rand() }'; }
newest() { ls "$repo"/results/private/launch/dsv41-lab/*.jsonl 2>/dev/null | tail -n 1; }
kill_at() { # PID LINES SECONDS OLD_JOURNAL
  while kill -0 "$1" 2>/dev/null; do
    now=$(newest)
    [ "$2" -gt 0 ] || break
    if [ -n "$now" ] && [ "$now" != "$4" ] && [ "$(wc -l <"$now")" -ge "$2" ]; then break; fi
    sleep 0.01
  done
  sleep "$3"
  kill -9 "$1" 2>/dev/null || true
  wait "$1" 2>/dev/null || true
}
i=0
while [ "$i" -lt "$times" ]; do
  case $((i % 3)) in
  0) run 0 cluster stop --remove --apply; command="cluster start --apply" most=22 ;;
  1) starts --replace --apply; command="cluster start --replace --apply" most=30 ;;
  2) starts --replace --apply; command="cluster stop --apply" most=13 ;;
  esac
  # shellcheck disable=SC2046
  set -- $(moment "$i" "$most")
  old=$(newest)
  # shellcheck disable=SC2086
  "$spark" --repository "$repo" --cluster-config "$profile" $command >"$work/killed" 2>&1 & victim=$!
  kill_at "$victim" "$1" "$2" "$old"
  after="$1 lines and $2 s"
  [ -z "${SPARK_TEST_TRACE:-}" ] || echo "$name: killed \"$command\" after $after: $(tail -n 1 "$(newest)" | cut -c 1-120)" >&2
  guarded
  spark status >"$work/out" 2>&1 || true
  grep -q '^interrupted: \|^last: ' "$work/out" || fail "status says nothing of \"$command\" killed after $after"
  sleep 0.5
  guarded
  if [ $((i % 2)) = 0 ]; then
    starts --replace --apply
    guarded
    completion node1
    run 0 status
  else
    run 0 cluster stop --remove --apply
    untouched "\"$command\" killed after $after"
  fi
  i=$((i + 1))
done
run 0 cluster stop --remove --apply
untouched 'everything'
echo "$name: good"
