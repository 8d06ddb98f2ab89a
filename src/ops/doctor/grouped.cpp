#include "ops/doctor/grouped.h"

#include <algorithm>

namespace spark::ops {
namespace {

// Of a file, the place is a setting: two of them are two things to correct. Cables and ports are two words.
bool is_of_a_node(const Finding& finding) {
  return finding.file.empty() && !finding.where.empty() && finding.where.find(' ') == std::string::npos;
}

bool same_but_for_the_node(const Finding& a, const Finding& b) {
  return is_of_a_node(a) && is_of_a_node(b) && a.rule == b.rule && a.severity == b.severity &&
         a.evidence == b.evidence && a.expected == b.expected && a.fix == b.fix && a.details == b.details;
}

}  // namespace

Findings grouped_by_node(const Findings& findings) {
  Findings grouped;
  std::vector<const Finding*> firsts;
  for (const Finding& finding : findings) {
    const auto first = std::find_if(firsts.begin(), firsts.end(), [&](const Finding* earlier) {
      return same_but_for_the_node(*earlier, finding);
    });
    if (first == firsts.end()) {
      firsts.push_back(&finding);
      grouped.push_back(finding);
    } else {
      grouped[static_cast<size_t>(first - firsts.begin())].where += ", " + finding.where;
    }
  }
  return grouped;
}

}  // namespace spark::ops
