// The environment of one rank: the profile's variables plus those that follow from the node map.
//
//   for (const auto& [name, variable] : node_environment(profile, map, node)) use(name, variable.value);
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ops/site/node_map.h"
#include "ops/site/profile.h"

namespace spark::ops {

struct NodeVariable {
  std::string value;
  std::string origin;  // "profile", or what of the node map it follows from: "nodes[2].management_ip"
};

// Sorted by name in byte order, as it is rendered. The profile's transport must be known (SPARK_CHECK).
std::map<std::string, NodeVariable> node_environment(const ClusterProfile& profile, const NodeMap& map,
                                                     const Node& node);

// What every rank adds to the profile's server arguments: its rank, the rendezvous, --headless on vLLM
// workers.
std::vector<std::string> rank_arguments(const ClusterProfile& profile, const Node& node);

// The GID slot that the node's RDMA devices must use: the node's own, else the one-shot transport's, else
// NCCL's, else 3. `fallback` when the configured text is no number.
int64_t configured_gid_index(const ClusterProfile& profile, const Node& node, int64_t fallback = 3);

// The peer map as compact JSON, in the node map's order; on the forwarded mesh with the opposite rank
// appended.
std::string peer_devices_json(const ClusterProfile& profile, const NodeMap& map, const Node& node);

}  // namespace spark::ops
