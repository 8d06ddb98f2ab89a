#include "ops/fabric/addresses.h"

#include <algorithm>
#include <set>

#include "ops/fabric/layout.h"
#include "ops/fabric/ports.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

std::string network_of(const std::string& address) {
  return address.substr(0, address.rfind('.'));
}

std::string quoted(const std::string& text) {
  return Json(text).dump();
}

void check_count(size_t count, Faults& faults) {
  if (count == 3 || count == 4) return;
  if (count == 2) {
    faults.push_back(
        {"nodes",
         "two machines are refused: each would carry half of the weights, about 144 GiB, more than "
         "its memory",
         "add a third machine; docs/first-site.md says why"});
  } else {
    faults.push_back({"nodes",
                      std::to_string(count) + (count == 1 ? " machine" : " machines") +
                          "; a fabric has three (triangle) or four (ring), cabled directly without a switch",
                      "name three or four machines in cable order; docs/fabric.md shows both shapes"});
  }
}

void check_seeds(const AddressRequest& request, Faults& faults) {
  if (!is_host_name(request.ssh_user))
    faults.push_back({"ssh user", "\"" + request.ssh_user + "\" is not a login name", {}});
  if (request.first_octet < 1 || request.first_octet > 223 || request.first_octet == 127) {
    faults.push_back(
        {"first octet", std::to_string(request.first_octet) + " starts no private network", "use 10"});
  }
  std::set<std::string> names, addresses;
  for (const NodeSeed& seed : request.nodes) {
    if (!is_host_name(seed.name)) faults.push_back({"\"" + seed.name + "\"", "is not a host name", {}});
    if (!names.insert(seed.name).second)
      faults.push_back({seed.name, "is named twice", "name every machine once"});
    if (!is_ip(seed.management_ip)) {
      faults.push_back(
          {seed.name, "\"" + seed.management_ip + "\" is not an IP address", "write NAME=ADDRESS"});
    } else if (!addresses.insert(seed.management_ip).second) {
      faults.push_back({seed.name, seed.management_ip + " is another machine's address as well", {}});
    }
    if (!seed.ssh_host.empty() && !is_host_name(seed.ssh_host) && !is_ip(seed.ssh_host)) {
      faults.push_back({seed.name, "\"" + seed.ssh_host + "\" is not a host name or address", {}});
    }
  }
}

void add_cable(Node& node, const Node& peer, int port, int64_t octet) {
  PeerDevices devices{peer.rank, {}};
  for (const int path : {1, 2}) {
    const PortPath& names = port_path(port, path);
    devices.devices.emplace_back(names.device);
    node.subnets.push_back({names.device, cable_subnet(octet, node.rank, peer.rank, path)});
  }
  node.peers.push_back(std::move(devices));
}

std::string node_text(const Node& node) {
  const auto list = [](const std::vector<std::string>& devices) {
    std::string text;
    for (const std::string& device : devices) text += (text.empty() ? "" : ", ") + quoted(device);
    return "[" + text + "]";
  };
  std::string text = "    {\"name\": " + quoted(node.name);
  if (!node.ssh_host.empty()) text += ", \"ssh_host\": " + quoted(node.ssh_host);
  text += ", \"rank\": " + std::to_string(node.rank) + ", \"management_ip\": " + quoted(node.management_ip) +
          ", \"head\": " + (node.head ? "true" : "false");
  if (node.roce_gid_index) text += ", \"roce_gid_index\": " + std::to_string(*node.roce_gid_index);
  if (!node.management_interface.empty()) {
    text += ",\n     \"management_interface\": " + quoted(node.management_interface);
  }
  text += ",\n     \"roce_peer_hcas\": {";
  for (size_t i = 0; i < node.peers.size(); ++i) {
    text +=
        (i == 0 ? "\"" : ", \"") + std::to_string(node.peers[i].rank) + "\": " + list(node.peers[i].devices);
  }
  text += "},\n     \"roce_subnets\": {";
  for (size_t i = 0; i < node.subnets.size(); ++i) {
    text += (i == 0       ? ""
             : i % 2 == 0 ? ",\n                      "
                          : ", ") +
            quoted(node.subnets[i].device) + ": " + quoted(node.subnets[i].cidr);
  }
  return text + "}}";
}

std::string netplan_text(const Node& node) {
  std::string text = "# Fabric ports of " + node.name +
                     ", written by `spark fabric netplan`. Static addresses, no DHCP and no IPv6:\n"
                     "# the order of the GID table must stay fixed (index " +
                     std::to_string(kRoceV2Ipv4GidIndex) +
                     " is RoCE v2 over IPv4).\n"
                     "network:\n  version: 2\n  ethernets:\n";
  for (const DeviceSubnet& subnet : node.subnets) {
    text += "    " + std::string(path_of_device(subnet.device)->netdev) + ":\n" + "      addresses: [" +
            node_address(subnet.cidr, node.rank) + "/24]\n" + "      mtu: " + std::to_string(kFabricMtu) +
            "\n" +
            "      dhcp4: false\n      dhcp6: false\n      accept-ra: false\n      link-local: []\n      "
            "optional: true\n";
  }
  return text;
}

// Installing keeps what stood there; reverting puts it back, or removes the file when there was none.
std::string revert_text(const Node& node) {
  const std::string path = kNetplanPath;
  std::string text = "#!/bin/sh\n# Takes the fabric addresses of " + node.name +
                     " back. Run on the node as root.\nset -eu\n";
  text += "if [ -e " + path + ".before-spark ]; then\n  mv " + path + ".before-spark " + path +
          "\nelse\n  rm -f " + path + "\nfi\nnetplan apply\n";
  for (const DeviceSubnet& subnet : node.subnets) {
    const std::string netdev = path_of_device(subnet.device)->netdev;
    text += "ip address del " + node_address(subnet.cidr, node.rank) + "/24 dev " + netdev +
            " 2>/dev/null || true\n";
  }
  return text;
}

}  // namespace

