#include "ops/fabric/lldp.h"

#include <algorithm>
#include <map>
#include <set>

#include "ops/fabric/addresses.h"
#include "ops/fabric/layout.h"
#include "ops/fabric/ports.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

constexpr const char* kFormatHint = "take it on the node with: sudo lldpctl -f json";

// The far end of a cable as one interface sees it.
struct Neighbour {
  std::string system;  // host name, up to the first dot
  std::string port;    // interface name, if the neighbour says one
  std::vector<std::string> management;
};

struct PortRef {
  size_t node = 0;
  int port = 0;

  auto operator<=>(const PortRef&) const = default;
};

std::string short_name(const std::string& name) {
  return name.substr(0, name.find('.'));
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : std::string();
}

const Json* member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

// lldpctl writes one value bare and several as an array.
std::vector<const Json*> one_or_many(const Json* value) {
  std::vector<const Json*> all;
  if (value == nullptr) return all;
  if (!value->is_array()) return {value};
  for (const Json& item : *value) all.push_back(&item);
  return all;
}

Neighbour read_neighbour(const Json& interface) {
  Neighbour neighbour;
  if (const Json* chassis = member(interface, "chassis"); chassis != nullptr && chassis->is_object()) {
    // {"node2": {"id": ..., "mgmt-ip": ...}}, or without a system name {"id": ..., ...}
    const Json* body = chassis;
    if (const Json* id = member(*chassis, "id"); id == nullptr || !id->contains("value")) {
      if (!chassis->empty()) {
        neighbour.system = short_name(chassis->begin().key());
        body = &*chassis->begin();
      }
    } else {
      neighbour.system = text_of(id->at("value"));
    }
    for (const Json* address : one_or_many(member(*body, "mgmt-ip"))) {
      neighbour.management.push_back(text_of(*address));
    }
  }
  if (const Json* port = member(interface, "port"); port != nullptr) {
    const Json* id = member(*port, "id");
    const Json* type = id == nullptr ? nullptr : member(*id, "type");
    if (type != nullptr && text_of(*type) == "ifname") {
      if (const Json* value = member(*id, "value")) neighbour.port = text_of(*value);
    } else if (const Json* description = member(*port, "descr")) {
      neighbour.port = text_of(*description);
    }
  }
  return neighbour;
}

using Interfaces = std::vector<std::pair<std::string, Neighbour>>;

Interfaces read_report(const NeighbourReport& report, Faults& faults) {
  Interfaces found;
  Json document;
  try {
    document = parse_json(report.text, report.node, {.max_bytes = size_t{4} << 20, .max_members = 4096});
  } catch (const Error& error) {
    faults.push_back({report.node, error.what(), kFormatHint});
    return found;
  }
  const Json* lldp = member(document, "lldp");
  if (lldp == nullptr) {
    faults.push_back({report.node, "is not the output of lldpctl: it has no \"lldp\"", kFormatHint});
    return found;
  }
  if (!lldp->is_object()) {
    faults.push_back({report.node, "has another form than lldpctl -f json writes", kFormatHint});
    return found;
  }
  for (const Json* entry : one_or_many(member(*lldp, "interface"))) {
    if (!entry->is_object() || entry->contains("name")) {
      faults.push_back(
          {report.node, "has interfaces in another form than lldpctl -f json writes", kFormatHint});
      return found;
    }
    for (auto it = entry->begin(); it != entry->end(); ++it)
      found.emplace_back(it.key(), read_neighbour(it.value()));
  }
  return found;
}

class Importer {
 public:
  explicit Importer(const ImportRequest& request) : request_(request) {}

  NodeMap run() {
    check_names();
    finish();
    for (size_t i = 0; i < request_.reports.size(); ++i)
      interfaces_.push_back(read_report(request_.reports[i], faults_));
    finish();
    for (size_t i = 0; i < interfaces_.size(); ++i) follow_ports(i);
    check_reciprocal();
    finish();
    check_pairs();
    finish();
    return map_in_cable_order();
  }

