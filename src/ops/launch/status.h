// `spark status`: what runs on every node, what guards it, whether the API answers, and what an interrupted
// command left. Reads only.
//
//   ClusterStatus status = cluster_status(site, repository, remote);
//   std::cout << status_text(status);
#pragma once

#include "ops/launch/cluster.h"

namespace spark::ops {

struct ApiStatus {
  bool asked = false;
  bool healthy = false;
  std::string problem;
  std::optional<double> running, waiting;  // requests
};

struct ClusterStatus {
  std::string service;
  bool container = true;
  std::vector<NodeLook> nodes;  // in deployment order
  std::string head;
  ApiStatus api;
  RunHistory history;
  std::string hold;   // "" when nobody holds
  std::string claim;  // of a command that is at work, or was interrupted

  bool any_unreachable() const;
  // Every node has a running, guarded service of one image, and the API answers.
  bool serving() const;
  bool every_node_runs() const;
  std::vector<std::string> complaints() const;  // "node2: ..."
};

ClusterStatus cluster_status(const Site& site, const Repository& repository, const Remote& remote,
                             std::stop_token stop = {});

// NODE \t name|image|status \t memguard=STATE \t more, then the API, the history and what is wrong.
std::string status_text(const ClusterStatus& status);
Json status_json(const ClusterStatus& status);

}  // namespace spark::ops
