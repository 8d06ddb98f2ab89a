# What the tests of `spark cluster` share: a lab of their own with a tiny checkpoint, and checks. Sourced.
skip() { echo "$name: skipped: $1"; exit 77; }
fail() {
  echo "$name: $1" >&2
  [ ! -f "$work/out" ] || tail -n 40 "$work/out" >&2
  exit 1
}
spark() { "$spark" --repository "$lab/site" --cluster-config "$profile" "$@"; }
on() { node=$1; shift; ssh -F "$lab/ssh_config" -o BatchMode=yes -o ControlMaster=auto -o "ControlPath=$work/c-%C" -o ControlPersist=30 "$node" "$@"; }
# run STATUS COMMAND...: output of both streams is in $work/out
run() {
  wanted=$1
  shift
  status=0
  begun=$(date +%s%N)
  spark "$@" >"$work/out" 2>&1 || status=$?
  [ -z "${SPARK_TEST_TRACE:-}" ] || echo "$name: $((($(date +%s%N) - begun) / 1000000)) ms: spark $*" >&2
  [ "$status" = "$wanted" ] || fail "spark $*: exit status $status instead of $wanted"
}
# A start that has to succeed. On a machine that is busy with other things ranks can take one another for dead, and a
# node's questions can take too long; a start then says so, and takes back what it did: it is tried again.
starts() {
  tries=0
  while :; do
    status=0
    begun=$(date +%s%N)
    spark cluster start "$@" >"$work/out" 2>&1 || status=$?
    [ -z "${SPARK_TEST_TRACE:-}" ] || echo "$name: $((($(date +%s%N) - begun) / 1000000)) ms: spark cluster start $*" >&2
    [ "$status" != 0 ] || return 0
    tries=$((tries + 1))
    why=$(grep -m 1 -oE '.*(rank [0-9] was lost|gave up this rank|took longer than its limit).*' "$work/out") || why=
    { [ "$tries" -lt 4 ] && [ -n "$why" ]; } || fail "spark cluster start $*: exit status $status"
    echo "$name: a start is tried again: $why"
  done
}
says() { grep -qF -- "$1" "$work/out" || fail "does not say: $1"; }

lab_start() {
  spark=$1 engine=$2 source=$3 nodes=${4:-3}
  profile=config/lab.json
  [ "$(id -u)" -eq 0 ] || skip "a lab needs root"
  [ -x /usr/sbin/sshd ] || skip "no openssh-server"
  command -v ip >/dev/null || skip "no iproute2"
  command -v dockerd >/dev/null || skip "no docker.io"
  unshare --net --mount --pid --fork true 2>/dev/null || skip "this machine allows no namespaces"
  work=$(mktemp -d /tmp/spark-cluster-XXXXXX)
  lab=$work/lab
  all=$(seq -s ' ' "$nodes")
  trap lab_end EXIT
  trap 'exit 130' INT TERM
  "$spark" --repository "$source" lab up --dir "$lab" --nodes "$nodes" --memory "${lab_memory:-8G}" --engine "$engine" >"$work/up" 2>&1 ||
    { cat "$work/up" >&2; fail "up failed"; }
  grep -q 'nodes, docker' "$work/up" || skip "no container engine here: $(sed -n 's/^The lab runs: //p' "$work/up")"
  SPARK_SSH_CONFIG=$lab/ssh_config
  XDG_RUNTIME_DIR=$work/run
  export SPARK_SSH_CONFIG XDG_RUNTIME_DIR
  mkdir -m 700 "$XDG_RUNTIME_DIR"
  "$spark" model synth --preset tiny --seed 1 --out "$lab/shared/checkpoint" >/dev/null 2>&1 || fail "no checkpoint"
}
lab_end() {
  status=$?
  trap - EXIT INT TERM
  "$spark" lab down --dir "$lab" >/dev/null 2>&1 || true
  for socket in "$work"/c-* "$work"/run/spark-ssh/*; do
    [ ! -S "$socket" ] || ssh -o "ControlPath=$socket" -O exit none >/dev/null 2>&1 || true
  done
  rm -rf "$work"
  exit "$status"
}

# What a node holds: names, kinds, sizes, times and content of its own files, containers, images, processes of ours.
# Left out: what moves by itself (logs of the daemons, the memory's figures, sockets and pids of sessions).
state_of() {
  on "$1" '
    find /root /home /etc /srv /var/lib /usr/local /opt -xdev -not -path "/var/lib/docker/*" -not -path "/srv/spark-lab/*" -printf "%p %y %m %s %T@ %l\n" 2>/dev/null | sort
    find /root /home /etc /var/lib -xdev -type f -not -path "/var/lib/docker/*" -exec sha256sum {} + 2>/dev/null | sort
    find /run /tmp -xdev -not -path "/run/docker*" -not -path "/run/containerd*" -not -name "meminfo" -not -name "*.status" -printf "%p %y %m %l\n" 2>/dev/null | sort
    docker ps -a --no-trunc --format "{{.ID}} {{.Image}} {{.Names}} {{.State}}"; docker images --no-trunc; docker volume ls -q
    ip -o link; ip -o addr | sed "s/valid_lft.*//"'
}
states() { for n in $all; do state_of "node$n" >"$work/$1.$n"; done; }
same_states() {
  states now
  for n in $all; do
    cmp -s "$work/$1.$n" "$work/now.$n" || { diff "$work/$1.$n" "$work/now.$n" | head -n 20 >&2 || true; fail "$2 changed node$n"; }
  done
}

# No container of the service runs without a guard that watches this very process.
guarded() {
  for n in $all; do
    on "node$n" '
      for id in $(docker ps -q --filter name=dsv41-lab); do
        set -- $(docker inspect -f "{{.Name}} {{.State.Pid}} {{.State.Running}}" "$id")
        [ "$3" = true ] || continue
        # A guard that waits takes the process at its next look, which a busy machine delays.
        look=0
        while :; do
          status=$(/root/projects/spark-deploy/bin/spark-guard status --service "${1#/}" --run-folder /run/spark-guard 2>/dev/null) ||
            { echo "$1 runs and no guard answers"; exit 1; }
          look=$((look + 1))
          case $status in *state=waiting*) [ "$look" -lt 50 ] && sleep 0.1 ;; *) break ;; esac || break
        done
        case $status in *state=watching*) ;; *) echo "$1 runs and the guard is: $status"; exit 1 ;; esac
        pid=$(printf "%s\n" "$status" | sed -n "s/^pid=//p")
        [ "$pid" = "$2" ] || { echo "$1 is process $2, the guard watches $pid"; exit 1; }
      done' >"$work/guarded" 2>&1 || { cat "$work/guarded" >&2; fail "node$n: a container without a guard"; }
  done
}
no_service() {
  for n in $all; do
    [ -z "$(on "node$n" 'docker ps -q')" ] || fail "something still runs on node$n"
    on "node$n" '! /root/projects/spark-deploy/bin/spark-guard status --service dsv41-lab --run-folder /run/spark-guard >/dev/null 2>&1' || fail "a guard is left on node$n"
  done
}
completion() {
  body='{"model": "deepseek-v4.1-flash", "prompt": "hello", "max_tokens": 4, "temperature": 0, "ignore_eos": true}'
  printf 'POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' "${#body}" "$body" |
    on "$1" "bash -c 'exec 3<>/dev/tcp/127.0.0.1/8000; cat >&3; cat <&3'" >"$work/answer"
  grep -q '"completion_tokens":4' "$work/answer" || { cat "$work/answer" >&2; fail "no completion"; }
}