 private:
  std::string place(PortRef ref) const {
    return request_.reports[ref.node].node + " port " + std::to_string(ref.port);
  }

  void fault(const std::string& where, std::string what, std::string hint) {
    faults_.push_back({where, std::move(what), std::move(hint)});
  }

  void finish() const {
    throw_if_any(faults_, "LLDP import", "docs/fabric.md shows how the machines must be cabled");
  }

  void check_names() {
    const size_t count = request_.reports.size();
    if (count == 2) {
      fault("nodes",
            "two machines are refused: each would carry half of the weights, about 144 GiB, more than its "
            "memory",
            "add a third machine; docs/first-site.md says why");
    } else if (count != 3 && count != 4) {
      fault("nodes",
            std::to_string(count) + (count == 1 ? " machine" : " machines") + "; a fabric has three or four",
            "give the report of every machine");
    }
    std::set<std::string> seen;
    for (const NeighbourReport& report : request_.reports) {
      if (!is_host_name(report.node))
        fault("\"" + report.node + "\"", "is not a host name", "write NAME=FILE");
      if (!seen.insert(short_name(report.node)).second)
        fault(report.node, "is given twice", "give every machine once");
      if (!report.management_ip.empty() && !is_ip(report.management_ip)) {
        fault(report.node, "\"" + report.management_ip + "\" is not an IP address", {});
      }
    }
  }

  std::optional<size_t> node_of(const std::string& system) const {
    for (size_t i = 0; i < request_.reports.size(); ++i) {
      if (short_name(request_.reports[i].node) == system) return i;
    }
    return {};
  }

  // Where both paths of both ports of a machine lead.
  void follow_ports(size_t node) {
    for (const int port : {0, 1}) {
      std::set<PortRef> ends;
      bool broken = false;
      for (const int path : {1, 2}) {
        const std::string netdev = port_path(port, path).netdev;
        const std::string where =
            request_.reports[node].node + " port " + std::to_string(port) + " (" + netdev + ")";
        bool any = false;
        for (const auto& [interface, neighbour] : interfaces_[node]) {
          if (interface != netdev) continue;
          any = true;
          remember_addresses(neighbour);
          if (const auto end = far_end(where, node, neighbour)) {
            ends.insert(*end);
          } else {
            broken = true;
          }
        }
        if (any) continue;
        broken = true;
        fault(where, "sees no neighbour",
              "check the cable in port " + std::to_string(port) +
                  ", that the interface is up and lldpd runs at both ends");
      }
      if (broken) continue;
      const PortRef here{node, port};
      if (ends.size() > 1) {
        std::string places;
        for (const PortRef& end : ends) places += (places.empty() ? "" : " and ") + place(end);
        fault(place(here), "leads to " + places,
              "a cable is direct: remove the switch or splitter behind port " + std::to_string(port));
        continue;
      }
      cables_[here] = *ends.begin();
    }
  }

  void remember_addresses(const Neighbour& neighbour) {
    const auto node = node_of(neighbour.system);
    if (!node) return;
    for (const std::string& address : neighbour.management) {
      if (is_ipv4(address) && addresses_[*node].empty()) addresses_[*node] = address;
    }
  }

  std::optional<PortRef> far_end(const std::string& where, size_t from, const Neighbour& neighbour) {
    const auto node = node_of(neighbour.system);
    if (!node) {
      fault(where,
            neighbour.system.empty()
                ? "leads to something that gives no name"
                : "leads to \"" + neighbour.system + "\", which is none of the machines given",
            "give that machine's report as well, or, if it is a switch, cable the machines directly: "
            "switched fabrics "
            "are not supported (docs/fabric.md)");
      return {};
    }
    if (*node == from) {
      fault(where, "leads back to the machine itself", "move one end of the cable to the next machine");
      return {};
    }
    const PortPath* path = path_of_netdev(neighbour.port);
    if (path == nullptr) {
      fault(where,
            "leads to " + request_.reports[*node].node + ", interface \"" + neighbour.port +
                "\", which is not a fabric port",
            "put the cable into port 0 or 1 of the ConnectX-7; lldpd must announce interface names "
            "(configure lldp portidsubtype ifname)");
      return {};
    }
    return PortRef{*node, path->port};
  }

