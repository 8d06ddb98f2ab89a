#include "ops/recovery/check.h"

#include <algorithm>

#include "common/error.h"

namespace spark::ops {
namespace {

constexpr const char* kApply = "spark host apply --apply";

// What a node without the policy lacks is an error here; the doctor, who sees it beside a serving cluster,
// warns.
constexpr const char* kStrict[] = {"recovery.watchdog", "recovery.panic",    "recovery.ssh",
                                   "recovery.timer",    "recovery.plymouth", "recovery.sshd-config",
                                   "host.splash",       "host.console"};
constexpr const char* kMild[] = {"host.display-manager", "host.idle-services", "kernel.watermark-boost"};

std::string octal(unsigned mode) {
  std::string text;
  for (int shift = 6; shift >= 0; shift -= 3) text += static_cast<char>('0' + ((mode >> shift) & 7U));
  return "0" + text;
}

bool tailscale_installed(const Facts& facts) {
  if (!facts.host.units) return true;
  const auto found = facts.host.units->find("tailscaled.service");
  return found != facts.host.units->end() && found->second.exists();
}

void check_file(const Host& host, const PolicyFile& file, Findings& findings) {
  const auto add = [&](std::string evidence, std::string expected) {
    findings.push_back({"recovery.files",
                        Severity::kError,
                        file.path,
                        {},
                        std::move(evidence),
                        std::move(expected),
                        kApply});
  };
  try {
    const auto found = host.file(file.path);
    if (!found) return add("is missing", "as in " + std::string(kPolicyFolder));
    if (!found->link.empty()) return add("is a link to " + found->link, "a file");
    if (found->content != file.content) return add("differs", "as in " + std::string(kPolicyFolder));
    if (found->mode != file.mode) return add("has the mode " + octal(found->mode), octal(file.mode));
  } catch (const Error& error) {
    add(std::string("cannot be compared: ") + error.what(), "a readable file");
  }
}

}  // namespace

Findings check_recovery(const Host& host, const RecoveryPolicy& policy, const NodeAnswer& answer) {
  Findings findings;
  for (const PolicyFile& file : policy.files) {
    if (file.module == "tailscale" && !tailscale_installed(answer.facts)) continue;
    check_file(host, file, findings);
  }
  for (const std::string& path : retired_policy_files()) {
    if (host.exists(path))
      findings.push_back(
          {"recovery.files", Severity::kError, path, {}, "is left from an earlier policy", "absent", kApply});
  }
  if (answer.outcome != ProbeOutcome::kAnswered) {
    findings.push_back({"live.answer",
                        Severity::kError,
                        {},
                        answer.node,
                        answer.problem,
                        "an answer to the probe",
                        answer.hint});
    return findings;
  }
  if (answer.facts.kernel.grub.lines_with_splash > 0) {
    findings.push_back({"host.splash",
                        Severity::kError,
                        "/boot/grub/grub.cfg",
                        {},
                        "still passes splash",
                        "no splash",
                        kApply});
  }
  std::vector<std::string> rules(std::begin(kStrict), std::end(kStrict));
  rules.insert(rules.end(), std::begin(kMild), std::end(kMild));
  for (Finding& finding : diagnose_node(answer, rules)) {
    const bool mild = std::find(std::begin(kMild), std::end(kMild), finding.rule) != std::end(kMild);
    finding.severity = mild ? Severity::kWarning : Severity::kError;
    findings.push_back(std::move(finding));
  }
  warnings_first(findings);
  return findings;
}

}  // namespace spark::ops
