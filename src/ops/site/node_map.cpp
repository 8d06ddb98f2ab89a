#include "ops/site/node_map.h"

#include <algorithm>
#include <charconv>

#include "ops/site/json_object.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

constexpr int64_t kMaxRank = 63;  // form only; the fabric rules demand 0..n-1
constexpr size_t kMaxNodes = 64;

std::optional<int64_t> rank_of(const std::string& key) {
  int64_t rank = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), rank);
  const bool plain = error == std::errc() && end == key.data() + key.size() && std::to_string(rank) == key;
  return plain && rank >= 0 && rank <= kMaxRank ? std::optional(rank) : std::nullopt;
}

std::vector<std::string> read_devices(const JsonReader& reader) {
  std::vector<std::string> devices;
  for (const JsonReader& item : reader.items()) {
    std::string device = read_word(item);
    if (item.json()->is_string()) devices.push_back(std::move(device));
  }
  return devices;
}

void read_peers(const JsonReader& reader, const JsonReader& all_nodes, Node& node) {
  for (const auto& [key, value] : reader.members()) {
    const auto rank = rank_of(key);
    std::vector<std::string> devices = read_devices(value);
    if (rank) {
      node.peers.push_back({*rank, std::move(devices)});
      continue;
    }
    std::string hint = "keys are the peers' ranks, such as \"0\"";
    for (const JsonReader& other :
         all_nodes.json()->is_array() ? all_nodes.items() : std::vector<JsonReader>{}) {
      const Json* entry = other.json();
      if (!entry->is_object() || !entry->contains("name") || !entry->contains("rank")) continue;
      if ((*entry)["name"] == key)
        hint = "that node's rank is " + (*entry)["rank"].dump() + ": use it as the key";
    }
    value.fault("is not a rank", hint);
  }
}

MeshPort read_mesh_port(const std::string& device, const JsonReader& reader) {
  if (!require_object(reader)) return {};
  reader.reject_unknown({"netdev", "pci", "mac", "address"});
  return {device, reader.field("netdev").string(), reader.field("pci").string(), reader.field("mac").string(),
          reader.field("address").string()};
}

Node read_node(const JsonReader& reader, const JsonReader& all_nodes) {
  Node node;
  if (!require_object(reader)) return node;
  reader.reject_unknown({"name", "ssh_host", "rank", "management_ip", "head", "roce_gid_index",
                         "roce_peer_hcas", "roce_subnets", "management_interface", "mesh_ports",
                         "mesh_hairpin_queue_size"});
  node.name = read_word(reader.field("name"));
  if (const JsonReader host = reader.field("ssh_host"); host.present()) {
    node.ssh_host = read_word(host);
    if (!is_host_name(node.ssh_host) && !is_ip(node.ssh_host)) host.fault("is not a host name or address");
  }
  node.rank = reader.field("rank").integer(0, kMaxRank);
  node.management_ip = read_word(reader.field("management_ip"));
  node.head = reader.field("head").boolean();
  node.roce_gid_index = reader.field("roce_gid_index").optional_integer(0, 255);
  read_peers(reader.field("roce_peer_hcas"), all_nodes, node);
  if (const JsonReader subnets = reader.field("roce_subnets"); subnets.present()) {
    for (const auto& [device, value] : subnets.members()) node.subnets.push_back({device, read_word(value)});
  }
  if (const JsonReader name = reader.field("management_interface"); name.present()) {
    node.management_interface = read_word(name);
  }
  if (const JsonReader ports = reader.field("mesh_ports"); ports.present()) {
    for (const auto& [device, value] : ports.members())
      node.mesh_ports.push_back(read_mesh_port(device, value));
  }
  node.mesh_hairpin_queue_size = reader.field("mesh_hairpin_queue_size").optional_integer(1, 1 << 20);
  return node;
}

}  // namespace

const PeerDevices* Node::peer(int64_t peer_rank) const {
  const auto found = std::find_if(peers.begin(), peers.end(),
                                  [&](const PeerDevices& entry) { return entry.rank == peer_rank; });
  return found == peers.end() ? nullptr : &*found;
}

std::vector<std::string> Node::devices() const {
  std::vector<std::string> all;
  for (const PeerDevices& entry : peers) all.insert(all.end(), entry.devices.begin(), entry.devices.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

const Node* NodeMap::find(std::string_view name) const {
  for (const Node& node : nodes) {
    if (node.name == name) return &node;
  }
  return nullptr;
}

const Node* NodeMap::with_rank(int64_t rank) const {
  for (const Node& node : nodes) {
    if (node.rank == rank) return &node;
  }
  return nullptr;
}

const Node* NodeMap::head() const {
  for (const Node& node : nodes) {
    if (node.head) return &node;
  }
  return nullptr;
}

std::vector<const Node*> NodeMap::deployment_order() const {
  std::vector<const Node*> order;
  for (const Node& node : nodes) order.push_back(&node);
  std::stable_sort(order.begin(), order.end(), [](const Node* a, const Node* b) {
    return a->head != b->head ? !a->head : a->rank < b->rank;
  });
  return order;
}

NodeMap read_node_map(const Json& document, Faults& faults) {
  NodeMap map;
  const JsonReader root(document, "", faults);
  if (!document.is_object()) {
    root.fault("must be an object with schema_version, ssh_user and nodes");
    return map;
  }
  root.reject_unknown({"schema_version", "ssh_user", "nodes", "description"});
  root.field("schema_version").integer(1, 1, 1);
  map.ssh_user = read_word(root.field("ssh_user"));
  if (root.field("ssh_user").present() && !is_host_name(map.ssh_user)) {
    root.field("ssh_user").fault("is not a login name", "letters, digits, dots, - and _");
  }
  root.field("description").optional_string();
  const JsonReader nodes = root.field("nodes");
  const std::vector<JsonReader> entries = nodes.items();
  if (nodes.present() && nodes.json()->is_array() && entries.empty())
    nodes.fault("is empty", "list the machines");
  if (entries.size() > kMaxNodes) {
    nodes.fault("has " + std::to_string(entries.size()) + " entries; a cluster has three or four");
    return map;
  }
  for (const JsonReader& entry : entries) map.nodes.push_back(read_node(entry, nodes));
  return map;
}

}  // namespace spark::ops
