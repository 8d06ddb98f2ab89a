// The offline doctor: Site -> findings. Pure; it reads nothing and changes nothing.
//
//   Site site = load_site(repository, {});
//   SecretScan secrets = scan_tracked_files(repository);
//   Findings findings = diagnose(site, &secrets);
//   std::cout << findings_text(findings);            // WARN: and ERROR: lines, or "configuration OK"
//   return has_error(findings) ? 1 : 0;
#pragma once

#include <string>

#include "common/json.h"
#include "ops/doctor/secrets.h"
#include "ops/site/finding.h"
#include "ops/site/site.h"

namespace spark::ops {

// Every finding of every rule, warnings first, otherwise in the order of the rules. Without `secrets` the
// tracked files are not judged. What a file's fault explains already is not reported again by a rule.
Findings diagnose(const Site& site, const SecretScan* secrets);

bool has_error(const Findings& findings);

// One line per finding (grouped_by_node). Without errors a last line that contains "configuration OK", with
// `clean_suffix` behind it
// ("; live cluster matches" after a live check) and the number of warnings. Scripts rely on these phrases.
// With errors the last line is "N errors, M warnings".
std::string findings_text(const Findings& findings, const std::string& clean_suffix = {});

// {"ok": true, "errors": 0, "warnings": 1, "findings": [{rule, severity, file, where, evidence, expected,
// fix}]}
Json findings_json(const Findings& findings);

// docs/doctor.md, and the list that `spark doctor --rules` prints.
std::string rules_markdown();
std::string rules_text();

}  // namespace spark::ops
