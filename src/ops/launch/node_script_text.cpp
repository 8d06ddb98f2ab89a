#include "ops/launch/node_script_text.h"

namespace spark::ops {

// Set before: name, runtime, systemd, guard (program), guard_unit, arm_line, launch_line, run_folder, step
// and the step's own variables.
//
// look NAME     seen=absent|stopped|running, id, code, oom, since, image_id, tag
// guard_look    alive=1|0 and guard_text: the guard's status, of the living one or what an earlier one left
//
// A container that is replaced keeps everything under another name. Of a unit or a process nothing is left
// when it has ended, so what it takes to start it again is kept before: a folder $folder/$backup with its
// command, environment, working folder and, when another file has taken its place since, its program; of a
// unit its file. Restoring renames the folder to $name.kept and starts from there.
const char* const kNodeScriptBody = R"sh(
LC_ALL=C
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
export LC_ALL PATH
sudo=
[ "$(id -u)" = 0 ] || sudo='sudo -n'
folder=/run/spark-launch
[ "$(id -u)" = 0 ] || [ "$runtime" = unit ] || folder=${XDG_RUNTIME_DIR:-/tmp}/spark-launch
keeper=
[ "$runtime" != unit ] || keeper=$sudo # what is kept of a unit is root's
kept_unit=/run/systemd/system/$name.service

say() { printf '%s=%s\n' "$1" "$2"; }
fail() { printf '%s\n' "$*" >&2; exit 1; }
last_line() { printf '%s\n' "$1" | sed -n '$p'; }
# refuse TOOL OUTPUT: the last line of standard error is what a person reads, all before it goes to the evidence.
# Docker's last line is a hint, Git's advice, and that of `docker start` says no more than that it failed.
refuse() {
  printf '%s\n' "$2" >&2
  told=$(printf '%s\n' "$2" | sed -e '/^[[:space:]]*$/d' -e '/^Run .* for more information/d' -e '/^See /d')
  why=$(printf '%s\n' "$told" | grep -e '^docker: ' -e 'response from daemon' -e '^fatal: ' | sed -n 1p)
  why=$(last_line "${why:-${told:-$2}}")
  fail "$1: ${why#docker: }"
}

look() {
  seen=absent id= code= oom= since= image_id= tag=
  case $runtime in
  container)
    if out=$(docker container inspect -f '{{.State.Status}} {{.Id}} {{.State.ExitCode}} {{.State.OOMKilled}} {{.State.StartedAt}} {{.Image}} {{.Config.Image}}' "$1" 2>&1); then
      read -r status id code oom since image_id tag <<SPARK_END
$(last_line "$out")
SPARK_END
      case $status in running | paused | restarting | removing) seen=running ;; *) seen=stopped ;; esac
    else
      case $out in *[Nn]"o such container"*) ;; *) refuse "docker does not answer" "$out" ;; esac
    fi ;;
  process)
    pid=
    [ ! -r "$folder/$1.pid" ] || read -r pid <"$folder/$1.pid"
    if [ -n "$pid" ]; then
      seen=stopped id=$pid
      if grep -qs "SPARK_SERVICE=$folder/$1.mark" "/proc/$pid/environ"; then seen=running; fi
    fi ;;
  unit)
    out=$(systemctl show -p LoadState -p ActiveState -p MainPID -p ExecMainStatus "$1.service") || fail "systemctl does not answer"
    id=$(printf '%s\n' "$out" | sed -n 's/^MainPID=//p') code=$(printf '%s\n' "$out" | sed -n 's/^ExecMainStatus=//p')
    case $out in
    *ActiveState=active* | *ActiveState=activating* | *ActiveState=deactivating* | *ActiveState=reloading*) seen=running ;;
    *LoadState=loaded*) seen=stopped ;;
    esac ;;
  esac
}

