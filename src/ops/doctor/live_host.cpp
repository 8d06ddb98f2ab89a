// Live rules about display, boot, services and the recovery policy of a node (specification 3.2.2, 3.10).
#include <algorithm>

#include "common/units.h"
#include "ops/doctor/live_context.h"
#include "ops/probe/script.h"

namespace spark::ops::live {
namespace {

bool is_ubuntu_entry(const std::string& label) {
  std::string lower = label;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower.rfind("ubuntu", 0) == 0 || lower.find("\\efi\\ubuntu\\") != std::string::npos;
}

constexpr const char* kApply = "on the node: spark host apply --apply";

}  // namespace

void host_boot_target(LiveContext& context, const LiveNode& node) {
  const std::string& target = node.facts.host.boot_target;
  if (target.empty()) return context.unknown(node, "the boot target", "boot-target");
  if (target == "multi-user.target") return;
  context.warn(node.name(), "boots into " + target, "multi-user.target",
               "sudo systemctl set-default multi-user.target");
}

void host_display_manager(LiveContext& context, const LiveNode& node) {
  if (!node.facts.host.units) return context.unknown(node, "the display manager's state", "units");
  const Unit* unit = node.unit("display-manager.service");
  if (unit == nullptr || !unit->running()) return;
  context.error(node.name(), "a display manager is " + unit->active,
                "none: a desktop uses the model's memory",
                "sudo systemctl disable --now display-manager.service");
}

void host_boot_order(LiveContext& context, const LiveNode& node) {
  const auto& entries = node.facts.host.boot_entries;
  if (!entries) return context.unknown(node, "the UEFI boot order", "efi");
  if (!entries->empty() && is_ubuntu_entry(entries->front().label)) return;
  std::string first, rest;
  for (const auto& entry : *entries) {
    if (first.empty() && is_ubuntu_entry(entry.label)) {
      first = entry.number;
    } else {
      rest += "," + entry.number;
    }
  }
  const std::string evidence = entries->empty() ? "the UEFI boot order is empty"
                                                : "the first UEFI boot entry is " + entries->front().label;
  context.warn(node.name(), evidence,
               "the installed system first: a network entry costs a minute of time-outs per boot",
               first.empty() ? "no entry starts the installed system: reinstall the boot loader"
                             : "sudo efibootmgr --bootorder " + first + rest);
}

void host_modeset(LiveContext& context, const LiveNode& node) {
  const std::string& value = node.facts.host.drm_modeset;
  if (value.empty()) return context.unknown(node, "the mode setting of nvidia-drm", "sudo");
  if (value == "Y") return;
  context.error(node.name(), "nvidia-drm runs without mode setting",
                "modeset=Y: the display carve-out offers no buffers otherwise",
                "sudo apt-get purge nvidia-drm-options-modeset0, then reboot with the service stopped");
}

void host_fbdev(LiveContext& context, const LiveNode& node) {
  const std::string& value = node.facts.host.drm_fbdev;
  if (value.empty()) return context.unknown(node, "the framebuffer setting of nvidia-drm", "sudo");
  if (value == "Y") return;
  context.error(node.name(), "nvidia-drm runs with fbdev=" + value, "fbdev=Y",
                "remove the fbdev=0 option from /etc/modprobe.d, sudo update-initramfs -u, reboot");
}

void host_drm_card(LiveContext& context, const LiveNode& node) {
  if (node.facts.host.nvidia_card) return;
  context.error(node.name(), "no display card belongs to the nvidia driver",
                "one: weights lie in its carve-out", "check nvidia-drm modeset=Y; ls -l /dev/dri/by-path");
}

void host_drm_master(LiveContext& context, const LiveNode& node) {
  const auto& masters = node.facts.host.drm_masters;
  if (!node.facts.host.nvidia_card) return;
  if (!masters) return context.unknown(node, "who holds the display", "drm-clients");
  if (masters->empty()) return;
  std::string list;
  for (const std::string& master : *masters) list += (list.empty() ? "" : ", ") + master;
  context.error(node.name(), "the display is held by " + list, "nobody: the text console stops drawing",
                "stop or restart the holder; a serving worker releases the display right after its start");
}

void host_console(LiveContext& context, const LiveNode& node) {
  const auto& mode = node.facts.host.console_mode;
  if (!mode) return context.unknown(node, "the console's mode", "console");
  if (*mode == 0) return;
  context.error(node.name(), node.facts.host.console + " is in graphics mode", "text mode", kApply);
}

void host_splash(LiveContext& context, const LiveNode& node) {
  const auto& line = node.facts.kernel.command_line;
  if (!line) return context.unknown(node, "the kernel command line", "files");
  const std::string padded = " " + *line + " ";
  if (padded.find(" splash ") == std::string::npos) return;
  const GrubFacts& grub = node.facts.kernel.grub;
  const bool pending = grub.known && grub.lines_with_splash == 0;
  context.warn(node.name(), "splash is on the kernel command line",
               "no splash: a display shows no text otherwise",
               pending ? "reboot to apply; GRUB no longer has it"
                       : std::string(kApply) + ", then reboot with the service stopped");
}

void host_idle_services(LiveContext& context, const LiveNode& node) {
  if (!node.facts.host.units) return context.unknown(node, "the state of idle services", "units");
  std::string found;
  for (const std::string& name : idle_units()) {
    const Unit* unit = node.unit(name);
    if (unit == nullptr || !unit->exists()) continue;
    if (unit->running() || unit->enabled() || unit->alias) found += " " + name;
  }
  if (found.empty()) return;
  context.warn(node.name(), "idle services use memory:" + found, "none of them",
               "sudo systemctl disable --now" + found);
}

void host_nvme(LiveContext& context, const LiveNode& node) {
  const std::string& policy = context.profile.host.nvme_coalescing;
  if (policy == "ignore") return;
  const auto& values = node.facts.host.nvme_coalescing;
  if (values.empty()) return context.unknown(node, "NVMe interrupt coalescing", "nvme");
  const bool wanted = policy == "on";
  for (const auto& [device, value] : values) {
    if (value == "unreadable") {
      context.warn(node.name(), "interrupt coalescing of " + device + " cannot be read", policy,
                   "sudo nvme get-feature /dev/" + device + " -f 8");
      continue;
    }
    const bool on = value.find_first_not_of('0') != std::string::npos;
    if (on == wanted) continue;
    context.warn(node.name(),
                 "interrupt coalescing of " + device + " is " + (on ? "on (0x" + value + ")" : "off"),
                 policy + ", as host.nvme_coalescing says",
                 wanted ? "sudo systemctl unmask nvidia-nvme-interrupt-coalescing.service, then start it"
                        : "sudo systemctl mask --now nvidia-nvme-interrupt-coalescing.service and run its "
                          "disable script");
  }
  const Unit* service = node.unit("nvidia-nvme-interrupt-coalescing.service");
  if (wanted || service == nullptr || !service->exists() || service->file.rfind("masked", 0) == 0) return;
  context.warn(node.name(), "nvidia-nvme-interrupt-coalescing.service is " + service->file,
               "masked: it sets the feature at every boot",
               "sudo systemctl mask nvidia-nvme-interrupt-coalescing.service");
}

void host_fans(LiveContext& context, const LiveNode& node) {
  const KernelFacts& kernel = node.facts.kernel;
  if (!kernel.dkms) return context.unknown(node, "the fan driver's DKMS state", "dkms");
  // Only the first missing layer: what lies above it cannot work.
  const bool built = std::any_of(kernel.dkms->begin(), kernel.dkms->end(), [&](const std::string& line) {
    return line.rfind("dgx-spark-fan-control/", 0) == 0 &&
           line.find(", " + kernel.release + ",") != std::string::npos;
  });
  const Unit* service = node.unit("dgx-fan-control.service");
  if (!built) {
    context.error(node.name(), "the fan driver is not built for the running kernel",
                  "dgx-spark-fan-control in DKMS for " + kernel.release,
                  "sudo dkms autoinstall -k " + kernel.release);
  } else if (!kernel.loaded_modules.contains("dgx_ec_fan_control")) {
    context.error(
        node.name(), "the fan driver is not loaded", "dgx_ec_fan_control",
        "sudo modprobe dgx_ec_fan_control; if it is refused, check the enrolment of its signing key");
  } else if (node.facts.host.fan_devices != 1) {
    context.error(
        node.name(),
        std::to_string(node.facts.host.fan_devices.value_or(0)) + " cooling devices dgx_ec_fan_floor exist",
        "one", "sudo dmesg | grep -i fan: some firmware rejects the capability read");
  } else if (!node.facts.host.units) {
    context.unknown(node, "the fan service", "units");
  } else if (service == nullptr || !service->exists()) {
    context.error(node.name(), "dgx-fan-control.service is not installed",
                  "installed (bench starts and stops it)", "install its unit file");
  }
}

void host_failed_units(LiveContext& context, const LiveNode& node) {
  const auto& failed = node.facts.host.failed_units;
  if (!failed) return context.unknown(node, "failed units", "failed-units");
  if (failed->empty()) return;
  std::string list;
  for (const std::string& unit : *failed) list += " " + unit;
  context.warn(node.name(), "units have failed:" + list, "none", "systemctl status" + list);
}

void host_boot_complete(LiveContext& context, const LiveNode& node) {
  const std::string& state = node.facts.host.system_state;
  if (state.empty()) return context.unknown(node, "whether the boot is complete", "system-state");
  if (state != "starting" && state != "initializing") return;
  const auto& uptime = node.facts.identity.uptime_s;
  context.warn(
      node.name(),
      "is still booting" + (uptime ? " after " + format_fixed(*uptime / 60, 0) + " min" : std::string()),
      "a finished boot",
      "systemctl list-jobs; a boot gate such as plymouth-quit-wait.service has no limit without the policy");
}

void recovery_files(LiveContext& context, const LiveNode& node) {
  if (context.options.policy_files.empty()) return;
  const HostFacts& host = node.facts.host;
  if (!host.policy_files_known) return context.unknown(node, "the recovery policy's files", "policy-files");
  std::vector<std::string> wrong;
  const Unit* tailscale = node.unit("tailscaled.service");
  const bool without_tailscale = tailscale == nullptr || !tailscale->exists();
  for (const auto& [path, digest] : context.options.policy_files) {
    if (without_tailscale && path.find("tailscaled") != std::string::npos) continue;
    const auto found = host.policy_files.find(path);
    if (found == host.policy_files.end())
      wrong.push_back(path + " is missing");
    else if (found->second != digest)
      wrong.push_back(path + " differs");
  }
  if (wrong.empty()) return;
  context.warn(node.name(),
               std::to_string(wrong.size()) + " files of the recovery policy are not as reviewed",
               "all of host/, as reviewed", kApply, wrong);
}

void recovery_watchdog(LiveContext& context, const LiveNode& node) {
  const HostFacts& host = node.facts.host;
  if (!host.runtime_watchdog_s || !host.reboot_watchdog_s)
    return context.unknown(node, "the hardware watchdog", "manager");
  if (*host.runtime_watchdog_s == 30 && *host.reboot_watchdog_s == 600) return;
  context.warn(node.name(),
               "the runtime watchdog is " + format_fixed(*host.runtime_watchdog_s, 0) +
                   " s, the reboot watchdog " + format_fixed(*host.reboot_watchdog_s, 0) + " s",
               "30 s and 600 s: a hung node then resets itself", kApply);
}

void recovery_panic(LiveContext& context, const LiveNode& node) {
  const KernelFacts& kernel = node.facts.kernel;
  if (!kernel.panic_s || !kernel.panic_on_oops || !kernel.panic_on_oom)
    return context.unknown(node, "the panic settings", "files");
  if (*kernel.panic_on_oom != 0) {
    context.error(node.name(), "vm.panic_on_oom is " + std::to_string(*kernel.panic_on_oom),
                  "0: running out of memory must not reboot the node",
                  "sudo sysctl vm.panic_on_oom=0; " + std::string(kApply));
  }
  if (*kernel.panic_s == 30 && *kernel.panic_on_oops == 1) return;
  context.warn(node.name(),
               "kernel.panic is " + std::to_string(*kernel.panic_s) + ", kernel.panic_on_oops " +
                   std::to_string(*kernel.panic_on_oops),
               "30 and 1: a node with a broken kernel then restarts", kApply);
}

void recovery_ssh(LiveContext& context, const LiveNode& node) {
  if (!node.facts.host.units) return context.unknown(node, "the protection of sshd", "units");
  struct Protected {
    const char* unit;
    int64_t memory_min;
  };
  for (const Protected& wanted :
       {Protected{"ssh.service", int64_t{128} << 20}, Protected{"tailscaled.service", int64_t{256} << 20}}) {
    const Unit* unit = node.unit(wanted.unit);
    if (unit == nullptr || !unit->exists()) continue;
    if (unit->oom_score_adjust == -900 && unit->memory_min_bytes == wanted.memory_min) continue;
    context.warn(node.name(), std::string(wanted.unit) + " is not protected when memory runs out",
                 "OOMScoreAdjust=-900, MemoryMin=" + std::to_string(wanted.memory_min >> 20) + "M", kApply);
  }
  const auto& sshd = node.facts.host.sshd;
  if (sshd.empty()) return context.unknown(node, "the limits of sshd", "sshd");
  static const std::pair<const char*, const char*> kLimits[] = {
      {"logingracetime", "30"}, {"maxstartups", "64:30:128"}, {"persourcemaxstartups", "32"}};
  for (const auto& [name, wanted] : kLimits) {
    const auto found = sshd.find(name);
    if (found != sshd.end() && found->second == wanted) continue;
    context.warn(node.name(),
                 std::string("sshd's ") + name + " is " + (found == sshd.end() ? "unknown" : found->second),
                 wanted, kApply);
  }
}

void recovery_plymouth(LiveContext& context, const LiveNode& node) {
  if (!node.facts.host.units) return;  // reported by recovery.ssh
  const Unit* unit = node.unit("plymouth-quit-wait.service");
  if (unit == nullptr || !unit->exists() || unit->start_limit_s == 40) return;
  const std::string limit =
      unit->start_limit_s ? format_fixed(*unit->start_limit_s, 0) + " s" : std::string("no limit");
  context.warn(node.name(), "plymouth-quit-wait.service has " + limit, "40 s", kApply);
}

void recovery_sshd(LiveContext& context, const LiveNode& node) {
  const auto& valid = node.facts.host.sshd_valid;
  if (!valid) return context.unknown(node, "whether sshd accepts its configuration", "sshd-test");
  if (*valid) return;
  context.error(node.name(), "sshd -t " + node.facts.why("sshd-test"), "a valid configuration",
                "correct it before sshd restarts");
}

void recovery_timer(LiveContext& context, const LiveNode& node) {
  if (!node.facts.host.units) return;  // reported by recovery.ssh
  const Unit* timer = node.unit("spark-management-health.timer");
  if (timer != nullptr && timer->active == "active" && timer->enabled()) return;
  const bool installed = timer != nullptr && timer->exists();
  context.warn(node.name(),
               std::string("the management probe's timer is ") +
                   (installed ? timer->active + ", " + timer->file : "not installed"),
               "enabled and active: it restarts sshd when it stops answering", kApply);
}

}  // namespace spark::ops::live
