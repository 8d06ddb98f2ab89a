// GPU, systemd, display, boot target, clocks, recovery policy.
#include <algorithm>
#include <charconv>

#include "ops/probe/text_reader.h"
#include "ops/site/text_forms.h"

namespace spark::ops::probe {
namespace {

std::optional<double> gpu_number(const std::string& field) {
  return decimal(trimmed(field));  // "[N/A]" and "[Not Supported]" are unknown
}

// "30s", "10min", "1min 30s", "0", "infinity"
std::optional<double> seconds_of(const std::string& text) {
  static constexpr std::pair<std::string_view, double> kUnits[] = {
      {"ms", 1e-3}, {"us", 1e-6}, {"min", 60}, {"h", 3600}, {"d", 86400}, {"s", 1}, {"", 1e-6}};
  double total = 0;
  const auto words = words_of(text);
  if (words.empty()) return {};
  for (const std::string& word : words) {
    const size_t digits = std::min(word.find_first_not_of("0123456789."), word.size());
    const auto value = decimal(word.substr(0, digits));
    if (!value) return {};
    const auto* unit = std::find_if(std::begin(kUnits), std::end(kUnits),
                                    [&](const auto& each) { return word.substr(digits) == each.first; });
    if (unit == std::end(kUnits)) return {};
    total += *value * unit->second;
  }
  return total;
}

std::map<std::string, std::string> properties(const std::string& text) {
  std::map<std::string, std::string> values;
  for (const std::string& line : lines_of(text)) {
    const size_t equals = line.find('=');
    if (equals != std::string::npos) values[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return values;
}

void add_unit(const std::map<std::string, std::string>& values, std::map<std::string, Unit>& units) {
  const auto value = [&](const char* key) {
    const auto found = values.find(key);
    return found == values.end() ? std::string() : found->second;
  };
  const std::string id = value("Id");
  if (id.empty()) return;
  Unit unit{value("LoadState"),
            value("ActiveState"),
            value("SubState"),
            value("UnitFileState"),
            false,
            whole_number(value("OOMScoreAdjust")),
            whole_number(value("MemoryMin"))};
  unit.start_limit_s = seconds_of(value("TimeoutStartUSec"));
  units[id] = unit;
  unit.alias = true;
  for (const std::string& name : words_of(value("Names"))) units.emplace(name, unit);
}

void read_units(const FactReader& reader) {
  HostFacts& host = reader.facts().host;
  if (const CommandAnswer* answer = reader.answer("units")) {
    std::map<std::string, Unit> units;
    std::string block;
    for (const std::string& line : lines_of(answer->output + "\n\n")) {
      if (!line.empty()) {
        block += line + "\n";
      } else if (!block.empty()) {
        add_unit(properties(block), units);
        block.clear();
      }
    }
    host.units = std::move(units);
  }
  if (const CommandAnswer* target = reader.answer("boot-target")) host.boot_target = trimmed(target->output);
  // The state is printed with exit status 1 when it is anything but "running".
  const CommandAnswer* state = reader.dump().command("system-state");
  if (state != nullptr && state->status <= 1) host.system_state = trimmed(state->output);
  if (const CommandAnswer* failed = reader.answer("failed-units")) {
    std::vector<std::string> names;
    for (const std::string& line : lines_of(failed->output)) {
      if (const auto words = words_of(line); !words.empty()) names.push_back(words[0]);
    }
    host.failed_units = std::move(names);
  }
  if (const CommandAnswer* manager = reader.answer("manager")) {
    const auto values = properties(manager->output);
    const auto seconds = [&](const char* key) {
      const auto found = values.find(key);
      return found == values.end() ? std::nullopt : seconds_of(found->second);
    };
    host.runtime_watchdog_s = seconds("RuntimeWatchdogUSec");
    host.reboot_watchdog_s = seconds("RebootWatchdogUSec");
  }
}

void read_display(const FactReader& reader) {
  HostFacts& host = reader.facts().host;
  host.drm_modeset = reader.text("/sys/module/nvidia_drm/parameters/modeset");
  host.drm_fbdev = reader.text("/sys/module/nvidia_drm/parameters/fbdev");
  static const std::string kClass = "/sys/class/drm/card";
  for (const auto& [path, content] : reader.dump().files) {
    if (path.rfind(kClass, 0) != 0) continue;
    host.cards_known = true;
    const auto number =
        whole_number(path.substr(kClass.size(), path.find('/', kClass.size()) - kClass.size()));
    const auto lines = lines_of(content);
    if (number && std::find(lines.begin(), lines.end(), "DRIVER=nvidia") != lines.end())
      host.nvidia_card = number;
  }
  // "command  tgid dev master a uid magic", one row per client; the command may contain blanks.
  if (const CommandAnswer* clients = reader.answer("drm-clients")) {
    std::vector<std::string> masters;
    for (const std::string& line : lines_of(clients->output)) {
      const auto words = words_of(line);
      if (words.size() < 7 || words[words.size() - 4] != "y") continue;
      std::string command = words[0];
      for (size_t i = 1; i + 6 < words.size(); ++i) command += " " + words[i];
      masters.push_back(command + "/" + words[words.size() - 6]);
    }
    host.drm_masters = std::move(masters);
  }
  if (const CommandAnswer* console = reader.answer("console")) {
    const auto words = words_of(console->output);
    host.console = words.empty() ? std::string() : words[0];
    host.console_mode = words.size() == 2 ? whole_number(words[1]) : std::nullopt;
    if (!host.console_mode) reader.fault("console", "is \"" + console->output.substr(0, 60) + "\"");
  }
}

// "nvme0 get-feature:0x08 (Interrupt Coalescing), Current value:0x00000107"
void read_nvme(const FactReader& reader) {
  const CommandAnswer* answer = reader.answer("nvme");
  if (answer == nullptr) return;
  for (const std::string& line : lines_of(answer->output)) {
    const auto words = words_of(line);
    if (words.empty()) continue;
    const size_t at = line.find("alue:");
    std::string value = at == std::string::npos ? std::string() : trimmed(line.substr(at + 5));
    if (value.rfind("0x", 0) == 0) value = value.substr(2);
    reader.facts().host.nvme_coalescing[words[0]] = is_hex(value) ? value : "unreadable";
  }
}

void read_clocks(const FactReader& reader) {
  HostFacts& host = reader.facts().host;
  if (const CommandAnswer* start = reader.answer("clock-start"))
    host.clock_start_s = decimal(trimmed(start->output));
  if (const CommandAnswer* end = reader.answer("clock-end")) host.clock_end_s = decimal(trimmed(end->output));
  if (const CommandAnswer* sync = reader.answer("time-sync")) {
    const auto values = properties(sync->output);
    const auto found = values.find("NTPSynchronized");
    if (found != values.end()) host.time_synchronised = found->second == "yes";
  }
}

}  // namespace

void read_gpu(const FactReader& reader) {
  if (const CommandAnswer* answer = reader.answer("gpu")) {
    const auto lines = lines_of(answer->output);
    const auto fields = lines.empty() ? std::vector<std::string>() : split(lines[0], ',');
    if (fields.size() != 9) {
      reader.fault("gpu", "is \"" + answer->output.substr(0, 80) + "\", not nine values");
    } else {
      GpuFacts gpu{trimmed(fields[0]),    trimmed(fields[1]),    trimmed(fields[2]),
                   gpu_number(fields[3]), gpu_number(fields[4]), gpu_number(fields[5]),
                   gpu_number(fields[6]), gpu_number(fields[7]), {}};
      const std::string reasons = trimmed(fields[8]);
      uint64_t bits = 0;
      if (reasons.rfind("0x", 0) == 0) {
        const auto [end, error] =
            std::from_chars(reasons.data() + 2, reasons.data() + reasons.size(), bits, 16);
        if (error == std::errc() && end == reasons.data() + reasons.size()) gpu.slowdown_reasons = bits;
      }
      reader.facts().gpu = gpu;
    }
  }
  if (const CommandAnswer* answer = reader.answer("gpu-processes")) {
    for (const std::string& line : lines_of(answer->output)) {
      const size_t comma = line.find(',');
      const auto pid = whole_number(trimmed(line.substr(0, comma)));
      if (pid && comma != std::string::npos)
        reader.facts().gpu_processes.push_back({*pid, trimmed(line.substr(comma + 1))});
    }
  }
}

void read_host(const FactReader& reader) {
  HostFacts& host = reader.facts().host;
  read_units(reader);
  read_display(reader);
  read_nvme(reader);
  read_clocks(reader);
  int64_t fans = 0;
  for (const auto& [path, content] : reader.dump().files) {
    if (path.rfind("/sys/class/thermal/cooling_device", 0) == 0 && trimmed(content) == "dgx_ec_fan_floor")
      ++fans;
  }
  host.fan_devices = fans;
  if (const CommandAnswer* sshd = reader.answer("sshd")) {
    for (const std::string& line : lines_of(sshd->output)) {
      const auto words = words_of(line);
      if (words.size() == 2) host.sshd[words[0]] = words[1];
    }
  }
  const CommandAnswer* test = reader.dump().command("sshd-test");
  if (test != nullptr && test->status != kCommandMissing && test->status != kCommandTimedOut) {
    const bool refused_us = test->error.find("sudo") != std::string::npos;
    if (!refused_us) host.sshd_valid = test->ok();
  }
  if (test != nullptr && !test->ok()) reader.facts().failures["sshd-test"] = test->failure();
  // sha256sum fails when one of the files does not exist, and still prints the others.
  if (const CommandAnswer* files = reader.dump().command("policy-files")) {
    host.policy_files_known = files->status <= 1;
    if (!host.policy_files_known) reader.facts().failures["policy-files"] = files->failure();
    for (const std::string& line : lines_of(files->output)) {
      const auto words = words_of(line);
      if (words.size() == 2 && is_sha256(words[0])) host.policy_files[words[1]] = words[0];
    }
  }
  if (const CommandAnswer* limits = reader.answer("limits")) {
    for (const std::string& line : lines_of(limits->output)) {
      const auto words = words_of(line);
      if (words.size() == 2) host.limits[words[0]] = words[1];
    }
  }
  if (const CommandAnswer* holds = reader.answer("holds")) host.holds = lines_of(holds->output);
}

}  // namespace spark::ops::probe
