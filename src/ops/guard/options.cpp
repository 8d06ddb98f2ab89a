#include "ops/guard/options.h"

#include <unistd.h>

namespace spark::ops {
namespace {

constexpr int64_t kKibPerGib = int64_t{1} << 20;
constexpr int64_t kMinIntervalMs = 10;

std::string_view variable(const char* const* environment, std::string_view name) {
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry(*environment);
    if (entry.starts_with(name) && entry.size() > name.size() && entry[name.size()] == '=')
      return entry.substr(name.size() + 1);
  }
  return {};
}

class Reader {
 public:
  explicit Reader(GuardCommand& command) : command_(command) {}

  void fault(std::string_view what, std::string_view value) {
    if (command_.fault.empty()) command_.fault.add(what).add(value.empty() ? "" : ": ").add(value);
  }
  template <size_t N>
  void text(FixedText<N>& into, std::string_view value, std::string_view name) {
    into.clear();
    into.add(value);
    if (into.full()) fault(name, "is too long");
  }
  void threshold(std::string_view value, int64_t unit_kib) {
    const int64_t number = whole_number_of(value);
    if (number <= 0 || number > (int64_t{1} << 40) / unit_kib)
      return fault("the threshold must be a whole number above zero", value);
    command_.options.limits.threshold_kib = number * unit_kib;
  }
  void interval(std::string_view value) {
    const int64_t ms = milliseconds_of(value);
    if (ms < kMinIntervalMs) return fault("the interval must be a number of seconds, at least 0.01", value);
    command_.options.limits.interval_ms = ms;
  }
  void wait(std::string_view value) {
    const int64_t seconds = whole_number_of(value);
    if (seconds < 0 || seconds > 86400) return fault("the wait must be whole seconds, at most a day", value);
    command_.options.limits.wait_ms = seconds * 1000;
  }
  void stage(std::string_view value) {
    if (value == "startup")
      command_.options.stage = GuardStage::kStartup;
    else if (value == "steady")
      command_.options.stage = GuardStage::kSteady;
    else
      fault("the phase is startup or steady", value);
  }

  void environment(const char* const* variables) {
    const auto with = [&](std::string_view name, auto use) {
      const std::string_view value = variable(variables, name);
      if (!value.empty()) use(value);
    };
    GuardOptions& options = command_.options;
    with("CONTAINER_NAME", [&](auto value) { text(options.service, value, "CONTAINER_NAME"); });
    with("THRESHOLD_GIB", [&](auto value) { threshold(value, kKibPerGib); });
    with("INTERVAL", [&](auto value) { interval(value); });
    with("MEMGUARD_PHASE", [&](auto value) { stage(value); });
    with("WAIT_FOR_CONTAINER_SECONDS", [&](auto value) { wait(value); });
    with("READY_FILE", [&](auto value) { text(options.ready_file, value, "READY_FILE"); });
    with("RUNTIME_DIRECTORY", [&](auto value) { text(options.run_folder, value, "RUNTIME_DIRECTORY"); });
    with("XDG_RUNTIME_DIR", [&](auto value) {
      if (!options.run_folder.empty() || ::geteuid() == 0) return;
      text(options.run_folder, value, "XDG_RUNTIME_DIR");
      options.run_folder.add("/spark-guard");
    });
  }

  // False: not a flag that takes a value.
  bool flag(std::string_view name, std::string_view value) {
    GuardOptions& options = command_.options;
    if (name == "--service")
      text(options.service, value, name);
    else if (name == "--threshold-gib")
      threshold(value, kKibPerGib);
    else if (name == "--threshold-mib")
      threshold(value, 1024);
    else if (name == "--interval")
      interval(value);
    else if (name == "--phase")
      stage(value);
    else if (name == "--wait")
      wait(value);
    else if (name == "--ready-file")
      text(options.ready_file, value, name);
    else if (name == "--run-folder")
      text(options.run_folder, value, name);
    else if (name == "--docker-socket")
      text(options.docker_socket, value, name);
    else if (name == "--pid-file")
      text(options.pid_file, value, name);
    else if (name == "--root")
      text(options.root, value, name);
    else
      return false;
    return true;
  }

  void arguments(int argc, const char* const* argv) {
    for (int i = 1; i < argc; ++i) {
      const std::string_view word(argv[i]);
      if (i == 1 && word == "status")
        command_.request = GuardRequest::kStatus;
      else if (i == 1 && word == "switch")
        command_.request = GuardRequest::kSwitch;
      else if (word == "--help" || word == "-h")
        command_.request = GuardRequest::kHelp;
      else if (word == "--version")
        command_.request = GuardRequest::kVersion;
      else if (word == "--no-kernel-log")
        command_.options.watch_kernel_log = false;
      else if (i + 1 < argc && flag(word, argv[i + 1]))
        ++i;
      else
        fault("this flag is unknown or lacks its value", word);
    }
  }

  void check() {
    const GuardOptions& options = command_.options;
    const GuardRequest request = command_.request;
    if (request == GuardRequest::kHelp || request == GuardRequest::kVersion) return;
    const std::string_view name = options.service.view();
    if (name.empty()) fault("name the service: --service or CONTAINER_NAME", {});
    for (const char c : name) {
      const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
      if (!plain && c != '-' && c != '_' && c != '.')
        fault("the service's name has characters that no container has", name);
    }
    if (request == GuardRequest::kStatus) return;
    if (options.limits.threshold_kib <= 0) fault("state the threshold: --threshold-gib or THRESHOLD_GIB", {});
    if (options.limits.interval_ms <= 0) fault("state the interval: --interval or INTERVAL", {});
  }

 private:
  GuardCommand& command_;
};

}  // namespace

const char* guard_stage_name(GuardStage stage) {
  return stage == GuardStage::kStartup ? "startup" : "steady";
}

int64_t whole_number_of(std::string_view text) {
  for (const char c : text) {
    if (c < '0' || c > '9') return -1;
  }
  return leading_number(text);
}

int64_t milliseconds_of(std::string_view seconds) {
  const size_t point = seconds.find('.');
  const int64_t whole = whole_number_of(seconds.substr(0, point));
  if (whole < 0 || whole > 86400) return -1;
  int64_t ms = whole * 1000;
  if (point == std::string_view::npos) return ms;
  const std::string_view digits = seconds.substr(point + 1);
  if (digits.empty() || whole_number_of(digits) < 0) return -1;
  for (size_t i = 0, unit = 100; i < digits.size() && unit > 0; ++i, unit /= 10)
    ms += static_cast<int64_t>(unit) * (digits[i] - '0');
  return ms;
}

GuardCommand read_guard_command(int argc, const char* const* argv, const char* const* environment) {
  GuardCommand command;
  command.options.docker_socket.add("/run/docker.sock");
  Reader reader(command);
  reader.environment(environment);
  reader.arguments(argc, argv);
  if (command.options.run_folder.empty()) command.options.run_folder.add("/run/spark-guard");
  reader.check();
  return command;
}

}  // namespace spark::ops
