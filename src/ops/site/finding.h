// What a check found: one record for doctor, preflight and every other command that judges.
//
//   findings.push_back({"guard.values", Severity::kError, "config/cluster.json", "host.memguard_gib",
//                       "is 6, the startup threshold is 5", "startup_memguard_gib above memguard_gib",
//                       "raise host.startup_memguard_gib to 8 or lower host.memguard_gib to 3"});
//
// An error means broken or dangerous now; a warning means latent, cheap or unreadable. What cannot be read is
// never clean. `rule` is stable: scripts may rely on it, and docs/doctor.md has a section of that name.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace spark::ops {

enum class Severity { kWarning, kError };

struct Finding {
  std::string rule;  // stable id, such as "fabric.subnets"
  Severity severity = Severity::kError;
  std::string file;      // the file to look at, relative to the repository; may be empty
  std::string where;     // a path in it, such as "nodes[2].roce_peer_hcas.1", or a node's name
  std::string evidence;  // what was seen: "names rocep1s0f0 twice"
  std::string expected;  // what should be there instead
  std::string fix;       // what to do, as a command or an edit
  std::vector<std::string> details =
      {};  // printed one per line under the finding: a diff, a list of commands

  bool operator==(const Finding&) const = default;
};

using Findings = std::vector<Finding>;

// The order in which they are printed: errors last, where a terminal shows them.
inline void warnings_first(Findings& findings) {
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
}

}  // namespace spark::ops
