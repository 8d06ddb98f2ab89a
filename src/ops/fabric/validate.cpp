#include "ops/fabric/validate.h"

#include <algorithm>
#include <map>
#include <set>

#include "ops/fabric/mesh_ports.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

using Strings = std::vector<std::string>;

std::string node_path(size_t index, const std::string& field) {
  return "nodes[" + std::to_string(index) + "]" + (field.empty() ? "" : "." + field);
}

std::string joined(const Strings& words, const std::string& separator = ", ") {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

// "10.12.1.0/24" and nothing else: four numbers, the last one 0.
bool is_strict_24(const std::string& cidr) {
  const size_t slash = cidr.find('/');
  if (slash == std::string::npos || cidr.substr(slash) != "/24") return false;
  const std::string address = cidr.substr(0, slash);
  return is_ipv4(address) && address.ends_with(".0");
}

// One end of one cable path.
struct PathEnd {
  size_t node = 0;
  int64_t peer = 0;
  size_t stripe = 0;
  std::string device;
};

class FabricRules {
 public:
  FabricRules(const ClusterProfile& profile, const NodeMap& map)
      : profile_(profile), map_(map), count_(static_cast<int64_t>(map.nodes.size())) {}

  Findings run() {
    check_node_count();
    check_identity();
    if (!ranks_are_contiguous() || !findings_of("fabric.nodes").empty()) return std::move(findings_);
    check_mesh_paths();
    if (!check_transport()) return std::move(findings_);
    for (size_t i = 0; i < map_.nodes.size(); ++i) check_peers(i);
    for (size_t i = 0; i < map_.nodes.size(); ++i) check_reciprocal(i);
    check_common_stripes();
    check_subnets();
    if (profile_.transport->id == Transport::kRocenanteMesh4) check_mesh_ports(map_, findings_);
    return std::move(findings_);
  }

 private:
  void add(const char* rule, std::string where, std::string evidence, std::string expected, std::string fix) {
    findings_.push_back({rule,
                         Severity::kError,
                         {},
                         std::move(where),
                         std::move(evidence),
                         std::move(expected),
                         std::move(fix)});
  }

  Findings findings_of(std::string_view rule) const {
    Findings found;
    for (const Finding& finding : findings_) {
      if (finding.rule == rule) found.push_back(finding);
    }
    return found;
  }

  void check_node_count() {
    if (count_ == 3 || count_ == 4) return;
    if (count_ == 2) {
      add("fabric.nodes", "nodes", "2 nodes",
          "three or four: on two nodes the weights leave no useful context, each would carry half as much "
          "again",
          "add a third node and cable every pair");
    } else {
      add("fabric.nodes", "nodes", std::to_string(count_) + (count_ == 1 ? " node" : " nodes"),
          "three nodes in a triangle or four in a ring, each cabled directly", "use three or four nodes");
    }
  }

  void check_identity() {
    std::map<std::string, std::string> names, addresses;
    for (size_t i = 0; i < map_.nodes.size(); ++i) {
      const Node& node = map_.nodes[i];
      if (!is_host_name(node.name)) {
        add("fabric.identity", node_path(i, "name"), "is \"" + node.name + "\"",
            "letters, digits, dots, - and _, starting with a letter or digit", "use the node's host name");
      } else if (const auto [first, inserted] = names.emplace(node.name, node_path(i, "name")); !inserted) {
        add("fabric.identity", node_path(i, "name"),
            "\"" + node.name + "\" stands at " + first->second + " as well",
            "a name of its own for every node", "rename one of the two");
      }
      if (!is_ip(node.management_ip)) {
        add("fabric.identity", node_path(i, "management_ip"), "is \"" + node.management_ip + "\"",
            "an IP address", "enter the address of the management interface");
      } else if (const auto [first, inserted] =
                     addresses.emplace(node.management_ip, node_path(i, "management_ip"));
                 !inserted) {
        add("fabric.identity", node_path(i, "management_ip"),
            node.management_ip + " stands at " + first->second + " as well",
            "an address of its own for every node", "correct one of the two");
      }
    }
  }

  bool ranks_are_contiguous() {
    std::set<int64_t> seen;
    bool good = true;
    for (size_t i = 0; i < map_.nodes.size(); ++i) {
      const int64_t rank = map_.nodes[i].rank;
      if (rank >= 0 && rank < count_ && seen.insert(rank).second) continue;
      add("fabric.ranks", node_path(i, "rank"),
          "is " + std::to_string(rank) + (seen.count(rank) != 0 ? ", which another node has as well" : ""),
          "every rank from 0 to " + std::to_string(count_ - 1) + " once",
          "number the nodes in cable order, the head 0");
      good = false;
    }
    return good;
  }

  void check_mesh_paths() {
    const bool mesh = profile_.transport != nullptr && profile_.transport->id == Transport::kRocenanteMesh4;
    if (profile_.mesh_paths == 2 || (profile_.mesh_paths == 4 && mesh)) return;
    add("fabric.mesh-paths", "fabric.mesh_paths", "is " + std::to_string(profile_.mesh_paths),
        mesh ? "2 or 4" : "2; 4 only with rocenante-mesh4", "remove fabric.mesh_paths");
  }

  bool check_transport() {
    const TransportTraits* transport = profile_.transport;
    if (transport == nullptr) {
      const auto guess = nearest(profile_.transport_name, transport_names());
      add("fabric.transport", "fabric.transport", "\"" + profile_.transport_name + "\" is not a transport",
          "one of " + joined(transport_names()),
          guess ? "did you mean " + *guess + "?" : "three nodes: oneshot-direct; four nodes: oneshot-ring4");
      return false;
    }
    if (transport->nodes == 0 || transport->nodes == count_) return true;
    const std::string name = transport->name;
    if (count_ == 4) {
      add("fabric.transport", "fabric.transport", "is " + name + " on four nodes",
          "a neighbour ring: four nodes have no cable to the opposite rank",
          "set fabric.transport to oneshot-ring4");
    } else {
      add("fabric.transport", "fabric.transport", "is " + name + " on " + std::to_string(count_) + " nodes",
          "a transport for " + std::to_string(count_) + " nodes: " + name + " needs exactly " +
              std::to_string(transport->nodes),
          "set fabric.transport to oneshot-direct");
    }
    return false;
  }

  std::set<int64_t> expected_peers(int64_t rank) const {
    if (profile_.transport->neighbour_ring) return {(rank + 1) % count_, (rank + count_ - 1) % count_};
    std::set<int64_t> peers;
    for (int64_t other = 0; other < count_; ++other) {
      if (other != rank) peers.insert(other);
    }
    return peers;
  }

  void check_peers(size_t index) {
    const Node& node = map_.nodes[index];
    const std::set<int64_t> expected = expected_peers(node.rank);
    const bool mesh = profile_.transport->id == Transport::kRocenanteMesh4;
    Strings wanted;
    for (const int64_t peer : expected) wanted.push_back(std::to_string(peer));
    for (const int64_t peer : expected) {
      if (node.peer(peer) != nullptr) continue;
      add("fabric.peers", node_path(index, "roce_peer_hcas"),
          "names no device for rank " + std::to_string(peer), "devices for the ranks " + joined(wanted),
          "add \"" + std::to_string(peer) + "\": [DEVICE, DEVICE]");
    }
    std::map<std::string, int64_t> owners;
    std::set<size_t> counts;
    for (const PeerDevices& peer : node.peers) {
      const std::string where = node_path(index, "roce_peer_hcas." + std::to_string(peer.rank));
      if (expected.count(peer.rank) == 0) {
        add("fabric.peers", where,
            peer.rank == node.rank ? "names the node itself" : "names rank " + std::to_string(peer.rank),
            "only the ranks " + joined(wanted) + ", to which there are cables", "remove this entry");
        continue;
      }
      const size_t least = mesh ? 2 : 1;
      if (peer.devices.size() < least || peer.devices.size() > 2) {
        add("fabric.peers", where, "names " + std::to_string(peer.devices.size()) + " devices",
            mesh ? "two: the forwarded mesh uses both stripes" : "one or two: a cable has two PCIe paths",
            "name the devices of the cable's port, such as rocep1s0f0 and roceP2p1s0f0");
      }
      counts.insert(peer.devices.size());
      for (const std::string& device : peer.devices) check_device(where, device, peer.rank, owners);
    }
    if (profile_.transport->one_shot && counts.size() > 1) {
      add("fabric.peers", node_path(index, "roce_peer_hcas"),
          "names different numbers of devices for its peers",
          "as many for every peer: one-shot transports use one stripe count",
          "name one, or two, devices everywhere");
    }
  }

  void check_device(const std::string& where, const std::string& device, int64_t peer,
                    std::map<std::string, int64_t>& owners) {
    if (!is_host_name(device)) {
      add("fabric.peers", where, "\"" + device + "\" is not a device name",
          "a name as in /sys/class/infiniband", "list them on the node: ls /sys/class/infiniband");
      return;
    }
    const auto [owner, inserted] = owners.emplace(device, peer);
    if (inserted) return;
    add("fabric.peers", where,
        device + (owner->second == peer ? " is named twice"
                                        : " also serves rank " + std::to_string(owner->second)),
        "a device of its own for every path: switched fabrics are not supported, cables are direct",
        "name the devices of the port that the cable to rank " + std::to_string(peer) + " is in");
  }

  void check_reciprocal(size_t index) {
    const Node& node = map_.nodes[index];
    for (const PeerDevices& peer : node.peers) {
      const Node* other = map_.with_rank(peer.rank);
      const PeerDevices* back = other == nullptr ? nullptr : other->peer(node.rank);
      if (back == nullptr || node.rank > peer.rank || back->devices.size() == peer.devices.size()) continue;
      add("fabric.peers", node_path(index, "roce_peer_hcas." + std::to_string(peer.rank)),
          "names " + std::to_string(peer.devices.size()) + " devices, " + other->name + " names " +
              std::to_string(back->devices.size()) + " for the same cable",
          "as many stripes at both ends of a cable", "name the same number of devices at both ends");
    }
  }

  // Nodes whose own counts differ are reported already; the others must agree.
  void check_common_stripes() {
    if (!profile_.transport->one_shot) return;
    std::map<size_t, Strings> nodes_by_count;
    for (const Node& node : map_.nodes) {
      std::set<size_t> counts;
      for (const PeerDevices& peer : node.peers) counts.insert(peer.devices.size());
      if (counts.size() == 1) nodes_by_count[*counts.begin()].push_back(node.name);
    }
    if (nodes_by_count.size() < 2) return;
    Strings parts;
    for (const auto& [stripes, names] : nodes_by_count)
      parts.push_back(joined(names) + ": " + std::to_string(stripes));
    add("fabric.stripes", "nodes", "stripe counts differ (" + joined(parts, "; ") + ")",
        "one count over all ranks", "name one, or two, devices everywhere");
  }

  // Subnets are required on rings; where a triangle states them they must be right as well.
  void check_subnets() {
    if (!findings_of("fabric.peers").empty()) return;
    std::map<std::string, std::vector<PathEnd>> by_subnet;
    for (size_t i = 0; i < map_.nodes.size(); ++i) {
      const Node& node = map_.nodes[i];
      const Strings devices = node.devices();
      for (const DeviceSubnet& subnet : node.subnets) {
        if (std::find(devices.begin(), devices.end(), subnet.device) != devices.end()) continue;
        add("fabric.subnets", node_path(i, "roce_subnets." + subnet.device),
            "belongs to no peer of this node", "devices of roce_peer_hcas",
            "remove it, or correct the device's name");
      }
      for (const PeerDevices& peer : node.peers) {
        for (size_t stripe = 0; stripe < peer.devices.size(); ++stripe) {
          collect_subnet(i, {i, peer.rank, stripe, peer.devices[stripe]}, by_subnet);
        }
      }
    }
    for (const auto& [cidr, ends] : by_subnet) check_subnet_ends(cidr, ends);
  }

  void collect_subnet(size_t index, const PathEnd& end,
                      std::map<std::string, std::vector<PathEnd>>& by_subnet) {
    const Node& node = map_.nodes[index];
    const auto found = std::find_if(node.subnets.begin(), node.subnets.end(),
                                    [&](const DeviceSubnet& subnet) { return subnet.device == end.device; });
    const std::string where = node_path(index, "roce_subnets." + end.device);
    if (found == node.subnets.end()) {
      if (profile_.transport->neighbour_ring) {
        add("fabric.subnets", where, "is missing",
            "the /24 of every cable path: NCCL chooses the NIC by subnet",
            "add \"" + end.device + "\": \"10.x.y.0/24\"");
      }
    } else if (!is_strict_24(found->cidr)) {
      add("fabric.subnets", where, "is \"" + found->cidr + "\"",
          "an IPv4 network of 24 bits, such as 10.12.1.0/24", "write the network address, ending in .0/24");
    } else {
      by_subnet[found->cidr].push_back(end);
    }
  }

  void check_subnet_ends(const std::string& cidr, const std::vector<PathEnd>& ends) {
    const auto path_of = [&](const PathEnd& end) {
      return node_path(end.node, "roce_subnets." + end.device);
    };
    const auto name_of = [&](const PathEnd& end) { return map_.nodes[end.node].name + " " + end.device; };
    if (ends.size() != 2) {
      Strings places;
      for (const PathEnd& end : ends) places.push_back(name_of(end));
      // On a triangle the other end may leave its subnets out.
      if (ends.size() == 1 && !profile_.transport->neighbour_ring && !other_end_states_subnet(ends[0]))
        return;
      add("fabric.subnets", path_of(ends.back()),
          cidr + " stands at " + std::to_string(ends.size()) + (ends.size() == 1 ? " end (" : " ends (") +
              joined(places) + ")",
          "exactly the two ends of one cable",
          "give every cable path a subnet of its own, the same at both ends");
      return;
    }
    const PathEnd& a = ends[0];
    const PathEnd& b = ends[1];
    if (a.peer != map_.nodes[b.node].rank || b.peer != map_.nodes[a.node].rank) {
      add("fabric.subnets", path_of(b), cidr + " joins " + name_of(a) + " and " + name_of(b),
          "the two ends of one declared cable", "compare roce_subnets with roce_peer_hcas on both nodes");
    } else if (profile_.transport->one_shot && a.stripe != b.stripe) {
      add("fabric.subnets", path_of(b),
          cidr + " is stripe " + std::to_string(a.stripe) + " on " + map_.nodes[a.node].name +
              " and stripe " + std::to_string(b.stripe) + " on " + map_.nodes[b.node].name,
          "the same stripe position at both ends",
          "list the devices of the cable in the same order on both nodes");
    }
  }

  bool other_end_states_subnet(const PathEnd& end) const {
    const Node* other = map_.with_rank(end.peer);
    const PeerDevices* back = other == nullptr ? nullptr : other->peer(map_.nodes[end.node].rank);
    if (back == nullptr || end.stripe >= back->devices.size()) return false;
    return std::any_of(other->subnets.begin(), other->subnets.end(), [&](const DeviceSubnet& subnet) {
      return subnet.device == back->devices[end.stripe];
    });
  }

  const ClusterProfile& profile_;
  const NodeMap& map_;
  int64_t count_;
  Findings findings_;
};

}  // namespace

Findings validate_fabric(const ClusterProfile& profile, const NodeMap& map) {
  return FabricRules(profile, map).run();
}

}  // namespace spark::ops
