#include "ops/recovery/change.h"

#include <unistd.h>

#include <algorithm>

#include "ops/probe/script.h"
#include "ops/recovery/state.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

constexpr const char* kTimer = "spark-management-health.timer";
constexpr const char* kTailscale = "tailscaled.service";
constexpr const char* kSshdFile = "/etc/ssh/sshd_config.d/95-spark-recovery.conf";
constexpr const char* kConsoleFile = "/etc/default/grub.d/zz-spark-console.cfg";
constexpr const char* kSysctlFolder = "/etc/sysctl.d/";
constexpr const char* kManagerFolder = "/etc/systemd/system.conf.d/";
constexpr const char* kTailscaleFolder = "/etc/systemd/system/tailscaled.service.d/";

bool starts_with(const std::string& text, const std::string& prefix) {
  return text.rfind(prefix, 0) == 0;
}

const Unit* unit_of(const Facts& facts, const std::string& name) {
  if (!facts.host.units) return nullptr;
  const auto found = facts.host.units->find(name);
  return found == facts.host.units->end() || !found->second.exists() ? nullptr : &found->second;
}

// Optional modules whose service is known not to be installed.
bool applies(const PolicyFile& file, const Host& host, const Facts& facts) {
  if (file.module == "tailscale") return !facts.host.units || unit_of(facts, kTailscale) != nullptr;
  if (file.module == "plymouth")
    return !facts.host.units || unit_of(facts, "plymouth-quit-wait.service") != nullptr;
  if (file.module == "console") return host.exists("/etc/default/grub.d") || host.exists("/etc/default/grub");
  return true;
}

void add_command(RecoveryPlan& plan, std::vector<std::string> command) {
  plan.changes.push_back({ChangeKind::kCommand, command.back(), std::move(command)});
}

// "kernel.panic=30" lines of a sysctl file
std::vector<std::string> sysctl_names(const std::string& content) {
  std::vector<std::string> names;
  size_t begin = 0;
  while (begin < content.size()) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const std::string line = content.substr(begin, end - begin);
    const size_t equals = line.find('=');
    if (!line.empty() && line[0] != '#' && equals != std::string::npos)
      names.push_back(line.substr(0, equals));
    begin = end + 1;
  }
  return names;
}

std::string sysctl_path(std::string name) {
  std::replace(name.begin(), name.end(), '.', '/');
  return "/proc/sys/" + name;
}

// What has to be told about files that changed, in the order of specification 3.10.2.
void add_reloads(RecoveryPlan& plan, const std::vector<std::string>& changed, const Facts& facts,
                 bool sshd_changed) {
  const auto any = [&](const std::string& prefix) {
    return std::any_of(changed.begin(), changed.end(),
                       [&](const std::string& path) { return starts_with(path, prefix); });
  };
  if (any("/etc/systemd/")) add_command(plan, {"systemctl", "daemon-reload"});
  for (const std::string& path : changed) {
    if (starts_with(path, kSysctlFolder) && !plan.revert) add_command(plan, {"sysctl", "-p", path});
  }
  if (any(kManagerFolder)) add_command(plan, {"systemctl", "daemon-reexec"});
  if (!plan.revert) {
    const Unit* timer = unit_of(facts, kTimer);
    const bool running = timer != nullptr && timer->active == "active" && timer->enabled();
    if (!running) add_command(plan, {"systemctl", "enable", "--now", kTimer});
  }
  // Restarts are scheduled, so that an apply that came in through them is not cut off.
  if (sshd_changed || any("/etc/systemd/system/ssh.service.d/"))
    add_command(plan, {"systemd-run", "--on-active=3s", "systemctl", "try-restart", "ssh.service"});
  if (any(kTailscaleFolder))
    add_command(plan, {"systemd-run", "--on-active=8s", "systemctl", "try-restart", kTailscale});
}

std::string mode_text(unsigned mode) {
  std::string text;
  for (int shift = 9; shift >= 0; shift -= 3) text += static_cast<char>('0' + ((mode >> shift) & 7U));
  return text;
}

