#include "ops/fabric/layout.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdio>

#include "common/table.h"
#include "ops/fabric/ports.h"
#include "ops/fabric/validate.h"

namespace spark::ops {
namespace {

void refuse_unless_valid(const NodeMap& map) {
  ClusterProfile profile;  // the transport that fits the number of nodes; nothing else of a profile matters
  profile.transport_name = map.nodes.size() == 4 ? "oneshot-ring4" : "oneshot-direct";
  profile.transport = find_transport(profile.transport_name);
  Faults faults;
  for (const Finding& finding : validate_fabric(profile, map)) {
    faults.push_back({finding.where, finding.evidence + "; expected " + finding.expected, finding.fix});
  }
  throw_if_any(faults, "node map",
               "spark fabric plan writes a complete map; docs/fabric.md shows both shapes");
}

std::string subnet_of(const Node& node, const std::string& device) {
  for (const DeviceSubnet& subnet : node.subnets) {
    if (subnet.device == device) return subnet.cidr;
  }
  return {};
}

int port_of(const PeerDevices& peer) {
  int port = -1;
  for (const std::string& device : peer.devices) {
    const PortPath* path = path_of_device(device);
    if (path == nullptr || (port >= 0 && path->port != port)) return -1;
    port = path->port;
  }
  return port;
}

StripeEnd stripe_end(const std::string& device, const std::string& subnet, int64_t rank) {
  StripeEnd end;
  end.device = device;
  if (const PortPath* path = path_of_device(device)) end.netdev = path->netdev;
  if (!subnet.empty()) {
    end.address = node_address(subnet, rank);
    end.gid = gid_of_ipv4(end.address);
  }
  return end;
}

Cable cable_between(const Node& a, const Node& b) {
  const PeerDevices& to_b = *a.peer(b.rank);
  const PeerDevices& to_a = *b.peer(a.rank);
  Cable cable;
  cable.a = {a.rank, a.name, port_of(to_b)};
  cable.b = {b.rank, b.name, port_of(to_a)};
  for (size_t stripe = 0; stripe < to_b.devices.size(); ++stripe) {
    CablePath path;
    path.stripe = static_cast<int64_t>(stripe);
    path.subnet = subnet_of(a, to_b.devices[stripe]);
    if (path.subnet.empty()) path.subnet = subnet_of(b, to_a.devices[stripe]);
    path.a = stripe_end(to_b.devices[stripe], path.subnet, a.rank);
    path.b = stripe_end(to_a.devices[stripe], path.subnet, b.rank);
    cable.paths.push_back(std::move(path));
  }
  return cable;
}

std::string or_dash(const std::string& text) {
  return text.empty() ? "-" : text;
}

Json end_json(const CableEnd& end) {
  Json json = {{"node", end.node}, {"rank", end.rank}};
  json["port"] = end.port < 0 ? Json() : Json(end.port);
  return json;
}

Json stripe_end_json(const StripeEnd& end) {
  return {{"device", end.device}, {"netdev", end.netdev}, {"address", end.address}, {"gid", end.gid}};
}

}  // namespace

std::string node_address(const std::string& subnet, int64_t rank) {
  return subnet.substr(0, subnet.rfind('.')) + "." + std::to_string(rank + 1);
}

std::string gid_of_ipv4(const std::string& address) {
  in_addr parsed;
  SPARK_CHECK(::inet_pton(AF_INET, address.c_str(), &parsed) == 1);
  const uint32_t value = ntohl(parsed.s_addr);
  char text[40];
  std::snprintf(text, sizeof text, "0000:0000:0000:0000:0000:ffff:%04x:%04x", value >> 16, value & 0xffffU);
  return text;
}

std::vector<const CablePath*> FabricLayout::rail(int64_t stripe) const {
  std::vector<const CablePath*> paths;
  for (const Cable& cable : cables) {
    for (const CablePath& path : cable.paths) {
      if (path.stripe == stripe) paths.push_back(&path);
    }
  }
  return paths;
}

std::string end_name(const CableEnd& end) {
  return end.node + (end.port < 0 ? " port ?" : " port " + std::to_string(end.port));
}

FabricLayout fabric_layout(const NodeMap& map) {
  refuse_unless_valid(map);
  FabricLayout layout;
  const auto count = static_cast<int64_t>(map.nodes.size());
  layout.shape = count == 4 ? FabricShape::kRing4 : FabricShape::kTriangle;
  for (int64_t rank = 0; rank < count; ++rank) {
    layout.cables.push_back(cable_between(*map.with_rank(rank), *map.with_rank((rank + 1) % count)));
    const auto paths = static_cast<int64_t>(layout.cables.back().paths.size());
    layout.stripes = rank == 0 ? paths : std::min(layout.stripes, paths);
  }
  return layout;
}

std::string layout_text(const FabricLayout& layout, const NodeMap& map) {
  std::string text = layout.shape == FabricShape::kRing4
                         ? "Ring of four nodes: every node is cabled to the one before and the one after.\n"
                         : "Triangle of three nodes: every pair is cabled.\n";
  text += std::to_string(layout.cables.size()) + " cables of " + std::to_string(layout.stripes) +
          (layout.stripes == 1 ? " path" : " paths") + " each. Ports are numbered as on the machine.\n\n";
  Table cables({{"cable"}, {"from"}, {""}, {"to"}});
  for (size_t i = 0; i < layout.cables.size(); ++i) {
    cables.add({std::to_string(i + 1), end_name(layout.cables[i].a), "----", end_name(layout.cables[i].b)});
  }
  text += cables.text() + "\n";
  Table paths(
      {{"cable"}, {"path"}, {"subnet"}, {"node"}, {"RDMA device"}, {"interface"}, {"address"}, {"GID"}});
  for (size_t i = 0; i < layout.cables.size(); ++i) {
    const Cable& cable = layout.cables[i];
    for (const CablePath& path : cable.paths) {
      for (const bool first : {true, false}) {
        const StripeEnd& end = first ? path.a : path.b;
        paths.add({first ? std::to_string(i + 1) : "", first ? std::to_string(path.stripe + 1) : "",
                   first ? or_dash(path.subnet) : "", (first ? cable.a : cable.b).node, end.device,
                   or_dash(end.netdev), or_dash(end.address), or_dash(end.gid)});
      }
    }
  }
  text += paths.text() + "\n";
  Table nodes({{"node"}, {"rank", Align::kRight}, {"management"}, {"GID index", Align::kRight}, {""}});
  for (const Node& node : map.nodes) {
    nodes.add({node.name, std::to_string(node.rank), node.management_ip,
               std::to_string(node.roce_gid_index.value_or(kRoceV2Ipv4GidIndex)), node.head ? "head" : ""});
  }
  return text + nodes.text();
}

Json layout_json(const FabricLayout& layout, const NodeMap& map) {
  Json json;
  json["shape"] = layout.shape == FabricShape::kRing4 ? "ring4" : "triangle";
  json["stripes"] = layout.stripes;
  json["cables"] = Json::array();
  for (const Cable& cable : layout.cables) {
    Json paths = Json::array();
    for (const CablePath& path : cable.paths) {
      paths.push_back({{"stripe", path.stripe},
                       {"subnet", path.subnet},
                       {"a", stripe_end_json(path.a)},
                       {"b", stripe_end_json(path.b)}});
    }
    json["cables"].push_back(
        {{"a", end_json(cable.a)}, {"b", end_json(cable.b)}, {"paths", std::move(paths)}});
  }
  json["nodes"] = Json::array();
  for (const Node& node : map.nodes) {
    json["nodes"].push_back({{"name", node.name},
                             {"rank", node.rank},
                             {"management_ip", node.management_ip},
                             {"head", node.head},
                             {"gid_index", node.roce_gid_index.value_or(kRoceV2Ipv4GidIndex)}});
  }
  return json;
}

}  // namespace spark::ops