guard_command() {
  command=$1
  shift
  $sudo "$guard" "$command" --service "$name" --run-folder "$run_folder" "$@"
}
# A guard that left its status as if it went on may be there all the same, on a busy machine, or be started
# again just now: only one that does not answer three times is gone.
guard_look() {
  asked=0
  while :; do
    alive=0
    if guard_text=$(guard_command status 2>/dev/null); then
      alive=1
      return
    fi
    guard_text=$(cat "$run_folder/$name.status" 2>/dev/null)
    asked=$((asked + 1))
    case $(g state) in watching | waiting) [ "$asked" -lt 3 ] || return 0 ;; *) return 0 ;; esac
    sleep 0.3
  done
}
g() { printf '%s\n' "$guard_text" | sed -n "s/^$1=//p" | sed -n 1p; }

end_guard() {
  guard_look
  [ "$alive" = 1 ] || return 0
  if [ "$systemd" = 1 ]; then $sudo systemctl stop "$guard_unit.service"; else $sudo kill -TERM "$(g guard_pid)"; fi
  tries=0
  while guard_look; [ "$alive" = 1 ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || fail "the guard does not end"
    sleep 0.05
  done
}

# A guard whose service has ended leaves by itself.
guard_leaves() {
  tries=0
  while guard_look; [ "$alive" = 1 ] && [ "$(g state)" = watching ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 60 ] || break
    sleep 0.05
  done
  end_guard
}

# What a guard that is gone said of a service that was removed is over: status and watch would report it for ever.
forget_guard() {
  guard_look
  [ "$alive" = 1 ] || $sudo rm -f "$run_folder/$name.status"
}

start_guard() {
  if [ "$systemd" = 1 ]; then
    $sudo systemctl reset-failed "$guard_unit.service" 2>/dev/null
    out=$(eval "$arm_line" 2>&1) || refuse "the guard exited before its first protected sample" "$out"
    return
  fi
  $sudo mkdir -p /var/log/spark "$run_folder"
  log=/var/log/spark/$guard_unit.log
  [ ! -e "$log" ] || $sudo mv -f "$log" "$log.1"
  # A guard that crashes is started again; one that decided to end (0, 1, 2) is not.
  $sudo sh -c 'log=$1; shift; setsid sh -c '\''while :; do "$@"; code=$?; [ "$code" -gt 2 ] || exit "$code"; sleep 0.1; done'\'' guard-keeper "$@" </dev/null >>"$log" 2>&1 &' \
    sh "$log" sh -c "exec $arm_line --run-folder '$run_folder' \"\$@\"" sh "$@"
}

prelaunch_guard() {
  end_guard
  $sudo rm -f "$run_folder/$name.status"
  if [ "$runtime" = process ]; then start_guard --pid-file "$folder/$name.pid"; else start_guard; fi
  tries=0
  while guard_look; [ "$alive" = 0 ] || [ "$(g samples)" = 0 ]; do
    case $(g state) in gave-up) fail "the guard exited before its first protected sample: $(g reason), available $(g available_kib) KiB, threshold $(g threshold_kib) KiB" ;; esac
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || fail "the guard gave no first sample within 5 s: $(tail -n 1 "/var/log/spark/$guard_unit.log" 2>/dev/null)"
    sleep 0.05
  done
  [ "$(g state)" = waiting ] || fail "the guard is $(g state) instead of waiting"
  [ "$(g threshold_kib)" = "$threshold_kib" ] || fail "the guard has the threshold $(g threshold_kib) KiB instead of $threshold_kib"
}

say_guard() { say guard "$(g phase) (threshold $(($(g threshold_kib) / 1048576)) GiB, interval $(g interval_ms) ms, available $(g available_kib) KiB)"; }

# After a start: the service is watched, or it is ended.
guarded_or_ended() {
  tries=0
  while :; do
    guard_look
    [ "$alive" = 0 ] || [ "$(g state)" != watching ] || return 0
    look "$name"
    [ "$seen" = running ] || { kill_service; fail "it ended at once${code:+ (exit code $code)}"; }
    [ "$alive" = 1 ] && [ "$tries" -lt 200 ] || break
    tries=$((tries + 1))
    sleep 0.05
  done
  kill_service
  fail "the guard does not watch it ($(g state) $(g reason)); it was killed"
}

