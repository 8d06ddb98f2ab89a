// Runs the probe script where it has to run: on nodes, on this machine, on a recorded tree.
//
//   Remote remote;
//   std::vector<NodeAnswer> answers = probe_nodes(site, nodes, {}, remote);   // all at once, one per node
//   NodeAnswer answer = probe_here(request);          // request.root "/" is this machine, else a recorded
//   tree
#pragma once

#include <stop_token>
#include <vector>

#include "ops/probe/answer.h"
#include "ops/probe/script.h"
#include "ops/remote/remote.h"

namespace spark::ops {

struct GatherOptions {
  bool fragmentation = true;
  std::vector<std::string> policy_files = {};  // see ProbeRequest
  double timeout_s = 40;                       // for the slowest node; the script's own limits are shorter
};

// In the order of `nodes`. A node that cannot be asked is an answer that says why; nothing is thrown for it.
std::vector<NodeAnswer> probe_nodes(const Site& site, const std::vector<const Node*>& nodes,
                                    const GatherOptions& options, const Remote& remote,
                                    std::stop_token stop = {});

NodeAnswer probe_here(const std::string& name, const ProbeRequest& request, double timeout_s = 40);

// One recorded tree per node: FOLDER/NODE. A node without one is unreachable.
std::vector<NodeAnswer> probe_recorded(const Site& site, const std::vector<const Node*>& nodes,
                                       const std::string& folder);

}  // namespace spark::ops
