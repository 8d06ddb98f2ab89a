// Live rules about kernel, driver and modules (specification 3.2.3).
#include <algorithm>

#include "ops/doctor/live_context.h"
#include "ops/site/text_forms.h"

namespace spark::ops::live {
namespace {

constexpr int64_t kReserve64kKib = 45166;
constexpr const char* kSwap64k = "/swap-64k.img";
constexpr const char* kSwap4k = "/swap.img";
constexpr const char* kMemoryService = "spark3-kernel-memory.service";
constexpr const char* kModules[] = {"nvidia",    "nvidia_uvm", "nvidia_drm",
                                    "mlx5_core", "mlx5_ib",    "dgx_ec_fan_control"};

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

std::string join(const std::set<std::string>& words) {
  return join(std::vector<std::string>(words.begin(), words.end()));
}

bool has_word(const std::string& line, const std::string& word) {
  size_t at = 0;
  while ((at = line.find(word, at)) != std::string::npos) {
    const bool begins = at == 0 || line[at - 1] == ' ';
    const size_t end = at + word.size();
    if (begins && (end == line.size() || line[end] == ' ' || line[end] == '\n')) return true;
    at = end;
  }
  return false;
}

const KernelPolicy& policy_of(const LiveContext& context) {
  return *context.site.policy;
}

std::string page_text(const LiveNode& node) {
  const auto& size = node.facts.kernel.page_size;
  return node.facts.kernel.release + " with " + (size ? std::to_string(*size) : std::string("unknown")) +
         "-byte pages";
}

bool saver_required(const LiveContext& context) {
  return context.profile.host.kernel && context.profile.host.kernel->memory_saver_required;
}

// An error where the profile requires it, a warning where it only prepares a kernel that does not run.
void saver_finding(LiveContext& context, const LiveNode& node, const std::string& evidence,
                   const std::string& expected, const std::string& fix) {
  if (saver_required(context)) {
    context.error(node.name(), evidence, expected, fix);
  } else {
    context.warn(node.name(), evidence, expected, fix);
  }
}

void check_saver_on_disk(LiveContext& context, const LiveNode& node, const MemorySaverPolicy& saver) {
  const KernelFacts& kernel = node.facts.kernel;
  const std::string candidate = policy_of(context).candidate;
  const auto file = kernel.module_files.find("nvidia_uvm");
  if (file == kernel.module_files.end())
    return context.unknown(node, "the memory saver's module on disk", "module-files");
  const std::string install = "sudo dkms install " + saver.package + "/" + saver.version + " -k " + candidate;
  if (file->second.srcversion != saver.srcversion) {
    context.correction(node, install);
    saver_finding(context, node, "nvidia_uvm on disk has the source identity " + file->second.srcversion,
                  saver.srcversion, install);
  } else if (file->second.path.find("/updates/dkms/") == std::string::npos) {
    context.correction(node, install);
    saver_finding(context, node, "nvidia_uvm of " + candidate + " is " + file->second.path,
                  "a file under /updates/dkms/", install);
  } else if (kernel.secure_boot == true && file->second.signer.empty()) {
    saver_finding(context, node, "nvidia_uvm is not signed, and Secure Boot is on",
                  "a module signed with the enrolled key",
                  "sign the DKMS build with the enrolled key, then " + install);
  }
}

}  // namespace

void kernel_running(LiveContext& context, const LiveNode& node) {
  const KernelFacts& kernel = node.facts.kernel;
  const int64_t page_size = policy_of(context).page_size_of(kernel.release);
  if (kernel.release.empty() || !kernel.page_size)
    return context.unknown(node, "the running kernel", "page-size");
  if (page_size == *kernel.page_size) return;
  context.warn(node.name(), "runs " + page_text(node),
               policy_of(context).candidate + " with 65536 or " + policy_of(context).fallback + " with 4096",
               "boot one of the two prepared kernels");
}

void kernel_required(LiveContext& context, const LiveNode& node) {
  const auto& wanted = context.profile.host.kernel;
  const KernelFacts& kernel = node.facts.kernel;
  if (!wanted || kernel.release.empty()) return;
  const bool release = wanted->release.empty() || wanted->release == kernel.release;
  const bool pages = wanted->page_size == 0 || kernel.page_size == wanted->page_size;
  if (release && pages) return;
  context.error(node.name(), "runs " + page_text(node),
                wanted->release +
                    (wanted->page_size == 0 ? "" : " with " + std::to_string(wanted->page_size)) +
                    ", which the profile was qualified on",
                "stop the service and boot that kernel, or use the profile for this one");
}

void kernel_kho(LiveContext& context, const LiveNode& node) {
  const auto& line = node.facts.kernel.command_line;
  if (!line) return context.unknown(node, "the kernel command line", "files");
  if (has_word(*line, "kho=off")) return;
  context.correction(node, "sudo apt-get install nvidia-spark-grub-kho");
  const bool reserved = node.facts.memory.cma_total_kib.value_or(0) > 0;
  context.error(
      node.name(),
      std::string("kho=off is not on the kernel command line") +
          (reserved ? " (" + std::to_string(*node.facts.memory.cma_total_kib / 1024) + " MiB of CMA pages)"
                    : ""),
      "kho=off: with kexec handover its scratch pages make ibv_reg_mr fail with ENOMEM under pressure",
      "sudo apt-get install nvidia-spark-grub-kho, then reboot with the service stopped");
}

void kernel_driver(LiveContext& context, const LiveNode& node) {
  const std::string& driver = node.facts.kernel.driver;
  const std::string& wanted = policy_of(context).driver;
  if (driver == wanted) return;
  const std::string evidence =
      driver.empty() ? "no NVIDIA driver is loaded" : "the loaded NVIDIA driver is " + driver;
  const bool newer_branch = driver.rfind("6", 0) == 0 && driver.find('.') == 3;
  const std::string fix =
      newer_branch ? "stay on " + wanted + ": with 64 KiB pages this branch maps DMA unaligned (Xid 31)"
                   : "install " + wanted + " and reboot with the service stopped";
  if (saver_required(context) || driver.empty()) {
    context.error(node.name(), evidence, wanted, fix);
  } else {
    context.warn(node.name(), evidence, wanted, fix);
  }
}

void kernel_build_note(LiveContext& context, const LiveNode& node) {
  const auto& wanted = policy_of(context).rm_build_note;
  if (!wanted || node.facts.kernel.driver.empty()) return;
  const std::string& note = node.facts.kernel.build_note;
  if (note.empty()) return context.unknown(node, "the build id of the loaded nvidia module", "build-note");
  if (note.find(*wanted) != std::string::npos || wanted->find(note) != std::string::npos) return;
  context.error(node.name(), "the loaded nvidia module has the build id " + note, *wanted,
                "load the qualified build of the driver");
}

void kernel_packages(LiveContext& context, const LiveNode& node) {
  const auto& installed = node.facts.kernel.packages;
  if (!installed) return context.unknown(node, "package versions", "packages");
  std::string wrong, command;
  for (const auto& [package, version] : policy_of(context).packages) {
    const auto found = installed->find(package);
    if (found != installed->end() && found->second == version) continue;
    wrong += (wrong.empty() ? "" : ", ") + package + " is " +
             (found == installed->end() ? "absent" : found->second);
    command += " " + package + "=" + version;
  }
  if (wrong.empty()) return;
  context.correction(node, "sudo apt-get install" + command);
  context.warn(node.name(), wrong, "the versions of " + context.profile.host.kernel_policy,
               "sudo apt-get install" + command);
}

void kernel_boot_files(LiveContext& context, const LiveNode& node) {
  const auto& files = node.facts.kernel.boot_files;
  if (files.empty()) return context.unknown(node, "the boot files", "boot");
  std::string missing;
  for (const std::string& release : {policy_of(context).candidate, policy_of(context).fallback}) {
    for (const char* name : {"/boot/vmlinuz-", "/boot/initrd.img-", "/boot/config-"}) {
      const auto found = files.find(name + release);
      if (found == files.end() || !found->second) missing += (missing.empty() ? "" : ", ") + (name + release);
    }
  }
  if (missing.empty()) return;
  context.warn(node.name(), missing + " is missing or empty",
               "kernel, initial file system and configuration of both releases",
               "reinstall the kernel package, or sudo update-initramfs -c -k RELEASE");
}

void kernel_headers(LiveContext& context, const LiveNode& node) {
  const KernelFacts& kernel = node.facts.kernel;
  const std::string& candidate = policy_of(context).candidate;
  const auto headers = kernel.boot_files.find("/usr/src/linux-headers-" + candidate);
  if (headers != kernel.boot_files.end() && !headers->second) {
    context.warn(node.name(), "the headers of " + candidate + " are missing",
                 "/usr/src/linux-headers-" + candidate,
                 "sudo apt-get install linux-headers-" + candidate + "; DKMS builds nothing without them");
  }
  if (!kernel.boot_files.empty() && !kernel.pages_64k.contains(candidate)) {
    context.warn(node.name(), "the configuration of " + candidate + " does not say CONFIG_ARM64_64K_PAGES=y",
                 "a kernel for 64 KiB pages", "install the candidate kernel of the policy");
  }
}

void kernel_cpupower(LiveContext& context, const LiveNode& node) {
  const auto tool =
      node.facts.kernel.boot_files.find("/usr/lib/linux-tools/" + policy_of(context).candidate + "/cpupower");
  if (tool == node.facts.kernel.boot_files.end() || tool->second) return;
  context.warn(
      node.name(), "cpupower of " + policy_of(context).candidate + " is missing", tool->first,
      "sudo apt-get install linux-tools-" + policy_of(context).candidate + "; the governor service needs it");
}

void kernel_governor(LiveContext& context, const LiveNode& node) {
  const auto& governors = node.facts.kernel.governors;
  if (governors.empty()) return context.unknown(node, "the CPU governor", "files");
  if (governors.size() == 1 && *governors.begin() == "performance") return;
  context.correction(node, "sudo systemctl restart nv-cpu-governor.service");
  context.warn(
      node.name(), "CPU governors are " + join(governors), "performance on every core",
      "sudo systemctl restart nv-cpu-governor.service (it needs the linux-tools of the running kernel)");
}

void kernel_modules(LiveContext& context, const LiveNode& node) {
  const auto& files = node.facts.kernel.module_files;
  if (files.empty()) return context.unknown(node, "the candidate's modules", "module-files");
  const KernelPolicy& policy = policy_of(context);
  for (const char* name : kModules) {
    const auto found = files.find(name);
    if (found == files.end()) {
      context.warn(node.name(), std::string(name) + " does not exist for " + policy.candidate, "the module",
                   "install the packages of " + context.profile.host.kernel_policy);
    } else if (found->second.vermagic != policy.candidate) {
      context.warn(node.name(), std::string(name) + " was built for " + found->second.vermagic,
                   policy.candidate, "sudo dkms autoinstall -k " + policy.candidate);
    } else if (std::string_view(name).rfind("nvidia", 0) == 0 && found->second.version != policy.driver) {
      context.warn(node.name(),
                   std::string(name) + " of " + policy.candidate + " is version " + found->second.version,
                   policy.driver, "install linux-modules-nvidia-580-open-" + policy.candidate);
    }
  }
}

void kernel_fan_dkms(LiveContext& context, const LiveNode& node) {
  const auto& dkms = node.facts.kernel.dkms;
  if (!dkms) return context.unknown(node, "the DKMS state", "dkms");
  const std::string& candidate = policy_of(context).candidate;
  const bool installed = std::any_of(dkms->begin(), dkms->end(), [&](const std::string& line) {
    return line.rfind("dgx-spark-fan-control/", 0) == 0 &&
           line.find(", " + candidate + ",") != std::string::npos &&
           line.find(": installed") != std::string::npos;
  });
  if (installed) return;
  context.correction(node, "sudo dkms autoinstall -k " + candidate);
  context.warn(node.name(), "the fan driver is not built for " + candidate,
               "dgx-spark-fan-control installed for it", "sudo dkms autoinstall -k " + candidate);
}

void kernel_signing(LiveContext& context, const LiveNode& node) {
  const KernelFacts& kernel = node.facts.kernel;
  if (!kernel.secure_boot) return context.unknown(node, "the Secure Boot state", "secure-boot");
  if (!*kernel.secure_boot) return;
  const auto fan = kernel.module_files.find("dgx_ec_fan_control");
  const bool is_signed = fan != kernel.module_files.end() && !fan->second.signer.empty();
  if (is_signed && kernel.fan_key_enrolled == true) return;
  const std::string evidence = !is_signed
                                   ? "the fan driver of " + policy_of(context).candidate + " is not signed"
                               : !kernel.fan_key_enrolled ? "enrolment of the fan driver's key is unverified"
                                                          : "the fan driver's key is not enrolled";
  context.warn(node.name(), "Secure Boot is on and " + evidence, "a signed module and its enrolled key",
               "sudo mokutil --import " + policy_of(context).fan_signing_certificate +
                   ", reboot and confirm on the console");
}

void kernel_grub_entry(LiveContext& context, const LiveNode& node) {
  const GrubFacts& grub = node.facts.kernel.grub;
  if (!grub.known) return context.unknown(node, "the GRUB menu", "grub-menu");
  const KernelPolicy& policy = policy_of(context);
  for (const std::string& release : {policy.candidate, policy.fallback}) {
    const bool found = std::any_of(grub.entries.begin(), grub.entries.end(),
                                   [&](const auto& entry) { return entry.second == release; });
    if (found) continue;
    context.correction(node, "sudo update-grub");
    context.warn(node.name(), release + " is not in the GRUB menu", "an entry for both kernels",
                 "sudo update-grub");
  }
}

void kernel_grub_default(LiveContext& context, const LiveNode& node) {
  const GrubFacts& grub = node.facts.kernel.grub;
  if (!grub.known) return;
  const std::string& wanted = policy_of(context).default_boot;
  const auto found = grub.entries.find(grub.default_entry);
  if (found != grub.entries.end() && found->second == wanted) return;
  const std::string evidence = found == grub.entries.end()
                                   ? "the default boot entry is not pinned by an entry's id"
                                   : "the default boot entry starts " + found->second;
  std::string pin = "gnulinux-advanced-<uuid>>gnulinux-" + wanted + "-advanced-<uuid>";
  for (const auto& [id, release] : grub.entries) {
    if (release == wanted && id.find('>') != std::string::npos) pin = id;
  }
  const std::string fix =
      "write GRUB_DEFAULT=\"" + pin + "\" to /etc/default/grub.d/zz-spark-kernel-trial.cfg, sudo update-grub";
  context.correction(
      node,
      "sudo sh -c " + shell_quote("echo 'GRUB_DEFAULT=\"" + pin +
                                  "\"' > /etc/default/grub.d/zz-spark-kernel-trial.cfg && update-grub"));
  context.warn(node.name(), evidence, "a pin to " + wanted, fix);
}

void kernel_boot_override(LiveContext& context, const LiveNode& node) {
  const GrubFacts& grub = node.facts.kernel.grub;
  if (!grub.known || grub.next_entry.empty()) return;
  context.correction(node, "sudo grub-editenv - unset next_entry");
  context.warn(node.name(), "a one-shot boot entry is armed: " + grub.next_entry, "no override",
               "inspect it with grub-editenv list; cancel with sudo grub-editenv - unset next_entry");
}

void kernel_memory_policy(LiveContext& context, const LiveNode& node) {
  if (!context.on_64k(node)) return;
  const KernelFacts& kernel = node.facts.kernel;
  const std::string reserve = kernel.min_free_kib ? std::to_string(*kernel.min_free_kib) : "unknown";
  if (kernel.huge_pages == "never" && kernel.min_free_kib == kReserve64kKib) return;
  context.correction(node, std::string("sudo systemctl restart ") + kMemoryService);
  context.warn(
      node.name(),
      "transparent huge pages are " + (kernel.huge_pages.empty() ? "unknown" : kernel.huge_pages) +
          ", vm.min_free_kbytes is " + reserve,
      "never and " + std::to_string(kReserve64kKib) + " on 64 KiB pages",
      std::string("journalctl -u ") + kMemoryService + ", then sudo systemctl restart " + kMemoryService);
}

void kernel_swap_file(LiveContext& context, const LiveNode& node) {
  const KernelFacts& kernel = node.facts.kernel;
  if (!kernel.swaps_known || !kernel.page_size)
    return context.unknown(node, "the active swap files", "files");
  const std::string wanted = context.on_64k(node) ? kSwap64k : kSwap4k;
  if (kernel.swaps.size() == 1 && kernel.swaps[0] == wanted) return;
  context.warn(node.name(),
               kernel.swaps.empty() ? "no swap is active" : "active swap is " + join(kernel.swaps),
               "exactly " + wanted + " with " + std::to_string(*kernel.page_size) + "-byte pages",
               "never remove an active swap file; restart " + std::string(kMemoryService) + " or reboot");
}

void kernel_memory_service(LiveContext& context, const LiveNode& node) {
  if (!context.on_64k(node)) return;
  if (!node.facts.host.units) return context.unknown(node, "the memory service", "units");
  const auto found = node.facts.host.units->find(kMemoryService);
  if (found != node.facts.host.units->end() && found->second.active == "active") return;
  context.correction(node, std::string("sudo systemctl restart ") + kMemoryService);
  context.warn(
      node.name(),
      std::string(kMemoryService) + " is " +
          (found == node.facts.host.units->end() || !found->second.exists() ? "not installed"
                                                                            : found->second.active),
      "active: it chooses the swap file and the reserve for the page size",
      std::string("journalctl -u ") + kMemoryService + ", then sudo systemctl restart " + kMemoryService);
}

void kernel_memory_saver(LiveContext& context, const LiveNode& node) {
  const auto& saver = policy_of(context).memory_saver;
  if (!saver) return;
  const KernelFacts& kernel = node.facts.kernel;
  const std::string& candidate = policy_of(context).candidate;
  const std::string line = saver->package + "/" + saver->version + ", " + candidate + ", aarch64: installed";
  const std::string install =
      "sudo dkms install " + saver->package + "/" + saver->version + " -k " + candidate;
  if (!kernel.dkms) {
    context.unknown(node, "the memory saver's DKMS state", "dkms");
  } else {
    const bool found = std::any_of(kernel.dkms->begin(), kernel.dkms->end(), [&](const std::string& each) {
      return each == line || each.rfind(line + " (", 0) == 0;
    });
    if (!found) {
      context.correction(node, install);
      saver_finding(context, node, "DKMS does not have " + line, line,
                    "register the pinned source, then " + install);
    }
  }
  check_saver_on_disk(context, node, *saver);
  if (!context.on_64k(node)) return;
  if (kernel.leaf_packing != "Y") {
    saver_finding(
        context, node,
        "uvm_pack_sysmem_leaf_tables is " + (kernel.leaf_packing.empty() ? "unknown" : kernel.leaf_packing),
        "Y: page tables otherwise waste whole 64 KiB pages",
        "stop GPU clients and reboot; `stock` means that the memory saver is not loaded");
  } else if (kernel.uvm_source != saver->srcversion) {
    saver_finding(context, node, "the loaded nvidia_uvm has the source identity " + kernel.uvm_source,
                  saver->srcversion,
                  "stop GPU clients and reboot: the module on disk is not the one that runs");
  }
}

void kernel_watermark_boost(LiveContext& context, const LiveNode& node) {
  const auto& boost = node.facts.kernel.watermark_boost;
  if (!boost) return context.unknown(node, "vm.watermark_boost_factor", "files");
  if (*boost == 0) return;
  context.correction(
      node,
      "sudo sh -c " + shell_quote("echo vm.watermark_boost_factor=0 > /etc/sysctl.d/90-watermark-boost.conf "
                                  "&& sysctl -p /etc/sysctl.d/90-watermark-boost.conf"));
  context.warn(node.name(), "vm.watermark_boost_factor is " + std::to_string(*boost),
               "0: it hides up to 0.87 GiB from MemAvailable, which the guards read",
               "echo vm.watermark_boost_factor=0 into /etc/sysctl.d/90-watermark-boost.conf and load it");
}

void kernel_log(LiveContext& context, const LiveNode& node) {
  const auto& log = node.facts.kernel.log;
  if (!log) return context.unknown(node, "the kernel log", "kernel-log");
  std::vector<std::string> memory, faults, killed, bus;
  for (const std::string& line : *log) {
    if (line.find("NV_ERR_NO_MEMORY") != std::string::npos) memory.push_back(line);
    if (line.find("NVRM: Xid") != std::string::npos) faults.push_back(line);
    if (line.find("Out of memory") != std::string::npos || line.find("oom-kill") != std::string::npos)
      killed.push_back(line);
    if (line.find("AER: ") != std::string::npos) bus.push_back(line);
  }
  const auto report = [&](const std::vector<std::string>& lines, const std::string& what,
                          const std::string& fix, bool error) {
    if (lines.empty()) return;
    const std::string evidence =
        "the kernel log of this boot has " + what + " (" + std::to_string(lines.size()) + " lines)";
    const std::vector<std::string> last = {lines.back()};
    error ? context.error(node.name(), evidence, "no such line", fix, last)
          : context.warn(node.name(), evidence, "no such line", fix, last);
  };
  report(memory, "NV_ERR_NO_MEMORY: the driver ran out of memory",
         "do not launch again before a reboot; then guarded only", true);
  report(faults, "GPU faults (Xid)", "stop the service and reboot; with Xid 31 look at the driver version",
         true);
  report(killed, "processes killed for memory", "find out what else runs on the node", false);
  report(bus, "PCIe errors (AER)",
         "power the machine off and on; if they return, the NIC or its slot is faulty", false);
}

void kernel_modprobe(LiveContext& context, const LiveNode& node) {
  struct Hazard {
    const char* text;
    const char* because;
  };
  static constexpr Hazard kHazards[] = {
      {"modeset=0", "the display carve-out needs nvidia-drm with mode setting"},
      {"fbdev=0", "the display carve-out needs the driver's framebuffer"},
      {"uvm_pack_sysmem_leaf_tables=N", "page tables would waste whole 64 KiB pages"},
      {"uvm_pack_sysmem_leaf_tables=0", "page tables would waste whole 64 KiB pages"},
  };
  for (const std::string& line : node.facts.kernel.modprobe_options) {
    std::string problem;
    for (const Hazard& hazard : kHazards) {
      if (line.find(": options nvidia") != std::string::npos && line.find(hazard.text) != std::string::npos)
        problem = hazard.because;
    }
    for (const char* module :
         {"blacklist nvidia", "blacklist mlx5", "blacklist ib_uverbs", "blacklist dgx_ec"}) {
      if (line.find(std::string(": ") + module) != std::string::npos)
        problem = "the module would not be loaded";
    }
    if (problem.empty()) continue;
    context.warn(node.name(), line, "no such line: at the next boot " + problem,
                 "remove the line (or its package), sudo update-initramfs -u");
  }
}

void kernel_port_range(LiveContext& context, const LiveNode& node) {
  const NetworkFacts& network = node.facts.network;
  if (!network.port_range_low || !network.port_range_high)
    return context.unknown(node, "the range of ephemeral ports", "files");
  if (!node.node.head) return;
  const auto inside = [&](int64_t port) {
    if (port < *network.port_range_low || port > *network.port_range_high) return false;
    const std::string reserved = "," + network.reserved_ports + ",";
    return reserved.find("," + std::to_string(port) + ",") == std::string::npos;
  };
  const std::string range =
      std::to_string(*network.port_range_low) + "-" + std::to_string(*network.port_range_high);
  const int64_t master = context.profile.distributed.master_port;
  if (inside(master)) {
    context.error(node.name(),
                  "the rendezvous port " + std::to_string(master) + " is in the ephemeral range " + range,
                  "a port outside: an outgoing connection can hold it, and the head then fails to start",
                  "set distributed.master_port below " + std::to_string(*network.port_range_low) +
                      ", or net.ipv4.ip_local_reserved_ports=" + std::to_string(master));
  }
  const auto& port = context.site.engine.port;
  if (port && inside(*port)) {
    context.warn(node.name(), "the API port " + std::to_string(*port) + " is in the ephemeral range " + range,
                 "a port outside", "reserve it: net.ipv4.ip_local_reserved_ports=" + std::to_string(*port));
  }
}

}  // namespace spark::ops::live
