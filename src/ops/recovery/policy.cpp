#include "ops/recovery/policy.h"

#include <algorithm>

#include "common/error.h"
#include "common/hash.h"
#include "common/json.h"

namespace spark::ops {
namespace {

struct Row {
  const char* path;
  unsigned mode;
  const char* module;
};

constexpr Row kRows[] = {
    {"/etc/systemd/system.conf.d/95-spark-recovery.conf", 0644, "core"},
    {"/etc/sysctl.d/95-spark-recovery.conf", 0644, "core"},
    {"/etc/sysctl.d/90-watermark-boost.conf", 0644, "watermark"},
    {"/etc/ssh/sshd_config.d/95-spark-recovery.conf", 0644, "core"},
    {"/etc/systemd/system/ssh.service.d/95-spark-recovery.conf", 0644, "core"},
    {"/etc/systemd/system/tailscaled.service.d/95-spark-recovery.conf", 0644, "tailscale"},
    {"/etc/systemd/system/plymouth-quit-wait.service.d/95-spark-recovery.conf", 0644, "plymouth"},
    {"/usr/local/libexec/spark-management-health", 0755, "core"},
    {"/etc/systemd/system/spark-management-health.service", 0644, "core"},
    {"/etc/systemd/system/spark-management-health.timer", 0644, "core"},
    {"/etc/default/grub.d/zz-spark-console.cfg", 0644, "console"},
};

}  // namespace

std::map<std::string, std::string> RecoveryPolicy::digests() const {
  std::map<std::string, std::string> all;
  for (const PolicyFile& file : files) all[file.path] = sha256_hex(file.content);
  return all;
}

const std::vector<std::string>& recovery_modules() {
  static const std::vector<std::string> kModules = {"core", "tailscale", "plymouth", "console", "watermark"};
  return kModules;
}

const std::vector<std::string>& retired_policy_files() {
  static const std::vector<std::string> kRetired = {
      "/etc/systemd/system.conf.d/90-law-watchdog.conf",
      "/etc/systemd/system.conf.d/90-law-watchdog.conf.spark3-migrated", "/etc/sysctl.d/90-law-watchdog.conf",
      "/etc/sysctl.d/90-law-watchdog.conf.spark3-migrated"};
  return kRetired;
}

RecoveryPolicy load_recovery_policy(const Repository& repository, const std::set<std::string>& without) {
  for (const std::string& module : without) {
    const auto& known = recovery_modules();
    if (std::find(known.begin() + 1, known.end(), module) != known.end()) continue;
    const auto guess = nearest(module, known);
    throw Error("\"" + module + "\" is no optional module", "--without",
                guess && *guess != "core" ? "did you mean \"" + *guess + "\"?"
                                          : "the optional ones are tailscale, plymouth, console, watermark");
  }
  RecoveryPolicy policy;
  for (const Row& row : kRows) {
    if (without.contains(row.module)) continue;
    policy.files.push_back(
        {row.path, row.mode, row.module, repository.read(std::string(kPolicyFolder) + row.path)});
  }
  return policy;
}

}  // namespace spark::ops