std::string change_text(const HostChange& change) {
  std::string command;
  for (const std::string& word : change.command) command += (command.empty() ? "" : " ") + shell_quote(word);
  switch (change.kind) {
    case ChangeKind::kInstall:
      return "install " + change.subject + " (" + mode_text(change.file.mode) + ")";
    case ChangeKind::kReplace:
      return "replace " + change.subject + " (" + mode_text(change.file.mode) + "); the old one is kept";
    case ChangeKind::kRemove:
      return "remove " + change.subject + "; it is kept";
    case ChangeKind::kTestSshd:
      return "run " + command + "; the old file comes back if it is refused";
    case ChangeKind::kDisableUnit:
      return "stop and disable " + change.subject;
    case ChangeKind::kTextConsole:
      return "set " + change.subject + " to text mode";
    case ChangeKind::kCommand:
      return "run " + command;
    case ChangeKind::kRestore:
      return "restore " + change.subject + " as it was";
    case ChangeKind::kDelete:
      return "delete " + change.subject;
    case ChangeKind::kEnableUnit:
      return "run " + command;
  }
  return {};
}

class Executor {
 public:
  explicit Executor(Host& host) : host_(host), state_(load_state(host)) {}

  void apply(const HostChange& change) {
    switch (change.kind) {
      case ChangeKind::kInstall:
      case ChangeKind::kReplace:
        install(change);
        break;
      case ChangeKind::kRemove:
        remember(change.subject);
        host_.remove(change.subject);
        break;
      case ChangeKind::kTestSshd:
        test_sshd(change);
        break;
      case ChangeKind::kDisableUnit:
        disable(change);
        break;
      case ChangeKind::kTextConsole:
        host_.set_text_console(change.subject);
        break;
      case ChangeKind::kCommand:
      case ChangeKind::kEnableUnit:
        host_.run(change.command);
        break;
      case ChangeKind::kRestore:
        host_.write(change.subject, change.file);
        break;
      case ChangeKind::kDelete:
        host_.remove(change.subject);
        break;
    }
  }

  // Folders that an apply created and that are empty again go, innermost first: those that hold the state go
  // after it, all others before it, so that a revert that is interrupted still knows them.
  void finish_revert() {
    for (const RecoveryState::File& file : state_.files) host_.remove_unfinished(file.path);
    remove_folders();
    drop_state(host_);
    host_.remove_folder(kRecoveryFolder);
    remove_folders();
  }

 private:
  void remove_folders() {
    for (size_t i = state_.folders.size(); i-- > 0;) host_.remove_folder(state_.folders[i]);
  }

  // Keeps a file as it is now, once: what an earlier apply found counts; and which folders there will be for
  // it. On disk before anything is changed.
  void remember(const std::string& path) {
    const std::vector<std::string> folders = host_.missing_folders(path);
    const bool known = state_.find(path) != nullptr;
    if (known && folders.empty()) return;
    state_.folders.insert(state_.folders.end(), folders.begin(), folders.end());
    if (!known) {
      const auto before = host_.file(path);
      state_.files.push_back({path, before.has_value(), before.value_or(HostFile{})});
      remember_sysctl(path);
    }
    save_state(host_, state_);
  }

  void remember_sysctl(const std::string& path) {
    if (!starts_with(path, kSysctlFolder)) return;
    for (const std::string& name : sysctl_names(wanted_content_)) {
      const bool known = std::any_of(state_.sysctl.begin(), state_.sysctl.end(),
                                     [&](const auto& entry) { return entry.first == name; });
      const auto value = known ? std::nullopt : host_.file(sysctl_path(name));
      if (value) state_.sysctl.emplace_back(name, value->content.substr(0, value->content.find('\n')));
    }
  }

  void install(const HostChange& change) {
    wanted_content_ = change.file.content;
    remember(change.subject);
    host_.write(change.subject, change.file);
  }

  void test_sshd(const HostChange& change) {
    try {
      host_.run(change.command);
    } catch (const Error& refused) {
      const RecoveryState::File* kept = state_.find(kSshdFile);
      if (kept != nullptr && kept->existed) host_.write(kSshdFile, kept->before);
      if (kept != nullptr && !kept->existed) host_.remove(kSshdFile);
      throw Error(std::string("sshd refuses its configuration, so the old one is back: ") + refused.what(),
                  kSshdFile, "run sshd -t to see the line that it refuses");
    }
  }

  void disable(const HostChange& change) {
    const bool known = std::any_of(state_.units.begin(), state_.units.end(),
                                   [&](const auto& unit) { return unit.name == change.subject; });
    if (!known) {
      state_.units.push_back({change.subject, change.was_enabled, change.was_active});
      save_state(host_, state_);
    }
    host_.run(change.command);
  }

  Host& host_;
  RecoveryState state_;
  std::string wanted_content_;
};

}  // namespace

