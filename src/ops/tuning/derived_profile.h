// Profiles made from another one by a program: what `spark tuning create` and `spark topology create` share.
//
//   const BaseProfile base = load_base(repository, "config/cluster-64k.json");
//   base.sha256;      // of the file, followed by every file that it extends, in the order in which they
//   apply Json document = base.document;      // resolved: one flat document, no inheritance, no site layer
//   retarget(document, map, "config/nodes.json");
//   write_experiment(repository, "experiments/ring.json", document, map);
//
// A derived profile cannot be launched until somebody edits it: launch_enabled is false and the branch
// removed.
#pragma once

#include <string>

#include "ops/site/site.h"

namespace spark::ops {

struct BaseProfile {
  std::string path;
  std::string sha256;
  Json document;
  ClusterProfile profile;
};

// Throws Error with every fault of the profile. vLLM profiles only.
BaseProfile load_base(const Repository& repository, const std::string& path);

NodeMap load_node_map(const Repository& repository, const std::string& path);

// Sets nodes_config and master_addr, forbids launching, removes the branch.
void retarget(Json& document, const NodeMap& map, const std::string& nodes_config);

// The value of a server argument, set or appended; the array stays in order.
void set_argument(Json& document, const std::string& name, const std::string& value);
void add_switch(Json& document, const std::string& name);

// Checks that the result reads back and that its cables and transport agree, then writes it as a new file
// below experiments/. Throws Error otherwise, and writes nothing.
void write_experiment(const Repository& repository, const std::string& output, const Json& document,
                      const NodeMap& map);

}  // namespace spark::ops
