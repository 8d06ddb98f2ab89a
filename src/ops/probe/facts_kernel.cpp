// Identity, kernel and modules.
#include <algorithm>

#include "ops/probe/text_reader.h"
#include "ops/site/text_forms.h"

namespace spark::ops::probe {
namespace {

std::string unquoted(std::string text) {
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') return text.substr(1, text.size() - 2);
  return text;
}

// KEY="value" lines, as in /etc/os-release.
std::string value_of(const std::string* content, const std::string& key) {
  if (content == nullptr) return {};
  for (const std::string& line : lines_of(*content)) {
    if (line.rfind(key + "=", 0) == 0) return unquoted(line.substr(key.size() + 1));
  }
  return {};
}

// "always [madvise] never" -> "madvise"
std::string chosen(const std::string& text) {
  const size_t open = text.find('[');
  const size_t close = text.find(']', std::min(open, text.size()));
  if (open == std::string::npos || close == std::string::npos) return text;
  return text.substr(open + 1, close - open - 1);
}

// The last 20 bytes of an ELF note, whatever stands before them.
std::string build_id(const std::string& bytes) {
  std::string digits;
  for (const char c : bytes) {
    if (is_hex(std::string_view(&c, 1))) digits += c;
  }
  return digits.size() > 40 ? digits.substr(digits.size() - 40) : digits;
}

void read_modules(const FactReader& reader) {
  KernelFacts& kernel = reader.facts().kernel;
  if (const CommandAnswer* modules = reader.answer("modules")) {
    for (const std::string& line : lines_of(modules->output)) {
      const auto words = words_of(line);
      if (!words.empty()) kernel.loaded_modules.insert(words[0]);
    }
  }
  if (const CommandAnswer* files = reader.answer("module-files")) {
    ModuleFile current;
    for (const std::string& line : lines_of(files->output)) {
      const size_t colon = line.find(':');
      if (colon == std::string::npos) continue;
      const std::string key = line.substr(0, colon), value = trimmed(line.substr(colon + 1));
      if (key == "filename") current = {value, {}, {}, {}, {}};
      if (key == "version") current.version = value;
      if (key == "srcversion") current.srcversion = value;
      if (key == "vermagic") current.vermagic = words_of(value).empty() ? value : words_of(value)[0];
      if (key == "signer") current.signer = value;
      // modinfo names a module by its file: /lib/modules/.../nvidia-uvm.ko.zst
      std::string name = current.path.substr(current.path.rfind('/') + 1);
      name = name.substr(0, name.find('.'));
      std::replace(name.begin(), name.end(), '-', '_');
      if (!name.empty()) kernel.module_files[name] = current;
    }
  }
  if (const CommandAnswer* dkms = reader.answer("dkms")) kernel.dkms = lines_of(dkms->output);
}

void read_packages(const FactReader& reader) {
  // dpkg-query fails when one of the packages is unknown, and still prints the others.
  const CommandAnswer* answer = reader.dump().command("packages");
  if (answer == nullptr) return;
  if (answer->status > 1) {
    reader.facts().failures["packages"] = answer->failure();
    return;
  }
  std::map<std::string, std::string> installed;
  for (const std::string& line : lines_of(answer->output)) {
    const auto words = words_of(line);
    if (words.size() == 3 && words[2] == "installed") installed[words[0]] = words[1];
  }
  reader.facts().kernel.packages = std::move(installed);
}

}  // namespace

void read_identity(const FactReader& reader) {
  IdentityFacts& identity = reader.facts().identity;
  identity.host_name = reader.text("/proc/sys/kernel/hostname");
  identity.machine_id = reader.text("/etc/machine-id");
  identity.boot_id = reader.text("/proc/sys/kernel/random/boot_id");
  identity.product = reader.text("/sys/class/dmi/id/product_name");
  identity.os_name = value_of(reader.dump().file("/etc/os-release"), "PRETTY_NAME");
  identity.dgx_version = value_of(reader.dump().file("/etc/dgx-release"), "DGX_OTA_VERSION");
  if (identity.dgx_version.empty())
    identity.dgx_version = value_of(reader.dump().file("/etc/dgx-release"), "DGX_SWBUILD_VERSION");
  if (const CommandAnswer* user = reader.answer("user")) identity.user = trimmed(user->output);
  if (const CommandAnswer* machine = reader.answer("machine")) identity.machine = trimmed(machine->output);
  const CommandAnswer* id = reader.answer("user-id");
  const CommandAnswer* sudo = reader.dump().command("sudo");
  if (id != nullptr && trimmed(id->output) == "0") {
    identity.privileged = true;
  } else if (sudo != nullptr) {
    identity.privileged = sudo->ok();
    if (!sudo->ok()) reader.facts().failures["sudo"] = sudo->failure();
  }
  const std::string uptime = reader.text("/proc/uptime");
  if (!uptime.empty()) identity.uptime_s = decimal(uptime.substr(0, uptime.find(' ')));
}

void read_kernel(const FactReader& reader) {
  KernelFacts& kernel = reader.facts().kernel;
  kernel.release = reader.text("/proc/sys/kernel/osrelease");
  if (const std::string* line = reader.dump().file("/proc/cmdline")) kernel.command_line = *line;
  if (const CommandAnswer* size = reader.answer("page-size")) {
    kernel.page_size = whole_number(trimmed(size->output));
    if (!kernel.page_size)
      reader.fault("page-size", "is \"" + size->output.substr(0, 40) + "\", not a number");
  }
  kernel.driver = reader.text("/sys/module/nvidia/version");
  kernel.nvidia_source = reader.text("/sys/module/nvidia/srcversion");
  kernel.uvm_source = reader.text("/sys/module/nvidia_uvm/srcversion");
  kernel.leaf_packing = reader.text("/sys/module/nvidia_uvm/parameters/uvm_pack_sysmem_leaf_tables");
  if (kernel.leaf_packing.empty() && !kernel.uvm_source.empty()) kernel.leaf_packing = "stock";
  if (const CommandAnswer* note = reader.answer("build-note")) kernel.build_note = build_id(note->output);
  kernel.huge_pages = chosen(reader.text("/sys/kernel/mm/transparent_hugepage/enabled"));
  kernel.watermark_boost = reader.number("/proc/sys/vm/watermark_boost_factor");
  kernel.min_free_kib = reader.number("/proc/sys/vm/min_free_kbytes");
  kernel.panic_s = reader.number("/proc/sys/kernel/panic");
  kernel.panic_on_oops = reader.number("/proc/sys/kernel/panic_on_oops");
  kernel.panic_on_oom = reader.number("/proc/sys/vm/panic_on_oom");
  if (const std::string* swaps = reader.dump().file("/proc/swaps")) {
    kernel.swaps_known = true;
    const auto lines = lines_of(*swaps);
    for (size_t i = 1; i < lines.size(); ++i) {
      if (const auto words = words_of(lines[i]); !words.empty()) kernel.swaps.push_back(words[0]);
    }
  }
  for (const auto& [path, content] : reader.dump().files) {
    if (path.rfind("/sys/devices/system/cpu/cpufreq/", 0) == 0) kernel.governors.insert(trimmed(content));
    if (path.rfind("/etc/modprobe.d/", 0) == 0) {
      for (const std::string& line : lines_of(content))
        kernel.modprobe_options.push_back(path + ": " + trimmed(line));
    }
  }
  read_modules(reader);
  read_packages(reader);
  // dmesg's grep finds nothing on a healthy node and says so with status 1; tail hides it.
  if (const CommandAnswer* log = reader.answer("kernel-log")) {
    const bool refused = log->output.empty() && !log->error.empty();
    if (refused) {
      reader.facts().failures["kernel-log"] = "failed: " + log->error.substr(0, log->error.find('\n'));
    } else {
      kernel.log = lines_of(log->output);
    }
  }
}

}  // namespace spark::ops::probe