  void check_reciprocal() {
    for (const auto& [here, there] : cables_) {
      const auto back = cables_.find(there);
      if (back == cables_.end() || back->second == here) continue;
      fault(place(here), "leads to " + place(there) + ", but that port sees " + place(back->second),
            "take both reports again: the cabling changed between them");
    }
  }

  // Every pair at most once; together one loop.
  void check_pairs() {
    for (size_t node = 0; node < request_.reports.size(); ++node) {
      const PortRef first = cables_.at({node, 0});
      const PortRef second = cables_.at({node, 1});
      if (first.node != second.node || first.node < node) continue;
      fault(request_.reports[node].node,
            "both its ports lead to " + request_.reports[first.node].node + " (port " +
                std::to_string(first.port) + " and port " + std::to_string(second.port) + ")",
            "move one of the two cables: a machine is cabled to two different machines");
    }
  }

  NodeMap map_in_cable_order() {
    std::vector<size_t> order;
    PortRef at{0, 0};
    do {
      order.push_back(at.node);
      const PortRef far = cables_.at(at);
      at = {far.node, 1 - far.port};
    } while (at.node != 0 && order.size() <= request_.reports.size());
    std::vector<int64_t> ranks(request_.reports.size(), -1);
    for (size_t i = 0; i < order.size(); ++i) ranks[order[i]] = static_cast<int64_t>(i);
    NodeMap map;
    map.ssh_user = request_.ssh_user;
    if (!is_host_name(map.ssh_user)) fault("ssh user", "\"" + map.ssh_user + "\" is not a login name", {});
    for (const size_t from : order) map.nodes.push_back(make_node(from, ranks));
    finish();
    refuse_overlap(map);
    fabric_layout(map);
    return map;
  }

  Node make_node(size_t from, const std::vector<int64_t>& ranks) {
    const NeighbourReport& report = request_.reports[from];
    Node node;
    node.name = report.node;
    node.rank = ranks[from];
    node.head = node.rank == 0;
    node.roce_gid_index = kRoceV2Ipv4GidIndex;
    node.management_ip = report.management_ip.empty() ? addresses_[from] : report.management_ip;
    if (node.management_ip.empty()) {
      fault(report.node, "no neighbour reports a management address for it", "give it: NAME=FILE=ADDRESS");
    }
    for (const int port : {0, 1}) {
      const int64_t peer = ranks[cables_.at({from, port}).node];
      PeerDevices devices{peer, {}};
      for (const int path : {1, 2}) {
        const PortPath& names = port_path(port, path);
        devices.devices.emplace_back(names.device);
        node.subnets.push_back({names.device, cable_subnet(request_.first_octet, node.rank, peer, path)});
      }
      node.peers.push_back(std::move(devices));
    }
    return node;
  }

  const ImportRequest& request_;
  Faults faults_;
  std::vector<Interfaces> interfaces_;
  std::map<PortRef, PortRef> cables_;
  std::map<size_t, std::string> addresses_;
};

}  // namespace

NodeMap import_neighbours(const ImportRequest& request) {
  return Importer(request).run();
}

std::vector<PortNeighbour> read_port_neighbours(const std::string& text, const std::string& source,
                                                Faults& faults) {
  std::vector<PortNeighbour> found;
  for (const auto& [netdev, neighbour] : read_report({source, {}, text}, faults)) {
    found.push_back({netdev, neighbour.system, neighbour.port});
  }
  return found;
}

}  // namespace spark::ops
