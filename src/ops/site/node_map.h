// The node map: which machines there are and how they are cabled. A site writes it once
// (config/nodes.json, or the file that the profile's nodes_config names).
//
//   Faults faults;
//   NodeMap map = read_node_map(parse_json(text, path), faults);  // every fault with its path, such as
//   throw_if_any(faults, path);                                   // nodes[2].roce_peer_hcas.node1: is not a
//   rank
//
// Reading checks form only. Whether the cables make a triangle or a ring is ops/fabric's business.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/json.h"

namespace spark::ops {

struct PeerDevices {
  int64_t rank = 0;                  // the peer
  std::vector<std::string> devices;  // local RDMA devices that reach it, stripe 0 first
};

struct DeviceSubnet {
  std::string device;
  std::string cidr;  // as written; "10.12.1.0/24"
};

// One port of the NIC-forwarded mesh (transport rocenante-mesh4 only).
struct MeshPort {
  std::string device;
  std::string netdev;
  std::string pci;
  std::string mac;
  std::string address;
};

struct Node {
  std::string name;
  std::string ssh_host;  // empty: `name`
  int64_t rank = 0;      // position in the cable loop
  std::string management_ip;
  bool head = false;
  std::optional<int64_t> roce_gid_index;
  std::vector<PeerDevices> peers;  // roce_peer_hcas, in file order (it is rendered in that order)
  std::vector<DeviceSubnet> subnets;
  std::string management_interface;  // empty: as the profile says
  std::vector<MeshPort> mesh_ports;
  std::optional<int64_t> mesh_hairpin_queue_size;

  const std::string& ssh_target() const { return ssh_host.empty() ? name : ssh_host; }
  const PeerDevices* peer(int64_t peer_rank) const;
  std::vector<std::string> devices() const;  // every device of the peer map, sorted by bytes, each once
};

struct NodeMap {
  std::string ssh_user;
  std::vector<Node> nodes;

  const Node* find(std::string_view name) const;
  const Node* with_rank(int64_t rank) const;
  const Node* head() const;  // the first node marked as head
  // Workers by ascending rank, then the head: the order in which ranks are started.
  std::vector<const Node*> deployment_order() const;
};

NodeMap read_node_map(const Json& document, Faults& faults);

}  // namespace spark::ops
