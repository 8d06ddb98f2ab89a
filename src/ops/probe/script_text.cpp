#include "ops/probe/script_text.h"

namespace spark::ops {

// Only builtins, POSIX utilities and, where there is no other way, the tool whose answer is wanted.
//
// run NAME COMMAND...   one section: "@NAME", the output with "|" before every line, the exit status as the
//                       last such line, then the first lines of standard error with "!". The shell marks its own
//                       lines with $mark, which content cannot know; one sed per group (framed) takes the marks
//                       off and puts "|" before everything else.
//                       In the file sections the output is "path:line"; a recorded tree is read as a node is,
//                       its command outputs from .commands.
// chain GROUP...        runs all groups at once and prints their outputs one after another without a file
//                       between them: each group writes into a pipe whose reader first finishes its own. The
//                       last one prints directly, so the group with the longest answer stands there.
const char* const kProbeScriptBody = R"sh(
LC_ALL=C
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
export LC_ALL PATH

have() { command -v "$1" >/dev/null 2>&1; }

if have timeout; then
  limited() { seconds=$1; shift; timeout -k 1 "$seconds" "$@"; }
else
  limited() {
    seconds=$1; shift
    "$@" & child=$!
    { sleep "$seconds"; kill -9 "$child"; } >/dev/null 2>&1 & dog=$!
    wait "$child" 2>/dev/null; status=$?
    kill "$dog" 2>/dev/null
    return "$status"
  }
fi

recorded() {
  [ -f ".commands/$1" ] || return 127
  cat ".commands/$1"
  [ ! -f ".commands/$1.error" ] || cat ".commands/$1.error" >&2
  status=0
  [ ! -f ".commands/$1.status" ] || read -r status <".commands/$1.status"
  return "$status"
}

section() {
  printf '%s@%s\n' "$mark" "$1"; shift
  problem=$( { "$@" </dev/null 5>&-; printf '\n%s|%s\n' "$mark" "$?"; } 2>&1 >&5 )
  [ -z "$problem" ] || printf '%s\n' "$problem" | cut -c 1-400 | sed -n "1,3s/^/$mark!/p"
} 5>&1

framed() {
  sed -e "s/^$mark//" -e t \
    -e 's/^\( *"[A-Za-z0-9_]*KEY[A-Za-z0-9_]*=\).*"/\1<redacted>"/' \
    -e 's/^\( *"[A-Za-z0-9_]*TOKEN[A-Za-z0-9_]*=\).*"/\1<redacted>"/' \
    -e 's/^\( *"[A-Za-z0-9_]*SECRET[A-Za-z0-9_]*=\).*"/\1<redacted>"/' \
    -e 's/^\( *"[A-Za-z0-9_]*PASSWORD[A-Za-z0-9_]*=\).*"/\1<redacted>"/' \
    -e 's/^/|/'
}

run() {
  name=$1; shift
  section "$name" limited "$limit" "$@"
}

group() { "group_$1" | framed; }

chain() {
  if [ $# -eq 1 ]; then eval "$1" </dev/null; return 0; fi
  member=$1; shift
  eval "$member" </dev/null | { chain "$@"; cat; }
}

files() {
  run files grep -sH '' proc/cmdline proc/meminfo proc/buddyinfo proc/swaps proc/uptime \
    proc/sys/kernel/osrelease proc/sys/kernel/hostname proc/sys/kernel/panic proc/sys/kernel/panic_on_oops \
    proc/sys/kernel/random/boot_id proc/sys/vm/panic_on_oom proc/sys/vm/min_free_kbytes \
    proc/sys/vm/watermark_boost_factor proc/sys/vm/nr_hugepages \
    proc/sys/net/ipv4/ip_local_port_range proc/sys/net/ipv4/ip_local_reserved_ports \
    proc/sys/net/ipv4/ip_forward proc/sys/net/ipv6/conf/*/disable_ipv6 \
    etc/os-release etc/dgx-release etc/machine-id \
    sys/kernel/mm/transparent_hugepage/enabled sys/class/dmi/id/product_name \
    sys/module/nvidia/version sys/module/nvidia/srcversion sys/module/nvidia_uvm/srcversion \
    sys/module/nvidia_uvm/parameters/uvm_pack_sysmem_leaf_tables \
    sys/class/infiniband/*/fw_ver \
    sys/class/infiniband/*/ports/1/state sys/class/infiniband/*/ports/1/phys_state \
    sys/class/infiniband/*/ports/1/rate sys/class/infiniband/*/ports/1/link_layer \
    sys/class/infiniband/*/ports/1/gid_attrs/types/* sys/class/infiniband/*/ports/1/gid_attrs/ndevs/* \
    sys/class/infiniband/*/ports/1/counters/symbol_error sys/class/infiniband/*/ports/1/counters/link_downed \
    sys/class/infiniband/*/ports/1/counters/port_rcv_errors \
    sys/class/infiniband/*/ports/1/counters/link_error_recovery \
    sys/class/infiniband/*/ports/1/hw_counters/roce_adp_retrans \
    sys/class/infiniband/*/ports/1/hw_counters/packet_seq_err \
    sys/class/infiniband/*/ports/1/hw_counters/out_of_sequence \
    sys/class/infiniband/*/ports/1/hw_counters/local_ack_timeout_err \
    sys/class/infiniband/*/device/current_link_speed sys/class/infiniband/*/device/current_link_width \
    sys/class/infiniband/*/device/max_link_speed sys/class/infiniband/*/device/max_link_width \
    sys/class/infiniband/*/device/aer_dev_fatal sys/class/infiniband/*/device/aer_dev_nonfatal \
    sys/class/infiniband/*/device/aer_dev_correctable \
    sys/class/net/*/speed sys/class/thermal/cooling_device*/type \
    sys/class/drm/card*/device/uevent sys/devices/system/cpu/cpufreq/policy*/scaling_governor
  run gids grep -sHv '^[0:]*$' sys/class/infiniband/*/ports/1/gids/*
  run modprobe grep -sHvE '^[[:space:]]*(#|$)' etc/modprobe.d/*.conf
  run files-root $sudo grep -sH '' sys/module/nvidia_drm/parameters/modeset \
    sys/module/nvidia_drm/parameters/fbdev proc/pagetypeinfo
}

group_files() {
  files
  run modules grep -sE '^(nvidia|mlx5|ib_uverbs|rdma_cm|dgx_)' proc/modules
  run pci sh -c 'for device in sys/bus/pci/devices/*; do
      vendor=; read -r vendor <"$device/vendor" || continue
      case $vendor in 0x15b3 | 0x10de) ;; *) continue ;; esac
      line="${device##*/} $vendor"
      for name in device class current_link_speed current_link_width max_link_speed max_link_width; do
        value=; [ ! -r "$device/$name" ] || read -r value <"$device/$name"
        line="$line;$value"
      done
      printf "%s\n" "$line"
    done'
  with_releases run boot sh -c 'for release in "$@"; do
      for name in "boot/vmlinuz-$release" "boot/initrd.img-$release" "boot/config-$release"; do
        if [ -s "$name" ]; then echo "file /$name"; elif [ -e "$name" ]; then echo "empty /$name"; else echo "absent /$name"; fi
      done
      for name in "usr/src/linux-headers-$release" "usr/lib/linux-tools/$release/cpupower"; do
        if [ -e "$name" ]; then echo "file /$name"; else echo "absent /$name"; fi
      done
      if grep -qs "^CONFIG_ARM64_64K_PAGES=y" "boot/config-$release"; then echo "pages-64k $release"; fi
    done
    for name in dev/infiniband/uverbs0 dev/dri/by-path/pci-000f:01:00.0-card dev/nvidia0 swap.img swap-64k.img; do
      if [ -e "$name" ]; then echo "file /$name"; else echo "absent /$name"; fi
    done' sh
  run limits sh -c 'for letter in l n s; do echo "$letter $(ulimit -$letter)"; done'
}

group_base() {
  run user id -un
  run user-id id -u
  run sudo sudo -n true
  run machine uname -m
  run page-size getconf PAGESIZE
  run addresses ip -j addr
  run routes ip -j route
  run neighbours ip -j neigh
  run forward $sudo iptables -S FORWARD
  run listeners $sudo ss -Hltnp
  with_disks run disks df -Pk
  run time-sync timedatectl show -p NTPSynchronized
  run kernel-log sh -c "$sudo dmesg | grep -E 'NV_ERR_NO_MEMORY|NVRM: Xid|AER: |Out of memory|oom-kill' | tail -n 40"
  with_mounts run mounts sh -c 'for folder in "$@"; do
      mode=
      [ ! -e "$folder" ] || mode=e
      [ ! -r "$folder" ] || mode=${mode}r
      [ ! -w "$folder" ] || mode=${mode}w
      printf "%s %s\n" "${mode:--}" "$folder"
    done' sh
  [ -z "$checkout" ] || {
    run checkout git -C "$checkout" rev-parse HEAD
    run checkout-changes git -C "$checkout" --no-optional-locks status --porcelain --untracked-files=all
  }
  run holds sh -c 'for f in "$HOME/spark-hold.json" "$HOME/spark3-hold.json"; do [ ! -e "$f" ] || echo "$f"; done'
}

ping_path() { run "ping-$1" ping -n -c 1 -W 1 -M do -s 8972 -I "$2" "$3"; }

group_gpu() {
  run gpu nvidia-smi --query-gpu=name,driver_version,pstate,clocks.sm,power.draw,utilization.gpu,utilization.memory,temperature.gpu,clocks_event_reasons.active --format=csv,noheader,nounits
  run gpu-processes nvidia-smi --query-compute-apps=pid,process_name --format=csv,noheader
}

group_systemd() {
  run boot-target systemctl get-default
  run system-state systemctl is-system-running
  run failed-units systemctl --failed --no-legend --plain
  run manager systemctl show -p RuntimeWatchdogUSec -p RebootWatchdogUSec
  with_units run units systemctl show -p Id -p Names -p LoadState -p ActiveState -p SubState -p UnitFileState -p MemoryMin -p OOMScoreAdjust -p MainPID -p TimeoutStartUSec --
}

group_kernel() {
  run dkms dkms status
  [ -z "$candidate" ] || run module-files sh -c 'modinfo -k "$1" nvidia nvidia_uvm nvidia_drm mlx5_core mlx5_ib dgx_ec_fan_control | grep -E "^(filename|version|srcversion|vermagic|signer|name):"' sh "$candidate"
}

group_boot() {
  with_packages run packages dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\n'
  run secure-boot mokutil --sb-state
  [ -z "$fan_certificate" ] || run fan-key $sudo mokutil --test-key "$fan_certificate"
  run grub-menu $sudo grep -E '^[[:space:]]*(set default=|submenu |menuentry |linux|})' boot/grub/grub.cfg
  run grub-environment $sudo grub-editenv list
  run efi efibootmgr
  run build-note $sudo od -An -v -tx1 sys/module/nvidia/notes/.note.gnu.build-id
  run sshd-test $sudo sshd -t
  run sshd sh -c "$sudo sshd -T | grep -iE '^(logingracetime|maxstartups|persourcemaxstartups) '"
  with_policy_files run policy-files $sudo sha256sum
}

group_devices() {
  run rdma-info ibv_devinfo
  run lldp $sudo lldpctl -f json
  run drm-clients sh -c 'for card in sys/class/drm/card[0-9] sys/class/drm/card[0-9][0-9]; do
      grep -qs "^DRIVER=nvidia$" "$card/device/uevent" || continue
      $1 cat "sys/kernel/debug/dri/${card##*card}/clients" || exit 1
    done' sh "$sudo"
  run console $sudo python3 -c 'import fcntl, struct
vt = open("/sys/class/tty/tty0/active").read().strip()
print(vt, struct.unpack("i", fcntl.ioctl(open("/dev/" + vt), 0x4b3b, struct.pack("i", 0)))[0])'
  run nvme sh -c 'for device in dev/nvme[0-9] dev/nvme[0-9][0-9]; do
      [ ! -c "$device" ] || { printf "%s " "${device#dev/}"; $1 nvme get-feature "/$device" -f 8 || echo unreadable; }
    done' sh "$sudo"
}

group_docker() {
  run docker-info docker info --format '{{json .}}'
  run docker-containers docker ps --no-trunc --format '{{.ID}} {{.Image}} {{.Names}}'
  [ -z "$image" ] || run image docker image inspect "$image"
  [ -z "$container" ] || {
    run container docker container inspect "$container"
    ids=$(limited "$limit" docker container inspect --format '{{.Id}} {{.Image}}' "$container" 2>/dev/null </dev/null)
    [ -z "$ids" ] || {
      run container-image docker image inspect "${ids#* }"
      run memory-events sh -c 'for f in "$@"; do [ ! -r "$f" ] || exec cat "$f"; done' sh "sys/fs/cgroup/system.slice/docker-${ids% *}.scope/memory.events" \
        "sys/fs/cgroup/docker/${ids% *}/memory.events"
    }
  }
  [ -n "$container" ] || [ -z "$service" ] || {
    unit=$(limited "$limit" systemctl show -p ControlGroup --value "$service.service" 2>/dev/null </dev/null)
    [ -z "$unit" ] || run memory-events sh -c 'for f in "$@"; do [ ! -r "$f" ] || exec cat "$f"; done' sh "sys/fs/cgroup$unit/memory.events"
  }
}

group_model() {
  [ -n "$model_folder" ] || return 0
  run model-index sh -c 'cd "$1" || exit 1
    grep -o "\"total_size\": *[0-9]*" model.safetensors.index.json | head -n 1
    grep -o "\"[^\"/]*\.safetensors\"" model.safetensors.index.json | sort -u' sh "$model_folder"
  run model-shards sh -c 'cd "$1" || exit 1
    for f in *.safetensors; do
      [ -e "$f" ] || continue
      size=$(stat -L -c %s -- "$f") || continue
      length=$(head -c 8 -- "$f" | od -An -v -tu8 | tr -d " ")
      end=
      case $length in
        "" | ??????????*) ;;
        *) end=$(head -c "$((length + 8))" -- "$f" | grep -ao "\"data_offsets\": *\[[0-9]*, *[0-9]*" |
            sed "s/.*, *//" | sort -n | tail -n 1) ;;
      esac
      echo "$size ${length:--} ${end:--} $f"
    done' sh "$model_folder"
  [ "$fragmentation" = 1 ] || return 0
  limit=15
  run extents sh -c 'cd "$1" || exit 1
    prefix=$2
    set --
    for f in *.safetensors; do [ ! -e "$f" ] || set -- "$@" "$(readlink -f -- "$f")"; done
    [ $# -gt 0 ] || exit 1
    for f in "$@"; do echo "file $f"; done
    $prefix e4defrag -c "$@" | grep "Total/best extents"' sh "$model_folder" "$sudo"
}

group_recorded() {
  files
  for file in .commands/*; do
    case $file in *.status | *.error | '.commands/*') ;; *) section "${file##*/}" recorded "${file##*/}" ;; esac
  done
}

group_clock_start() { run clock-start date +%s.%N; }
group_clock_end() { run clock-end date +%s.%N; }

probe() {
  cd "$root" || exit 1
  echo 'spark-probe 1'
  sudo=
  if [ "$root" != / ]; then
    group recorded
    echo '#end'
    return
  fi
  [ "$(id -u)" = 0 ] || sudo='sudo -n'
  group clock_start
  chain 'group model' 'group docker' 'group kernel' 'group boot' 'group devices' 'group gpu' 'group systemd' 'group paths' \
    'group base' 'group files'
  group clock_end
  echo '#end'
}

probe
)sh";

}  // namespace spark::ops