# After a look. The id of one that has ended may be another program's by now. A killed process has given back its
# memory, which takes seconds where it had all of the machine's, when it is gone or waits for its parent.
kill_process() {
  [ "$seen" = running ] || return 0
  kill -KILL "$id" 2>/dev/null
  tries=0
  while [ -d "/proc/$id" ] && ! grep -qs '^State:.*Z' "/proc/$id/status" && [ "$tries" -lt 1200 ]; do
    tries=$((tries + 1))
    sleep 0.05
  done
  look "$name"
}

kill_service() {
  case $runtime in
  container) docker kill --signal KILL "$name" >/dev/null 2>&1 ;;
  process) kill_process ;;
  unit) $sudo systemctl kill --signal=KILL "$name.service" ;;
  esac
}

# A program that was built anew since it was started is no longer where it was.
keep_program() {
  program=$($keeper readlink "/proc/$id/exe") || return 1
  case $program in "$folder/"*) ;; *) ! $keeper test "$program" -ef "/proc/$id/exe" || return 0 ;; esac
  $keeper cp "/proc/$id/exe" "$1/program" && $keeper chmod 700 "$1/program"
}

keep_process() {
  cat "/proc/$id/environ" >"$1/environment" && cat "/proc/$id/cmdline" >"$1/command" &&
    readlink "/proc/$id/cwd" >"$1/folder" && keep_program "$1" && printf '%s\n' "${program% (deleted)}" >"$1/path"
}

keep_unit() {
  fragment=$(systemctl show -p FragmentPath --value "$name.service")
  [ -n "$fragment" ] && $keeper cp "$fragment" "$1/unit" && keep_program "$1" || return 1
  [ ! -e "$1/program" ] || $keeper sed -i "/^ExecStart=/s|${program% (deleted)}|$folder/$name.kept/program|g" "$1/unit"
}

keep_service() {
  [ ! -d "$folder/$backup" ] || return 0
  $keeper rm -rf "$folder/$backup.new"
  $keeper mkdir -p "$folder" && $keeper mkdir -m 700 "$folder/$backup.new" &&
    ( umask 077; "keep_$runtime" "$folder/$backup.new" ) && $keeper mv "$folder/$backup.new" "$folder/$backup" ||
    fail "what it takes to start $name again cannot be kept; it was not stopped. spark cluster stop --apply, then start, does without"
}

backup_there() {
  case $runtime in
  container) docker container inspect "$backup" >/dev/null 2>&1 ;;
  *) [ -d "$folder/$backup" ] ;;
  esac
}

# The unit file of a service that was restored would be in the way of a new one.
forget_kept() {
  [ "$runtime" != container ] || return 0
  $keeper rm -rf "$folder/$name.kept"
  [ "$runtime" = unit ] && grep -qsF '# Kept by spark cluster start' "$kept_unit" || return 0
  $sudo rm -f "$kept_unit"
  $sudo systemctl daemon-reload
}

# A guard and every later step find a process by the file with its id: without it nothing is started. Who is
# killed when it does not come leads a session of its own, so nobody of it stays, whenever it would have come.
keep_pid='echo $$ >"$0.new" && mv "$0.new" "$0" && exec "$@"'
forget_pid() { rm -f "$folder/$name.pid" "$folder/$name.pid.new"; }
wait_for_pid() {
  started=$! tries=0
  until [ -s "$folder/$name.pid" ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 250 ] && kill -0 "$started" 2>/dev/null || break
    sleep 0.02
  done
  [ ! -s "$folder/$name.pid" ] || return 0
  kill -KILL "-$started" 2>/dev/null
  reason=$(echo "$started" | tee "$folder/$name.pid.new" 2>&1 >/dev/null)
  forget_pid 2>/dev/null
  fail "its process id does not get into $folder/$name.pid, where its guard looks for it, so it was not started${reason:+: $(last_line "$reason")}"
}

