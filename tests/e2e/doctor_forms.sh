#!/bin/sh
# doctor --model, --boot-log, --live over recorded trees, probe and host on folders: as a person types them, with
# their exit codes. Nothing here contacts a machine.
set -eu
spark=$1
repository=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

fail() { echo "doctor_forms: $*" >&2; exit 1; }

# expect STATUS TEXT COMMAND...: exit status, and a text in what it prints
expect() {
  wanted=$1 text=$2; shift 2
  status=0
  "$@" >out 2>&1 || status=$?
  [ "$status" = "$wanted" ] || { cat out >&2; fail "exit status $status instead of $wanted: $*"; }
  grep -qF -- "$text" out || { cat out >&2; fail "does not print \"$text\": $*"; }
}

# A checkpoint
"$spark" model synth --out model >/dev/null 2>&1
expect 0 'configuration OK; the checkpoint is whole' "$spark" doctor --model model
(cd model && sha256sum ./*.safetensors | sed 's|\./||') >manifest
expect 0 'the checkpoint is whole' "$spark" doctor --model model --manifest manifest
shard=$(find model -name "*.safetensors" | sort | head -n 1)
cp "$shard" kept
printf 'x' | dd of="$shard" bs=1 seek="$(($(stat -c %s "$shard") - 1))" conv=notrunc 2>/dev/null
expect 1 '[model.hash]' "$spark" doctor --model model --manifest manifest
truncate -s -1 "$shard"
expect 1 '[model.checkpoint]' "$spark" doctor --model model
cp kept "$shard"
expect 0 'the checkpoint is whole' "$spark" doctor --model model
rm "$shard"
expect 1 "$(basename "$shard")" "$spark" doctor --model model
expect 2 'Directory does not exist' "$spark" doctor --model no-such-folder

# A benchmark for a profile that cannot be read measures nothing: the profile is told first, not the address.
expect 1 'config/none.json' "$spark" --repository "$repository" --cluster-config config/none.json bench --base-url http://127.0.0.1:1
expect 3 'does not answer' "$spark" bench --base-url http://127.0.0.1:1

# A boot's log
printf 'engine started\n' >good.log
printf 'engine started\nL2 prefetch: compile failed, falling back\n' >bad.log
expect 0 'the boot log is clean' "$spark" --repository "$repository" doctor --boot-log good.log
expect 1 '[boot-log.fallback]' "$spark" --repository "$repository" doctor --boot-log bad.log
expect 1 '"rule": "boot-log.compile-failed"' "$spark" --repository "$repository" doctor --boot-log bad.log --json

# This machine, recorded and read back
expect 0 'kernel' "$spark" probe --root /
"$spark" probe --root / --record recorded 2>/dev/null
"$spark" probe --root recorded --json >one.json
"$spark" probe --root recorded --json >two.json
cmp one.json two.json || fail 'a recorded tree gives two answers'
expect 1 'is not empty' "$spark" probe --root / --record recorded
expect 2 'NODE or --root' "$spark" probe

# The live rules over recorded trees: the third node has none
cp -r "$repository/config" "$repository/manifests" "$repository/upstreams.lock.json" "$repository/docs" "$repository/host" .
cp config/nodes.example.json config/nodes.json
cp config/site.example.json config/site.json
mkdir nodes
cp -r recorded nodes/node1
cp -r recorded nodes/node2
expect 3 'node3: cannot be reached' "$spark" doctor --no-secret-scan --live --recorded nodes
expect 3 '[live.same-machine]' "$spark" doctor --no-secret-scan --live --recorded nodes
expect 1 'node1' "$spark" doctor --no-secret-scan --live --recorded nodes --node node1
expect 3 '# node3' "$spark" doctor --no-secret-scan --live --recorded nodes --fragmentation-commands

# The recovery policy on a folder
mkdir -p machine/etc/default/grub.d
find machine | sort >before
expect 0 'plan only; --apply is required' "$spark" host apply --root machine
find machine | sort | cmp - before || fail 'a plan changed something'
expect 0 'install /etc/sysctl.d/95-spark-recovery.conf (0644)' "$spark" host apply --root machine --apply
cmp machine/etc/sysctl.d/95-spark-recovery.conf host/recovery/etc/sysctl.d/95-spark-recovery.conf
expect 1 'ERROR' "$spark" host check --root machine
expect 0 'plan only' "$spark" host revert --root machine
expect 0 'delete /etc/sysctl.d/95-spark-recovery.conf' "$spark" host revert --root machine --apply
find machine | sort | cmp - before || fail 'revert left something'
echo 'doctor_forms: good'
