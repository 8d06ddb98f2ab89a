#include "ops/doctor/rule.h"

#include <algorithm>

namespace spark::ops {

void RuleContext::add(Severity severity, std::string file, std::string where, std::string evidence,
                      std::string expected, std::string fix) {
  findings_.push_back({rule_->id, severity, std::move(file), std::move(where), std::move(evidence),
                       std::move(expected), std::move(fix)});
}

void RuleContext::error(std::string where, std::string evidence, std::string expected, std::string fix) {
  add(Severity::kError, {}, std::move(where), std::move(evidence), std::move(expected), std::move(fix));
}

void RuleContext::warn(std::string where, std::string evidence, std::string expected, std::string fix) {
  add(Severity::kWarning, {}, std::move(where), std::move(evidence), std::move(expected), std::move(fix));
}

void RuleContext::error_in(std::string file, std::string where, std::string evidence, std::string expected,
                           std::string fix) {
  add(Severity::kError, std::move(file), std::move(where), std::move(evidence), std::move(expected),
      std::move(fix));
}

void RuleContext::warn_in(std::string file, std::string where, std::string evidence, std::string expected,
                          std::string fix) {
  add(Severity::kWarning, std::move(file), std::move(where), std::move(evidence), std::move(expected),
      std::move(fix));
}

bool RuleContext::faulty(const std::string& path) const {
  return std::any_of(site.faults.begin(), site.faults.end(), [&](const FileFault& entry) {
    return entry.file != site.nodes_file && entry.fault.where.compare(0, path.size(), path) == 0;
  });
}

void RuleContext::adopt(const Findings& findings) {
  findings_.insert(findings_.end(), findings.begin(), findings.end());
}

}  // namespace spark::ops
