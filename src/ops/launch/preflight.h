// What must hold before a node is touched: the live doctor's rules that matter for a start, and what only a
// start asks (revision, origin, image, an existing service, holds). Reads only.
//
//   Preflight seen = preflight_start(site, repository, remote, {.replace = true});
//   if (has_error(seen.findings)) ...
#pragma once

#include <stop_token>

#include "ops/launch/node_look.h"
#include "ops/launch/planner.h"
#include "ops/probe/gather.h"
#include "ops/site/finding.h"

namespace spark::ops {

struct LocalState {
  std::string revision;              // HEAD of the repository here
  std::vector<std::string> changes;  // what git status shows
};
LocalState local_state(const Repository& repository);  // throws Error where there is no git repository

struct PreflightInput {
  const Site& site;
  const LocalState& local;
  const std::vector<NodeAnswer>& answers;
  const std::vector<NodeLook>& looks;
  bool replace = false;
  bool holds_forced = false;
};
// Pure. Errors and warnings, in node order.
Findings judge_preflight(const PreflightInput& input);

// "3 warnings (COMMAND shows them)": as many as that command, which judges the files as well, shows; empty:
// there are none.
std::string preflight_warnings(const Site& site, const Findings& preflight);

ClusterSituation situation_of(const std::vector<NodeLook>& looks, const std::vector<RankLaunch>& launches);

// Changes of a checkout that are not a writable mount's: `lines` of git status --porcelain.
std::vector<std::string> undeclared_changes(const Site& site, const std::vector<std::string>& lines);

}  // namespace spark::ops