RecoveryPlan plan_apply(const Host& host, const RecoveryPolicy& policy, const Facts& facts) {
  RecoveryPlan plan;
  std::vector<std::string> changed;
  bool sshd_changed = false;
  for (const PolicyFile& file : policy.files) {
    if (!applies(file, host, facts)) continue;
    const HostFile wanted{file.mode, ::geteuid(), ::getegid(), file.content, {}};
    const auto found = host.file(file.path);
    if (found && found->link.empty() && found->content == wanted.content && found->mode == wanted.mode)
      continue;
    plan.changes.push_back({found ? ChangeKind::kReplace : ChangeKind::kInstall, file.path, {}, wanted});
    changed.push_back(file.path);
    sshd_changed |= file.path == kSshdFile;
  }
  for (const std::string& path : retired_policy_files()) {
    if (host.exists(path)) plan.changes.push_back({ChangeKind::kRemove, path});
  }
  const bool console_changed = std::find(changed.begin(), changed.end(), kConsoleFile) != changed.end();
  if (console_changed || facts.kernel.grub.lines_with_splash > 0) add_command(plan, {"update-grub"});
  if (facts.host.console_mode.value_or(0) != 0)
    plan.changes.push_back({ChangeKind::kTextConsole, facts.host.console});
  std::vector<std::string> units = idle_units();
  units.insert(units.begin(), "display-manager.service");
  for (const std::string& name : units) {
    const Unit* unit = unit_of(facts, name);
    if (unit == nullptr || (!unit->running() && !unit->enabled())) continue;
    HostChange change{ChangeKind::kDisableUnit, name, {"systemctl", "disable", "--now", name}};
    change.was_enabled = unit->enabled();
    change.was_active = unit->running();
    plan.changes.push_back(std::move(change));
  }
  if (sshd_changed) plan.changes.push_back({ChangeKind::kTestSshd, kSshdFile, {"sshd", "-t"}});
  add_reloads(plan, changed, facts, sshd_changed);
  return plan;
}

RecoveryPlan plan_revert(const Host& host) {
  RecoveryPlan plan;
  plan.revert = true;
  const RecoveryState state = load_state(host);
  if (state.empty()) {
    // An apply that ended before it had written its state has changed nothing else.
    if (host.exists(kRecoveryFolder)) plan.changes.push_back({ChangeKind::kDelete, kRecoveryState});
    return plan;
  }
  // While its unit files still exist.
  const bool had_timer = std::any_of(state.files.begin(), state.files.end(), [](const auto& file) {
    return file.path.find(kTimer) != std::string::npos && !file.existed;
  });
  if (had_timer && host.exists("/etc/systemd/system/" + std::string(kTimer)))
    add_command(plan, {"systemctl", "disable", "--now", kTimer});
  std::vector<std::string> changed;
  for (size_t i = state.files.size(); i-- > 0;) {
    const RecoveryState::File& file = state.files[i];
    const auto now = host.file(file.path);
    if (file.existed ? now == file.before : !now) continue;
    plan.changes.push_back(
        {file.existed ? ChangeKind::kRestore : ChangeKind::kDelete, file.path, {}, file.before});
    changed.push_back(file.path);
  }
  for (const auto& [name, value] : state.sysctl) add_command(plan, {"sysctl", "-w", name + "=" + value});
  if (std::find(changed.begin(), changed.end(), kConsoleFile) != changed.end())
    add_command(plan, {"update-grub"});
  for (const auto& unit : state.units) {
    if (unit.enabled)
      plan.changes.push_back({ChangeKind::kEnableUnit, unit.name, {"systemctl", "enable", unit.name}});
    if (unit.active)
      plan.changes.push_back({ChangeKind::kEnableUnit, unit.name, {"systemctl", "start", unit.name}});
  }
  add_reloads(plan, changed, {}, std::find(changed.begin(), changed.end(), kSshdFile) != changed.end());
  if (plan.changes.empty())
    add_command(plan, {"systemctl", "daemon-reload"});  // only the state itself is left
  return plan;
}

std::string plan_text(const RecoveryPlan& plan) {
  std::string text = plan.revert ? "revert plan\n" : "apply plan\n";
  for (const HostChange& change : plan.changes) text += "  " + change_text(change) + "\n";
  if (plan.changes.empty()) text += "  nothing to do\n";
  return text;
}

void execute(Host& host, const RecoveryPlan& plan, const std::function<void(const std::string&)>& report) {
  Executor executor(host);
  for (const HostChange& change : plan.changes) {
    if (report) report(change_text(change));
    executor.apply(change);
  }
  if (plan.revert) executor.finish_revert();
}

}  // namespace spark::ops