# Environment and command go through files: xargs is told where one word ends and the next begins.
start_kept_process() {
  kept=$folder/$name.kept
  read -r program <"$kept/path"
  [ ! -e "$kept/program" ] || program=$kept/program
  read -r place <"$kept/folder"
  ( umask 077; { printf '%s\0' env -i --; grep -z '^[^=]*=' "$kept/environment"; printf '%s\0' "$program"; sed -z 1d "$kept/command"; } >"$kept/words" ) &&
    cd "$place" || fail "what was kept of $name cannot be used"
  [ ! -e "$folder/$name.log" ] || mv -f "$folder/$name.log" "$folder/$name.log.1"
  SPARK_SERVICE=$folder/$name.mark setsid xargs -0 -x -n 60000 -a "$kept/words" \
    sh -c "$keep_pid" "$folder/$name.pid" </dev/null >>"$folder/$name.log" 2>&1 &
  wait_for_pid
}

start_kept_unit() {
  { echo '# Kept by spark cluster start'; $keeper cat "$folder/$name.kept/unit"; } | $sudo tee "$kept_unit" >/dev/null &&
    $sudo systemctl daemon-reload || fail "$kept_unit cannot be written"
  $sudo systemctl reset-failed "$name.service" 2>/dev/null
  out=$($sudo systemctl start "$name.service" 2>&1) || refuse "systemctl start" "$out"
}

stop_service() {
  case $runtime in
  container) out=$(docker stop --time 60 "$name" 2>&1) || refuse "docker stop" "$out" ;;
  unit) $sudo systemctl stop "$name.service" || fail "systemctl stop $name.service failed" ;;
  process)
    kill -TERM "$id" 2>/dev/null
    tries=0
    while look "$name"; [ "$seen" = running ]; do
      tries=$((tries + 1))
      [ "$tries" -lt 1200 ] || kill -KILL "$id" 2>/dev/null
      [ "$tries" -lt 1300 ] || fail "process $id does not end"
      sleep 0.05
    done ;;
  esac
  look "$name"
  [ "$seen" != running ] || fail "it still runs after it was stopped"
}

forget_service() {
  case $runtime in
  container) out=$(docker rm --force "$name" 2>&1) || refuse "docker rm" "$out" ;;
  unit) $sudo systemctl stop "$name.service" 2>/dev/null; $sudo systemctl reset-failed "$name.service" 2>/dev/null ;;
  process) kill_process; [ "$seen" = running ] || rm -f "$folder/$name.pid" ;;
  esac
  look "$name"
  [ "$seen" != running ] || fail "it still runs after it was removed"
  forget_kept
}

# A claim appears whole or not at all: one that was cut short would be nobody's, and in everybody's way.
step_claim() {
  file=$HOME/$claim_file new=$HOME/$claim_file.$$
  refuse_claim() { rm -f "$new"; fail "$*"; }
  reason=$(printf '%s\n' "$claim" | tee "$new" 2>&1 >/dev/null) || refuse_claim "the claim cannot be written: $(last_line "$reason")"
  if reason=$(ln "$new" "$file" 2>&1); then rm -f "$new"; return; fi
  old=$(cat "$file" 2>/dev/null) || refuse_claim "the claim cannot be written: $(last_line "$reason")"
  # One command at a time has the journal's lock, so a claim of the same journal is that of a dead command.
  case $old in
  *"\"run\":\"$run\""* | *"$owner") ;;
  *"}") [ "$take_over" = 1 ] || refuse_claim "the cluster is claimed by another machine: $old; when that command is dead: --take-over" ;;
  *) ;; # empty or cut short by a full disk: nobody's
  esac
  mv -f "$new" "$file" || refuse_claim "the claim cannot be written"
}

step_release() {
  file=$HOME/$claim_file
  grep -qsF "\"run\":\"$run\"" "$file" || return 0
  rm -f "$file"
}

memory_returns() {
  tries=0
  before=0
  while [ "$tries" -lt 60 ]; do
    now=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo)
    [ "$now" -lt "$threshold_kib" ] || [ $((now - before)) -gt 65536 ] || return 0
    before=$now
    tries=$((tries + 1))
    sleep 0.5
  done
}

step_keep() {
  look "$name"
  [ "$seen" = running ] || return 0
  keep_service
}

