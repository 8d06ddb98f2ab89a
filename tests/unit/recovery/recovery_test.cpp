#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "common/file.h"
#include "ops/probe/gather.h"
#include "ops/recovery/change.h"
#include "ops/recovery/check.h"
#include "ops/recovery/state.h"
#include "unit/temporary_folder.h"

namespace spark::ops {
namespace {

namespace fs = std::filesystem;

// A machine as a folder: what a fresh node has where the policy goes.
class Machine {
 public:
  Machine() {
    put("/etc/default/grub.d/20-other.cfg", "GRUB_TIMEOUT=1\n");
    put("/etc/ssh/sshd_config.d/50-cloud.conf", "PasswordAuthentication no\n");
    put("/etc/sysctl.d/95-spark-recovery.conf", "kernel.panic=5\n", 0600);  // somebody's own of that name
    put("/etc/systemd/system.conf.d/90-law-watchdog.conf", "[Manager]\nRuntimeWatchdogSec=60s\n");
    put("/proc/sys/kernel/panic", "5\n");
    put("/proc/sys/kernel/panic_on_oops", "0\n");
    put("/proc/sys/vm/panic_on_oom", "0\n");
    put("/proc/sys/vm/watermark_boost_factor", "15000\n");
    fs::create_directories(root_ + "/usr/local");
    fs::create_directories(root_ + "/var/lib");
    fs::create_symlink("/dev/null", root_ + "/etc/systemd/spark-management-health.timer");
  }

  const std::string& root() const { return root_; }
  void put(const std::string& path, const std::string& content, mode_t mode = 0644) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << content;
    ::chmod((root_ + path).c_str(), mode);
  }
  std::string get(const std::string& path) const { return read_file(root_ + path); }
  bool has(const std::string& path) const { return fs::exists(fs::symlink_status(root_ + path)); }

  // Every path with its kind, mode and content.
  std::map<std::string, std::string> tree() const {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(root_)) {
      struct stat info {};
      ::lstat(entry.path().c_str(), &info);
      std::string state = std::to_string(info.st_mode) + ":";
      if (entry.is_symlink())
        state += fs::read_symlink(entry.path()).string();
      else if (entry.is_regular_file())
        state += read_file(entry.path().string());
      all[entry.path().string().substr(root_.size())] = state;
    }
    return all;
  }

 private:
  const test::TemporaryFolder temporary_;
  std::string root_ = temporary_.path();
};

Unit running_unit() {
  return {"loaded", "active", "running", "enabled"};
}

Facts fresh_facts() {
  Facts facts;
  facts.host.units = {{"ssh.service", running_unit()},
                      {"plymouth-quit-wait.service", running_unit()},
                      {"cups.service", running_unit()},
                      {"snapd.service", {"loaded", "inactive", "dead", "disabled"}},
                      {"bluetooth.service", {"loaded", "inactive", "dead", "enabled"}}};
  facts.kernel.grub.known = true;
  facts.kernel.grub.lines_with_splash = 2;
  facts.host.console = "tty1";
  facts.host.console_mode = 1;
  return facts;
}

