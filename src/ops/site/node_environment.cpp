#include "ops/site/node_environment.h"

#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

constexpr const char* kSparkManagementInterface = "enP7s7";  // the 10 GbE port of every DGX Spark

std::string entry_path(const NodeMap& map, const Node& node, const char* field) {
  for (size_t i = 0; i < map.nodes.size(); ++i) {
    if (&map.nodes[i] == &node) return "nodes[" + std::to_string(i) + "]." + field;
  }
  return std::string("node ") + node.name + " " + field;
}

// The forwarded mesh reaches the opposite rank through both neighbours. The lower rank of the pair uses
// stripe 0 by its next and stripe 1 by its previous neighbour, the higher one the other way round, so that
// the two directions meet; four paths add the crossed pair.
std::vector<std::string> opposite_devices(const ClusterProfile& profile, const Node& node) {
  const int64_t opposite = (node.rank + 2) % 4;
  const PeerDevices* next = node.peer((node.rank + 1) % 4);
  const PeerDevices* previous = node.peer((node.rank + 3) % 4);
  if (next == nullptr || previous == nullptr || next->devices.size() < 2 || previous->devices.size() < 2)
    return {};
  const PeerDevices* first = node.rank < opposite ? next : previous;
  const PeerDevices* second = node.rank < opposite ? previous : next;
  std::vector<std::string> devices = {first->devices[0], second->devices[1]};
  if (profile.mesh_paths == 4) {
    devices.push_back(second->devices[0]);
    devices.push_back(first->devices[1]);
  }
  return devices;
}

// UCX joins the native engine's ranks. It is given every port that a cable leads from, and told that a RoCE
// port reaches its own subnet only: so it takes, for each peer, the two ports of that peer's cable, which are
// other ones for every peer. (Otherwise it takes every RoCE port to reach every other one.) Newer versions
// than 1.16 look routes up instead, with the same result. The management interface is there for ranks that no
// cable joins: the opposite one of a ring of four. Over TCP alone a node cannot tell which of a peer's
// addresses it reaches, so there UCX is given one interface that reaches all.
void add_ucx_variables(const ClusterProfile& profile, const NodeMap& map, const Node& node,
                       std::map<std::string, NodeVariable>& variables) {
  const auto add = [&](const char* name, const std::string& value, const char* field) {
    if (!value.empty() && !profile.environment.contains(name))
      variables[name] = {value, entry_path(map, node, field)};
  };
  if (profile.host.hardware != "spark")
    return add("UCX_NET_DEVICES", node.management_interface, "management_interface");
  std::string ports;
  for (const std::string& device : node.devices()) ports += (ports.empty() ? "" : ",") + device + ":1";
  if (ports.empty()) return;
  const std::string& named = node.management_interface;
  add("UCX_NET_DEVICES", ports + "," + (named.empty() ? kSparkManagementInterface : named), "roce_peer_hcas");
  add("UCX_IB_ROCE_LOCAL_SUBNET", "y", "roce_peer_hcas");
  if (node.roce_gid_index) add("UCX_IB_GID_INDEX", std::to_string(*node.roce_gid_index), "roce_gid_index");
}

}  // namespace

std::string peer_devices_json(const ClusterProfile& profile, const NodeMap& map, const Node& node) {
  Json peers = Json::object();
  for (const PeerDevices& peer : node.peers) peers[std::to_string(peer.rank)] = peer.devices;
  const bool mesh = profile.transport != nullptr && profile.transport->id == Transport::kRocenanteMesh4;
  if (mesh && map.nodes.size() == 4) {
    const std::vector<std::string> devices = opposite_devices(profile, node);
    if (!devices.empty()) peers[std::to_string((node.rank + 2) % 4)] = devices;
  }
  return peers.dump();
}

std::map<std::string, NodeVariable> node_environment(const ClusterProfile& profile, const NodeMap& map,
                                                     const Node& node) {
  std::map<std::string, NodeVariable> result;
  for (const auto& [name, value] : profile.environment) result[name] = {value, "profile"};
  if (profile.engine_kind == EngineKind::kNative) {
    add_ucx_variables(profile, map, node, result);
    return result;
  }
  SPARK_CHECK(profile.transport != nullptr);
  const TransportTraits& transport = *profile.transport;
  const std::string prefix = transport.prefix;

  result["VLLM_HOST_IP"] = {node.management_ip, entry_path(map, node, "management_ip")};
  const std::string peers_origin = entry_path(map, node, "roce_peer_hcas");
  if (transport.one_shot) {
    result[prefix + "_PEER_HCAS"] = {peer_devices_json(profile, map, node), peers_origin};
  } else {
    result.erase(prefix + "_PEER_HCAS");
  }
  if (transport.neighbour_ring) {
    std::string exact = "=";
    for (const std::string& device : node.devices()) exact += (exact.size() > 1 ? "," : "") + device;
    result["NCCL_IB_HCA"] = {exact, peers_origin};
  }
  if (transport.sparknet) result[prefix + "_TOPOLOGY"] = {transport.topology, "fabric.transport"};
  if (node.roce_gid_index) {
    const NodeVariable index = {std::to_string(*node.roce_gid_index),
                                entry_path(map, node, "roce_gid_index")};
    result["NCCL_IB_GID_INDEX"] = index;
    result[prefix + "_GID_INDEX"] = index;
  }
  if (!node.management_interface.empty()) {
    const NodeVariable name = {node.management_interface, entry_path(map, node, "management_interface")};
    for (const char* variable : {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"}) {
      result[variable] = name;
    }
  }
  return result;
}

std::vector<std::string> rank_arguments(const ClusterProfile& profile, const Node& node) {
  std::vector<std::string> arguments = {"--node-rank",   std::to_string(node.rank),
                                        "--master-addr", profile.distributed.master_addr,
                                        "--master-port", std::to_string(profile.distributed.master_port)};
  if (profile.engine_kind == EngineKind::kVllm && !node.head) arguments.emplace_back("--headless");
  return arguments;
}

int64_t configured_gid_index(const ClusterProfile& profile, const Node& node, int64_t fallback) {
  if (node.roce_gid_index) return *node.roce_gid_index;
  const std::string prefix = profile.transport == nullptr ? "B12X_ROCE" : profile.transport->prefix;
  for (const std::string& name : {prefix + "_GID_INDEX", std::string("NCCL_IB_GID_INDEX")}) {
    const std::string value = profile.environment_value(name);
    if (!value.empty()) return whole_number(value).value_or(fallback);
  }
  return 3;
}

}  // namespace spark::ops
