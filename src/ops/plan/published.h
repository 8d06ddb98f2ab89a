// The published figures of the reference deployment beside what a plan predicts: the table of docs/plan.md.
//
//   for (const Comparison& c : compare_with_published(plans)) print(c.figure, c.published, c.predicted);
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ops/plan/plan.h"

namespace spark::ops {

struct Comparison {
  std::string profile;
  std::string figure;  // "decode step, prose, 8 streams"
  std::string unit;
  double published = 0;
  double predicted = 0;
  std::string role;  // "fitted", "held out", "other image"

  double deviation() const { return predicted / published - 1; }
};

// Every published figure of the profiles given; `requests` by profile file.
std::vector<Comparison> compare_with_published(const std::map<std::string, PlanRequest>& requests);
std::vector<std::string> published_profiles();
std::string comparison_markdown(const std::vector<Comparison>& rows);

}  // namespace spark::ops