step_retire() {
  look "$name"
  [ "$seen" != absent ] || return 0
  say id "$id"
  if [ "$seen" = running ]; then
    [ "$runtime" = container ] || keep_service
    stop_service
  fi
  guard_leaves
  case $runtime in
  container) out=$(docker rename "$name" "$backup" 2>&1) || refuse "docker rename" "$out" ;;
  process) rm -f "$folder/$name.pid" ;;
  esac
  forget_kept
  memory_returns
}

step_arm() {
  look "$name"
  [ "$seen" != running ] || fail "$name runs already"
  prelaunch_guard
  say_guard
}

step_launch() {
  guard_look
  [ "$alive" = 1 ] && [ "$(g state)" = waiting ] || fail "no armed guard: $(g state) $(g reason)"
  look "$name"
  case $runtime:$seen in
  container:absent | process:absent | process:stopped | unit:absent | unit:stopped) ;;
  *) fail "there is a $name already ($seen)" ;;
  esac
  forget_kept
  case $runtime in
  container) out=$(eval "$launch_line" 2>&1) || refuse "docker run" "$out" ;;
  unit) $sudo systemctl reset-failed "$name.service" 2>/dev/null; out=$(eval "$launch_line" 2>&1) || refuse "systemd-run" "$out" ;;
  process)
    mkdir -p "$folder"
    forget_pid 2>/dev/null # of one that has ended: it would be taken for the new one's
    [ ! -e "$folder/$name.log" ] || mv -f "$folder/$name.log" "$folder/$name.log.1"
    SPARK_SERVICE=$folder/$name.mark setsid sh -c "$keep_pid" "$folder/$name.pid" sh -c "exec $launch_line" </dev/null >>"$folder/$name.log" 2>&1 &
    wait_for_pid ;;
  esac
  look "$name"
  guarded_or_ended
  say id "$id"
}

step_steady() {
  guard_look
  [ "$alive" = 1 ] && [ "$(g state)" = watching ] || fail "the guard is not there: $(g state) $(g reason)"
  out=$(guard_command switch --threshold-gib "$steady_gib" --interval "$steady_interval" --phase steady 2>&1) || fail "$(last_line "$out")"
  guard_look
  [ "$(g phase)" = steady ] || fail "the guard did not switch"
  say_guard
}

step_discard() {
  backup_there || return 0
  if [ "$runtime" != container ]; then $keeper rm -rf "$folder/$backup"; return; fi
  out=$(docker rm "$backup" 2>&1) || refuse "$backup is kept" "$out"
}

# A unit's first process is no name for it; of a unit only a backup beside it tells that it is the new one.
step_remove() {
  look "$name"
  [ "$seen" != absent ] || return 0
  if [ -n "$expected_id" ] && [ "$runtime" != unit ]; then
    [ "$id" = "$expected_id" ] || { say kept "another $runtime"; return 0; }
  elif [ -n "$backup" ] && ! backup_there; then
    say kept "the service that was there before"
    return 0
  fi
  forget_service
}

step_disarm() {
  look "$name"
  if [ "$seen" = running ]; then say kept "the guard of a running service"; return 0; fi
  guard_leaves
}

step_restore() {
  look "$name"
  if backup_there; then
    if [ "$runtime" = container ]; then
      [ "$seen" = absent ] || fail "both $name and $backup are there"
      out=$(docker rename "$backup" "$name" 2>&1) || refuse "docker rename" "$out"
    else
      # It was to be stopped, and is perhaps about to end.
      if [ "$seen" = running ]; then
        if [ "$start" != 1 ]; then $keeper rm -rf "$folder/$backup"; return 0; fi
        stop_service
        guard_leaves
      fi
      forget_kept
      $keeper mv "$folder/$backup" "$folder/$name.kept"
    fi
    look "$name"
  fi
  [ "$start" = 1 ] && [ "$seen" != running ] || return 0
  if [ "$runtime" = container ]; then [ "$seen" = stopped ]; else [ -d "$folder/$name.kept" ]; fi || { say lost 1; return 0; }
  prelaunch_guard
  if [ "$runtime" = container ]; then
    out=$(docker start "$name" 2>&1) || refuse "docker start" "$out"
  else
    [ "$runtime" = unit ] || rm -f "$folder/$name.pid"
    "start_kept_$runtime"
  fi
  look "$name"
  guarded_or_ended
}

