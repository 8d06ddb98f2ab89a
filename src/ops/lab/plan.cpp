#include "ops/lab/plan.h"

#include <cstdio>

#include "common/hash.h"
#include "ops/fabric/addresses.h"
#include "ops/fabric/layout.h"
#include "ops/fabric/ports.h"

namespace spark::ops {
namespace {

void check(const LabOptions& options) {
  Faults faults;
  if (options.nodes != 3 && options.nodes != 4)
    faults.push_back({"--nodes", "a lab has three or four nodes, not " + std::to_string(options.nodes), ""});
  if (options.directory.empty() || options.directory.front() != '/')
    faults.push_back({"--dir", "must be an absolute path", ""});
  if (options.directory.size() > 200 || options.directory.find_first_of(" \t\n\"'\\%:,") != std::string::npos)
    faults.push_back(
        {"--dir", "must be short and without blanks, quotes, colons, commas and percent signs", ""});
  if (options.memory_bytes < int64_t{256} << 20)
    faults.push_back({"--memory", "a node needs at least 256 MiB of memory", ""});
  if (options.disk_bytes < int64_t{64} << 20)
    faults.push_back({"--disk", "a node needs at least 64 MiB of disk", ""});
  throw_if_any(faults, "spark lab");
}

// The one that rdma_view.cpp's link-local GIDs are made of.
std::string mac_of(int64_t rank, size_t port) {
  char text[64];
  std::snprintf(text, sizeof text, "58:ff:%02llx:00:00:%02zx", static_cast<long long>(rank + 1), port);
  return text;
}

LabNode lab_node(const Node& node) {
  LabNode result{.name = node.name, .rank = node.rank, .management_ip = node.management_ip, .interfaces = {}};
  for (const PortPath& port : port_paths()) {
    for (const DeviceSubnet& subnet : node.subnets) {
      if (subnet.device != port.device) continue;
      result.interfaces.push_back({port.netdev, node_address(subnet.cidr, node.rank) + "/24", kFabricMtu,
                                   mac_of(node.rank, result.interfaces.size() + 1)});
    }
  }
  return result;
}

}  // namespace

const LabNode& LabPlan::node(const std::string& name) const {
  std::string known;
  for (const LabNode& candidate : nodes) {
    if (candidate.name == name) return candidate;
    known += (known.empty() ? "" : ", ") + candidate.name;
  }
  throw Error("is not a node of this lab", name, "its nodes are " + known);
}

LabPlan plan_lab(const LabOptions& options) {
  check(options);
  LabPlan plan;
  plan.options = options;
  plan.id = sha256_hex(options.directory).substr(0, kLabIdDigits);
  AddressRequest request{.ssh_user = kLabUser, .nodes = {}};
  for (int64_t i = 1; i <= options.nodes; ++i)
    request.nodes.push_back({"node" + std::to_string(i), "192.0.2." + std::to_string(i), ""});
  plan.map = plan_addresses(request);
  for (Node& node : plan.map.nodes) {
    node.management_interface = kLabManagementInterface;
    plan.nodes.push_back(lab_node(node));
  }
  for (const Cable& cable : fabric_layout(plan.map).cables) {
    for (const CablePath& path : cable.paths)
      plan.links.push_back({cable.a.rank, path.a.netdev, cable.b.rank, path.b.netdev, path.stripe});
  }
  return plan;
}

}  // namespace spark::ops