std::string cable_subnet(int64_t first_octet, int64_t rank, int64_t other, int path) {
  const auto [low, high] = std::minmax({rank + 1, other + 1});
  return std::to_string(first_octet) + "." + std::to_string(low) + std::to_string(high) + "." +
         std::to_string(path) + ".0/24";
}

void refuse_overlap(const NodeMap& map) {
  Faults faults;
  for (const Node& node : map.nodes) {
    for (const Node& other : map.nodes) {
      for (const DeviceSubnet& subnet : other.subnets) {
        if (!is_ipv4(node.management_ip) || network_of(node.management_ip) != network_of(subnet.cidr))
          continue;
        faults.push_back({node.name,
                          "its management address " + node.management_ip + " lies in " + subnet.cidr +
                              ", the subnet of a cable of " + other.name,
                          "choose another first octet for the fabric: --first-octet 172"});
      }
    }
  }
  throw_if_any(faults, "addresses");
}

NodeMap plan_addresses(const AddressRequest& request) {
  Faults faults;
  check_count(request.nodes.size(), faults);
  check_seeds(request, faults);
  throw_if_any(faults, "fabric plan");
  NodeMap map;
  map.ssh_user = request.ssh_user;
  const size_t count = request.nodes.size();
  for (size_t i = 0; i < count; ++i) {
    Node node;
    node.name = request.nodes[i].name;
    node.ssh_host = request.nodes[i].ssh_host;
    node.management_ip = request.nodes[i].management_ip;
    node.rank = static_cast<int64_t>(i);
    node.head = i == 0;
    node.roce_gid_index = kRoceV2Ipv4GidIndex;
    map.nodes.push_back(std::move(node));
  }
  for (size_t i = 0; i < count; ++i) {
    add_cable(map.nodes[i], map.nodes[(i + 1) % count], 0, request.first_octet);
    add_cable(map.nodes[i], map.nodes[(i + count - 1) % count], 1, request.first_octet);
  }
  refuse_overlap(map);
  return map;
}

std::string node_map_text(const NodeMap& map) {
  std::string text =
      "{\n  \"schema_version\": 1,\n  \"ssh_user\": " + quoted(map.ssh_user) + ",\n  \"nodes\": [\n";
  for (size_t i = 0; i < map.nodes.size(); ++i) {
    text += node_text(map.nodes[i]) + (i + 1 < map.nodes.size() ? ",\n" : "\n");
  }
  return text + "  ]\n}\n";
}

std::vector<NetplanFile> netplan_files(const NodeMap& map) {
  fabric_layout(map);  // refuses a map whose cables do not add up
  Faults faults;
  for (const Node& node : map.nodes) {
    for (const std::string& device : node.devices()) {
      const bool has_subnet =
          std::any_of(node.subnets.begin(), node.subnets.end(),
                      [&](const DeviceSubnet& subnet) { return subnet.device == device; });
      if (!has_subnet) {
        faults.push_back({node.name + " " + device, "has no subnet in roce_subnets",
                          "add one, or let spark fabric plan write the map"});
      }
      if (path_of_device(device) == nullptr) {
        faults.push_back(
            {node.name + " " + device, "is not a device of a Spark's fabric ports",
             "the interfaces to configure are known for rocep1s0f0, roceP2p1s0f0, rocep1s0f1 and "
             "roceP2p1s0f1 only"});
      }
    }
  }
  throw_if_any(faults, "node map");
  refuse_overlap(map);
  std::vector<NetplanFile> files;
  for (const Node& node : map.nodes) {
    files.push_back(
        {node.name, map.ssh_user + "@" + node.ssh_target(), netplan_text(node), revert_text(node)});
  }
  return files;
}

std::string netplan_commands(const NodeMap& map, const std::string& folder) {
  const std::string path = kNetplanPath;
  std::string text = "# Nothing has been sent. Run these when the plan looks right:\n";
  for (const Node& node : map.nodes) {
    const std::string ssh = map.ssh_user + "@" + node.ssh_target();
    const std::string from = shell_quote(folder + "/" + node.name);
    text += "\n# " + node.name + "\n";
    text += "scp " + from + "/40-cx7.yaml " + from + "/revert.sh " + ssh + ":\n";
    text += "ssh " + ssh + " 'sudo sh -c \"if [ -e " + path + " ] && [ ! -e " + path +
            ".before-spark ]; then cp " + path + " " + path +
            ".before-spark; fi; install -m 600 40-cx7.yaml " + path + " && netplan apply\"'\n";
  }
  text += "\n# Check: every address of a neighbour answers with full frames.\n";
  const FabricLayout layout = fabric_layout(map);
  for (const Cable& cable : layout.cables) {
    const std::string ssh = map.ssh_user + "@" + map.with_rank(cable.a.rank)->ssh_target();
    for (const CablePath& cable_path : cable.paths) {
      text += "ssh " + ssh + " ping -c2 -M do -s " + std::to_string(kFabricMtu - 28) + " " +
              cable_path.b.address + "\n";
    }
  }
  text += "\n# Take everything back on one node:\n";
  for (const Node& node : map.nodes)
    text += "ssh " + map.ssh_user + "@" + node.ssh_target() + " sudo sh revert.sh\n";
  return text;
}

}  // namespace spark::ops
