// A boot's log against a policy of patterns: silent fallbacks that only the log tells of, faults, what a
// promotion must not pass. Pure.
//
//   BootLogPolicy policy = read_boot_log_policy(parse_json(text, path), faults);
//   Findings findings = judge_boot_log(policy, log, "rank0.log");
//
// A prefetch was once advertised for six releases and failed to compile in each; only the boot log said so.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/json.h"
#include "ops/site/finding.h"

namespace spark::ops {

inline constexpr const char* kBootLogPolicy = "config/boot-log.json";

struct BootLogPattern {
  std::string id;                // finding rule "boot-log.ID"
  std::vector<std::string> any;  // words or phrases; a line with one of them matches; case does not matter
  Severity severity = Severity::kError;
  std::string because;
  std::string fix;
  std::vector<std::string> allowed;  // a line that contains one of these is expected
};

struct BootLogPolicy {
  std::vector<BootLogPattern> patterns;
};

BootLogPolicy read_boot_log_policy(const Json& document, Faults& faults);

// One finding per pattern that matches: the first line's number, how many lines, the first few of them.
Findings judge_boot_log(const BootLogPolicy& policy, std::string_view log, const std::string& file);

}  // namespace spark::ops
