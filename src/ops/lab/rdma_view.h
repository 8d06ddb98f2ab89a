// The RDMA devices that a node of the lab shows below /sys/class/infiniband: plain files with the content
// that the kernel of a Spark has there, made up from the address plan. Nothing speaks RDMA through them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ops/lab/plan.h"

namespace spark::ops {

// What a fault changes, by interface.
struct RdmaChanges {
  std::map<std::string, bool> down;
  std::map<std::string, int> mtu;
  std::map<std::string, std::string> address;  // "10.99.1.1/24"
};

// Path below the folder -> content. GID table: 0 RoCE v1 and 1 RoCE v2 link-local, 2 RoCE v1 and 3 RoCE v2 of
// the IPv4 address.
std::map<std::string, std::string> rdma_view(const LabNode& node, const RdmaChanges& changes);

void write_rdma_view(const std::string& folder, const std::map<std::string, std::string>& files);

}  // namespace spark::ops