# Retired services that could not be removed when their successor was ready.
prune_retired() {
  pruned=
  if [ "$runtime" != container ]; then
    for old in "$folder/$name-pre-"*; do
      [ -d "$old" ] || continue
      $keeper rm -rf "$old" && pruned="$pruned ${old##*/}"
    done
  else
    names=$(docker ps --all --filter "name=^/?$name-pre-[0-9]+\$" --filter status=exited --filter status=created --filter status=dead --format '{{.Names}}') ||
      fail "docker does not answer"
    for old in $names; do
      if docker rm "$old" >/dev/null 2>&1; then pruned="$pruned $old"; else say kept "$old"; fi
    done
  fi
  say pruned "${pruned# }"
}

step_prune() {
  prune_retired
  look "$name"
  [ "$seen" != absent ] || forget_guard
}

step_stop() {
  look "$name"
  say found "$seen"
  if [ "$seen" = running ]; then stop_service; fi
  guard_leaves
  [ "$remove" != 1 ] || prune_retired
  if [ "$remove" = 1 ] || [ "$runtime" != container ]; then
    [ "$seen" = absent ] || forget_service
    forget_guard
  fi
  [ "$seen" != absent ] || { forget_kept; return 0; }
}

step_look() {
  say available_kib "$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo)"
  say total_kib "$(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo)"
  say commit "$(git -C "$checkout" rev-parse HEAD 2>/dev/null)"
  say origin "$(git -C "$checkout" remote get-url origin 2>/dev/null)"
  git -C "$checkout" --no-optional-locks status --porcelain --untracked-files=all 2>/dev/null | sed -n '1,20{=;p;}' |
    while read -r number && IFS= read -r line; do say "change.$number" "$line"; done
  for file in "$HOME/$claim_file" "$HOME/spark-hold.json" "$HOME/spark3-hold.json"; do
    [ ! -r "$file" ] || say "file.${file##*/}" "$(tr '\n' ' ' <"$file" | cut -c 1-600)"
  done
  guard_look
  say guard_alive "$alive"
  for key in state reason phase threshold_kib interval_ms available_kib minimum_kib pid means; do
    say "guard.$key" "$(g "$key")"
  done
  [ "$systemd" = 0 ] || say guard_unit "$(systemctl is-active "$guard_unit.service" 2>/dev/null)"
  look "$name"
  for key in seen id code oom since image_id tag; do eval "say $key \"\$$key\""; done
  if [ "$runtime" = container ]; then
    say status "$(docker ps --all --filter "name=^/?$name\$" --format '{{.Status}}')"
    say kept "$(docker ps --all --filter "name=^/?$name-pre-" --format '{{.Names}} ({{.State}})' | tr '\n' ' ')"
  else
    since=$([ "$seen" != running ] || ps -o etime= -p "$id" 2>/dev/null)
    say status "$seen${since:+ for ${since##* }}"
    say kept "$(for old in "$folder/$name-pre-"*; do [ ! -d "$old" ] || printf '%s ' "${old##*/}"; done)"
  fi
  if [ "$runtime" = unit ] && [ "$seen" = running ] && [ -z "$(systemctl show -p FragmentPath --value "$name.service")" ]; then
    say unkeepable "systemd names no file of $name.service"
  fi
  exit 0
}

step_fetch() {
  cd "$checkout" || fail "there is no checkout: $checkout"
  out=$(git fetch --quiet --prune origin 2>&1) || refuse "git fetch" "$out"
  git cat-file -e "$revision^{commit}" 2>/dev/null || fail "the origin has no commit $revision"
}

step_checkout() {
  cd "$checkout" || fail "there is no checkout: $checkout"
  out=$(git checkout --quiet --detach "$revision" 2>&1) || refuse "git checkout" "$out"
  write_maps
  seen=$(git rev-parse HEAD)
  [ "$seen" = "$revision" ] || fail "the checkout is at $seen"
}

"step_$step"
)sh";

}  // namespace spark::ops
