// Situation -> steps. Pure: what a start, a stop or a sync does is a list that can be printed, judged and
// journalled before anything is done.
//
//   Waves waves = plan_start(cluster, {.replace = true});
//   std::cout << start_plan_text(launches, options);
#pragma once

#include "ops/launch/render.h"
#include "ops/launch/steps.h"

namespace spark::ops {

// One rank, and what was found on its node. Without --apply nothing is asked, and nothing is found.
struct ClusterNode {
  std::string name;
  bool head = false;
  bool exists = false;   // a service of this name, running or not
  bool running = false;  // it runs
  std::string commit;    // of the checkout
  bool keeps = false;    // ending leaves nothing to start again: a unit, a process
};

struct ClusterSituation {
  std::vector<ClusterNode> nodes;  // in deployment order: workers by rank, then the head
  const ClusterNode& head() const { return nodes.back(); }
};

struct StartOptions {
  bool replace = false;
  std::string backup;  // name that a retired container gets
};

struct StopOptions {
  bool remove = false;
  bool parallel = false;
};

Waves plan_start(const ClusterSituation& cluster, const StartOptions& options);
Waves plan_stop(const ClusterSituation& cluster, const StopOptions& options);
Waves plan_prune(const ClusterSituation& cluster);
Waves plan_sync(const ClusterSituation& cluster, const std::string& revision);

// What the plan says to a person, launches in deployment order. The last line asks for --apply.
std::string start_plan_text(const Site& site, const std::vector<RankLaunch>& launches, bool replace);
std::string stop_plan_text(const std::vector<RankLaunch>& launches, const StopOptions& options);
// `evidence`: folders of failed starts that go as well.
std::string prune_plan_text(const std::vector<RankLaunch>& launches,
                            const std::vector<std::string>& evidence);
std::string sync_plan_text(const std::vector<RankLaunch>& launches, const std::string& revision,
                           const std::vector<std::string>& node_maps);

}  // namespace spark::ops