RecoveryPolicy policy() {
  return load_recovery_policy(Repository(SPARK_SOURCE_DIR));
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST(Recovery, ApplyInstallsExactlyTheReviewedFiles) {
  Machine machine;
  Host host(machine.root());
  execute(host, plan_apply(host, policy(), fresh_facts()));
  for (const PolicyFile& file : policy().files) {
    if (file.module == "tailscale") {
      EXPECT_FALSE(machine.has(file.path)) << "Tailscale is not installed here";
      continue;
    }
    ASSERT_TRUE(machine.has(file.path)) << file.path;
    EXPECT_EQ(machine.get(file.path), file.content);
    struct stat info {};
    ::stat((machine.root() + file.path).c_str(), &info);
    EXPECT_EQ(info.st_mode & 07777U, file.mode) << file.path;
  }
  EXPECT_FALSE(machine.has("/etc/systemd/system.conf.d/90-law-watchdog.conf"));
}

TEST(Recovery, CommandsRunInTheSafeOrder) {
  Machine machine;
  Host host(machine.root());
  execute(host, plan_apply(host, policy(), fresh_facts()));
  EXPECT_EQ(joined(host.commands()),
            "update-grub\n"
            "text mode on tty1\n"
            "systemctl disable --now bluetooth.service\n"
            "systemctl disable --now cups.service\n"
            "sshd -t\n"
            "systemctl daemon-reload\n"
            "sysctl -p /etc/sysctl.d/95-spark-recovery.conf\n"
            "sysctl -p /etc/sysctl.d/90-watermark-boost.conf\n"
            "systemctl daemon-reexec\n"
            "systemctl enable --now spark-management-health.timer\n"
            "systemd-run --on-active=3s systemctl try-restart ssh.service\n");
}

TEST(Recovery, ApplyingTwiceChangesNothing) {
  Machine machine;
  Host host(machine.root());
  execute(host, plan_apply(host, policy(), fresh_facts()));
  const auto after = machine.tree();
  Facts settled = fresh_facts();
  settled.host.units->at("cups.service") = {"loaded", "inactive", "dead", "disabled"};
  settled.host.units->at("bluetooth.service") = {"loaded", "inactive", "dead", "disabled"};
  (*settled.host.units)["spark-management-health.timer"] = running_unit();
  settled.kernel.grub.lines_with_splash = 0;
  settled.host.console_mode = 0;
  Host again(machine.root());
  const RecoveryPlan plan = plan_apply(again, policy(), settled);
  EXPECT_EQ(plan_text(plan), "apply plan\n  nothing to do\n");
  execute(again, plan);
  EXPECT_EQ(machine.tree(), after);
  EXPECT_TRUE(again.commands().empty());
}

TEST(Recovery, RevertIsExactToTheByte) {
  Machine machine;
  const auto before = machine.tree();
  Host host(machine.root());
  execute(host, plan_apply(host, policy(), fresh_facts()));
  EXPECT_NE(machine.tree(), before);
  Host back(machine.root());
  execute(back, plan_revert(back));
  EXPECT_EQ(machine.tree(), before);
  const std::string commands = joined(back.commands());
  EXPECT_EQ(commands.find("systemctl disable --now spark-management-health.timer\n"), 0u) << commands;
  for (const char* line :
       {"sysctl -w kernel.panic=5\n", "sysctl -w vm.watermark_boost_factor=15000\n", "update-grub\n",
        "systemctl enable cups.service\n", "systemctl start cups.service\n",
        "systemctl enable bluetooth.service\n", "systemctl daemon-reload\n",
        "systemd-run --on-active=3s systemctl try-restart ssh.service\n"}) {
    EXPECT_NE(commands.find(line), std::string::npos) << line << "in\n" << commands;
  }
  EXPECT_EQ(commands.find("systemctl start bluetooth.service"), std::string::npos) << "it did not run before";
  EXPECT_TRUE(plan_revert(Host(machine.root())).changes.empty());
}

TEST(Recovery, TheFirstOriginalCountsWhateverHappensBetween) {
  Machine machine;
  const auto before = machine.tree();
  Host host(machine.root());
  execute(host, plan_apply(host, policy(), fresh_facts()));
  machine.put("/etc/ssh/sshd_config.d/95-spark-recovery.conf",
              "MaxStartups 5\n");  // edited by hand afterwards
  const RecoveryPlan again = plan_apply(host, policy(), fresh_facts());
  EXPECT_NE(plan_text(again).find("replace /etc/ssh/sshd_config.d/95-spark-recovery.conf"),
            std::string::npos);
  execute(host, again);
  Host back(machine.root());
  execute(back, plan_revert(back));
  EXPECT_EQ(machine.tree(), before);
}

// A host whose commands fail at a chosen point.
class FailingHost : public Host {
 public:
  FailingHost(const std::string& root, std::string at) : Host(root), at_(std::move(at)) {}
  void run(const std::vector<std::string>& command) override {
    Host::run(command);
    if (commands().back().find(at_) != std::string::npos)
      throw Error("failed with status 1", commands().back());
  }

 private:
  std::string at_;
};

TEST(Recovery, SshdThatRefusesKeepsItsOldConfiguration) {
  Machine machine;
  FailingHost host(machine.root(), "sshd -t");
  try {
    execute(host, plan_apply(host, policy(), fresh_facts()));
    FAIL() << "sshd refused, and nobody said so";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("sshd refuses its configuration"), std::string::npos);
  }
  EXPECT_FALSE(machine.has("/etc/ssh/sshd_config.d/95-spark-recovery.conf"));
  for (const std::string& command : host.commands())
    EXPECT_EQ(command.find("try-restart"), std::string::npos);
}

