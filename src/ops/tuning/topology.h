// A profile for another topology, and a probe command for one node. Both only write or print.
//
//   create_topology(repository, "config/cluster.json", "config/nodes-ring4.local.json",
//   "experiments/ring.json"); std::cout << probe_command(site, *site.nodes.find("node2"), 29999) << "\n";
#pragma once

#include <string>

#include "ops/site/site.h"

namespace spark::ops {

inline constexpr int64_t kProbePort = 29999;

// Three nodes keep the base's transport; four get nccl-ring with the ring policy and one channel. Image,
// model, context and cache are inherited: they say what is configured, not that it was accepted on this
// topology.
void create_topology(const Repository& repository, const std::string& base, const std::string& nodes_config,
                     const std::string& output);

// A bounded, model-free container that checks the collectives between all ranks; every rank runs its own
// command at the same time, with serving stopped. Throws Error for a port that cannot be used.
std::string probe_command(const Site& site, const Node& node, int64_t port);

}  // namespace spark::ops
