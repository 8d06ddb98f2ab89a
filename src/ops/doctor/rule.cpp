#include "ops/doctor/rule.h"

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

void RuleContext::adopt(const Findings& findings) {
  findings_.insert(findings_.end(), findings.begin(), findings.end());
}

}  // namespace spark::ops