TEST(Recovery, AnInterruptedApplyCanBeRevertedOrRepeated) {
  for (const char* stop :
       {"update-grub", "disable --now cups", "daemon-reload", "daemon-reexec", "enable --now"}) {
    SCOPED_TRACE(stop);
    Machine machine;
    const auto before = machine.tree();
    FailingHost host(machine.root(), stop);
    EXPECT_THROW(execute(host, plan_apply(host, policy(), fresh_facts())), Error);
    Host repeat(machine.root());
    execute(repeat, plan_apply(repeat, policy(), fresh_facts()));
    Host back(machine.root());
    execute(back, plan_revert(back));
    EXPECT_EQ(machine.tree(), before);
  }
}

// Killed by the kernel in the middle of a write, of the state or of a file, whichever first gets too long.
TEST(Recovery, AnApplyThatIsKilledWhileItWritesCanBeReverted) {
  int killed = 0;
  for (const rlim_t bytes : {0, 1, 100, 200, 400, 500, 600, 800, 1000, 1200, 1500, 2000, 4000, 8000}) {
    SCOPED_TRACE(bytes);
    Machine machine;
    machine.put("/etc/ssh/sshd_config.d/95-spark-recovery.conf.backup", "somebody's\n");
    const auto before = machine.tree();
    Host host(machine.root());
    const RecoveryPlan plan = plan_apply(host, policy(), fresh_facts());
    const pid_t child = ::fork();
    if (child == 0) {
      const rlimit no_core = {0, 0}, limit = {bytes, bytes};
      ::setrlimit(RLIMIT_CORE, &no_core);
      ::setrlimit(RLIMIT_FSIZE, &limit);
      execute(host, plan);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    killed += WIFSIGNALED(status) ? 1 : 0;
    Host back(machine.root());
    execute(back, plan_revert(back));
    EXPECT_EQ(machine.tree(), before);
  }
  EXPECT_GT(killed, 5);
}

TEST(Recovery, NothingIsWrittenOutsideTheRoot) {
  Machine machine;
  const test::TemporaryFolder outside;
  fs::remove_all(machine.root() + "/etc/sysctl.d");
  fs::create_directory_symlink(outside.path(),
                               machine.root() + "/etc/sysctl.d");  // of the machine, not of ours
  fs::create_directories(machine.root() + outside.path());
  machine.put("/usr/lib/ssh.d/keep", "x\n");
  fs::rename(machine.root() + "/etc/ssh/sshd_config.d", machine.root() + "/usr/lib/ssh.d/real");
  fs::create_directory_symlink("../../../../usr/lib/ssh.d/real", machine.root() + "/etc/ssh/sshd_config.d");
  const auto before = machine.tree();
  Host host(machine.root());
  execute(host, plan_apply(host, policy(), fresh_facts()));
  EXPECT_TRUE(fs::is_empty(outside.path()));
  EXPECT_TRUE(machine.has(outside.path() + "/95-spark-recovery.conf"));
  EXPECT_TRUE(machine.has("/usr/lib/ssh.d/real/95-spark-recovery.conf"));
  Host back(machine.root());
  execute(back, plan_revert(back));
  EXPECT_EQ(machine.tree(), before);
  fs::create_directory_symlink("b", machine.root() + "/a");
  fs::create_directory_symlink("/a", machine.root() + "/b");
  EXPECT_THROW(host.exists("/a/x"), Error);
  EXPECT_FALSE(host.exists("/../.." + outside.path() + "/95-spark-recovery.conf"));
}

TEST(Recovery, PlanningReadsOnly) {
  Machine machine;
  const auto before = machine.tree();
  const Host host(machine.root());
  plan_text(plan_apply(host, policy(), fresh_facts()));
  plan_text(plan_revert(host));
  EXPECT_EQ(machine.tree(), before);
}

TEST(Recovery, AStateThatSomebodyEditedIsRefused) {
  Machine machine;
  machine.put(kRecoveryState,
              R"({"schema_version": 1, "files": [{"path": "etc", "existed": true, "mode": -1}]})");
  EXPECT_THROW(plan_revert(Host(machine.root())), Error);
  for (const char* path : {"relative", "", "/", "/..", "/../x", "/etc/../x", "/etc//x", "/etc/"}) {
    SCOPED_TRACE(path);
    const std::string end = R"(, "units": [], "sysctl": []})", quoted = "\"" + std::string(path) + "\"";
    machine.put(kRecoveryState, R"({"schema_version": 1, "files": [], "folders": [)" + quoted + "]" + end);
    EXPECT_THROW(plan_revert(Host(machine.root())), Error);
    machine.put(kRecoveryState, R"({"schema_version": 1, "folders": [], "files": [{"path": )" + quoted +
                                    R"(, "existed": false}])" + end);
    EXPECT_THROW(plan_revert(Host(machine.root())), Error);
  }
  machine.put(kRecoveryState, "{");
  EXPECT_THROW(plan_revert(Host(machine.root())), Error);
}

TEST(Recovery, ModulesCanBeLeftOut) {
  const RecoveryPolicy all = policy();
  const RecoveryPolicy some = load_recovery_policy(Repository(SPARK_SOURCE_DIR), {"tailscale", "console"});
  EXPECT_EQ(all.files.size(), some.files.size() + 2);
  EXPECT_THROW(load_recovery_policy(Repository(SPARK_SOURCE_DIR), {"core"}), Error);
  EXPECT_THROW(load_recovery_policy(Repository(SPARK_SOURCE_DIR), {"consol"}), Error);
}

NodeAnswer healthy_answer() {
  return read_answer("node1", read_file(std::string(SPARK_TEST_DATA) + "/probe/spark-64k.dump"));
}

TEST(RecoveryCheck, WhatApplyLeavesIsRight) {
  Machine machine;
  Host host(machine.root());
  Facts facts = fresh_facts();
  (*facts.host.units)["tailscaled.service"] = running_unit();
  execute(host, plan_apply(host, policy(), facts));
  const Findings findings = check_recovery(host, policy(), healthy_answer());
  for (const Finding& finding : findings)
    ADD_FAILURE() << finding.rule << " " << finding.file << " " << finding.evidence;
}

TEST(RecoveryCheck, NamesEveryFileThatIsNotAsReviewed) {
  Machine machine;
  Host host(machine.root());
  execute(host, plan_apply(host, policy(), fresh_facts()));
  machine.put("/etc/systemd/system/spark-management-health.timer", "edited\n");
  ::chmod((machine.root() + "/usr/local/libexec/spark-management-health").c_str(), 0644);
  machine.put("/etc/sysctl.d/90-law-watchdog.conf", "old\n");
  std::string seen;
  for (const Finding& finding : check_recovery(host, policy(), healthy_answer())) {
    EXPECT_EQ(finding.rule, "recovery.files");
    EXPECT_EQ(finding.severity, Severity::kError);
    seen += finding.file + " " + finding.evidence + "\n";
  }
  EXPECT_EQ(seen,
            "/etc/systemd/system/tailscaled.service.d/95-spark-recovery.conf is missing\n"
            "/usr/local/libexec/spark-management-health has the mode 0644\n"
            "/etc/systemd/system/spark-management-health.timer differs\n"
            "/etc/sysctl.d/90-law-watchdog.conf is left from an earlier policy\n");
}

TEST(RecoveryCheck, WhatIsNotInEffectIsAnError) {
  Machine machine;
  Host host(machine.root());
  Facts facts = fresh_facts();
  (*facts.host.units)["tailscaled.service"] = running_unit();
  execute(host, plan_apply(host, policy(), facts));
  NodeAnswer answer = healthy_answer();
  answer.facts.host.runtime_watchdog_s = 0;
  answer.facts.kernel.panic_s = 0;
  answer.facts.kernel.grub.lines_with_splash = 1;
  answer.facts.host.units->at("ssh.service").oom_score_adjust = 0;
  (*answer.facts.host.units)["cups.service"] = running_unit();
  answer.faults = {};
  std::map<std::string, Severity> seen;
  for (const Finding& finding : check_recovery(host, policy(), answer)) seen[finding.rule] = finding.severity;
  const std::map<std::string, Severity> expected = {{"recovery.watchdog", Severity::kError},
                                                    {"recovery.panic", Severity::kError},
                                                    {"recovery.ssh", Severity::kError},
                                                    {"host.splash", Severity::kError},
                                                    {"host.idle-services", Severity::kWarning}};
  EXPECT_EQ(seen, expected);
}

}  // namespace
}  // namespace spark::ops
