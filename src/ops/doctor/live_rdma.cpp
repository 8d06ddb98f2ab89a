// Live rules about RDMA devices, GIDs and the NIC's PCIe functions (specification 3.2.4, 7.1 item 24).
#include <algorithm>

#include "common/units.h"
#include "ops/doctor/live_context.h"
#include "ops/fabric/ports.h"
#include "ops/site/node_environment.h"

namespace spark::ops::live {
namespace {

constexpr double kPortGbps = 200;
constexpr int64_t kRdmaMtu = 4096;
constexpr const char* kQualifiedFirmware = "28.45.4028";
constexpr const char* kMellanox = "0x15b3";

struct CounterLimit {
  const char* name;
  int64_t above;  // a peer's reboot, or a start under load, leaves some
};
constexpr CounterLimit kCounterLimits[] = {{"symbol_error", 0},        {"port_rcv_errors", 0},
                                           {"link_error_recovery", 0}, {"link_downed", 20},
                                           {"packet_seq_err", 100},    {"local_ack_timeout_err", 100},
                                           {"out_of_sequence", 1000},  {"roce_adp_retrans", 1000}};

std::string port_text(const std::string& device) {
  const PortPath* path = path_of_device(device);
  if (path == nullptr) return device;
  return device + " (port " + std::to_string(path->port) + " path " + std::to_string(path->path) + ")";
}

// "node1 port 0 path 2", or the device where the map is no triangle or ring
std::string place_of(const LiveContext& context, const LiveNode& node, const std::string& device) {
  for (const PathEnd& end : context.path_ends(node.name())) {
    if (end.mine->device == device) return end.place();
  }
  return node.name() + " " + device;
}

std::string cable_of(const LiveContext& context, const LiveNode& node, const std::string& device) {
  for (const PathEnd& end : context.path_ends(node.name())) {
    if (end.mine->device == device) return end.cable_name();
  }
  return "its cable";
}

bool function_missing(const LiveNode& node, const std::string& device) {
  const PortPath* path = path_of_device(device);
  const auto& pci = node.facts.network.pci;
  if (path == nullptr || !pci) return false;
  return std::none_of(pci->begin(), pci->end(), [&](const PciFunction& f) { return f.address == path->pci; });
}

const Link* link_of(const LiveNode& node, const std::string& device) {
  const PortPath* path = path_of_device(device);
  return path == nullptr ? nullptr : node.facts.network.link(path->netdev);
}

bool is_v2(const std::string& type) {
  return type == "RoCE v2" || type == "RoCEv2";
}

bool is_ipv4_gid(const std::string& gid) {
  return gid.rfind("0000:0000:0000:0000:0000:ffff:", 0) == 0;
}

// The address in an IPv4-mapped GID; "" when the digits are none.
std::string address_of(const std::string& gid) {
  std::string digits;
  for (const char c : gid.substr(std::min<size_t>(30, gid.size()))) {
    if (c != ':') digits += c;
  }
  if (digits.size() != 8 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos)
    return {};
  std::string address;
  for (size_t i = 0; i < 8; i += 2)
    address += (i == 0 ? "" : ".") + std::to_string(std::stoul(digits.substr(i, 2), nullptr, 16));
  return address;
}

const Gid* slot(const RdmaDevice& device, int64_t index) {
  for (const Gid& gid : device.gids) {
    if (gid.index == index) return &gid;
  }
  return nullptr;
}

// A lab may show RDMA devices, but need not.
bool no_rdma_here(const LiveContext& context, const LiveNode& node) {
  return context.profile.host.hardware != "spark" && node.facts.network.rdma.empty();
}

// Calls `body` for every device of the peer map that exists.
template <typename Body>
void for_devices(const LiveNode& node, Body&& body) {
  for (const std::string& name : node.node.devices()) {
    if (const RdmaDevice* device = node.facts.network.device(name)) body(*device);
  }
}

}  // namespace

void fabric_functions(LiveContext& context, const LiveNode& node) {
  if (!node.facts.network.pci) return context.unknown(node, "the NIC's PCIe functions", "pci");
  size_t found = 0;
  for (const PciFunction& function : *node.facts.network.pci) found += function.vendor == kMellanox ? 1 : 0;
  for (const std::string& device : node.node.devices()) {
    if (!function_missing(node, device)) continue;
    const PortPath* path = path_of_device(device);
    context.error(place_of(context, node, device),
                  std::string("the PCIe function ") + path->pci + " of " + port_text(device) +
                      " is missing; the NIC shows " + std::to_string(found) + " functions",
                  "four functions, two per port: with one missing a cable has half of its bandwidth",
                  "stop the service, power the machine off and on; if it stays away, reset the NIC's "
                  "firmware settings");
  }
}

void fabric_devices(LiveContext& context, const LiveNode& node) {
  if (no_rdma_here(context, node)) return;
  for (const std::string& name : node.node.devices()) {
    if (node.facts.network.device(name) != nullptr || function_missing(node, name)) continue;
    context.error(place_of(context, node, name), "the RDMA device " + port_text(name) + " does not exist",
                  "every device of the peer map",
                  "sudo modprobe mlx5_ib; compare `ls /sys/class/infiniband` with roce_peer_hcas in " +
                      context.site.nodes_file);
  }
}

void fabric_verbs(LiveContext& context, const LiveNode& node) {
  const auto found = node.facts.kernel.boot_files.find("/dev/infiniband/uverbs0");
  if (found == node.facts.kernel.boot_files.end()) return context.unknown(node, "/dev/infiniband", "boot");
  if (found->second) return;
  context.error(node.name(), "/dev/infiniband/uverbs0 does not exist",
                "the verbs devices, which the container mounts", "sudo modprobe ib_uverbs");
}

void fabric_state(LiveContext& context, const LiveNode& node) {
  for_devices(node, [&](const RdmaDevice& device) {
    const Link* link = link_of(node, device.name);
    if (link != nullptr && !link->carrier) return;  // fabric.link says it
    if (device.state == "ACTIVE" && device.phys_state == "LinkUp") return;
    context.error(place_of(context, node, device.name),
                  device.name + " is " + (device.state.empty() ? "in an unknown state" : device.state) +
                      ", " + (device.phys_state.empty() ? "unknown" : device.phys_state),
                  "ACTIVE, LinkUp",
                  "sudo ip link set its interface down and up while nothing uses RDMA; then look at " +
                      cable_of(context, node, device.name));
  });
}

void fabric_rate(LiveContext& context, const LiveNode& node) {
  for_devices(node, [&](const RdmaDevice& device) {
    if (device.state != "ACTIVE") return;
    if (!device.rate_gbps) return context.unknown(node, "the link rate of " + device.name, "files");
    if (*device.rate_gbps >= kPortGbps) return;
    context.error(place_of(context, node, device.name),
                  device.name + " runs at " + format_fixed(*device.rate_gbps, 0) + " Gb/s",
                  format_fixed(kPortGbps, 0) + " Gb/s",
                  "reseat or replace " + cable_of(context, node, device.name) +
                      "; use a cable that is rated for 200 Gb/s");
  });
}

void fabric_rdma_mtu(LiveContext& context, const LiveNode& node) {
  for_devices(node, [&](const RdmaDevice& device) {
    const Link* link = link_of(node, device.name);
    if (device.state != "ACTIVE" || (link != nullptr && link->mtu != kFabricMtu))
      return;  // fabric.mtu says it
    if (!device.active_mtu) return context.unknown(node, "the RDMA MTU of " + device.name, "rdma-info");
    if (*device.active_mtu == kRdmaMtu) return;
    context.error(place_of(context, node, device.name),
                  device.name + " uses an RDMA MTU of " + std::to_string(*device.active_mtu),
                  std::to_string(kRdmaMtu),
                  "re-activate the interface with MTU 9000 while nothing uses RDMA");
  });
}

void fabric_gid(LiveContext& context, const LiveNode& node) {
  const int64_t index = configured_gid_index(context.profile, node.node);
  for_devices(node, [&](const RdmaDevice& device) {
    const Gid* found = slot(device, index);
    if (found != nullptr && is_v2(found->type) && is_ipv4_gid(found->gid)) return;
    const auto right = std::find_if(device.gids.begin(), device.gids.end(),
                                    [](const Gid& gid) { return is_v2(gid.type) && is_ipv4_gid(gid.gid); });
    const std::string holds =
        found == nullptr
            ? "is empty"
            : "holds " + (found->type.empty() ? "an unknown type" : found->type) + " " + found->gid;
    const std::string place = place_of(context, node, device.name);
    if (right == device.gids.end()) {
      context.error(place,
                    "GID slot " + std::to_string(index) + " of " + device.name + " " + holds +
                        ", and no slot holds RoCE v2 with an IPv4 address",
                    "RoCE v2 of the path's IPv4 address",
                    "give the interface its address: spark fabric netplan writes the file");
      return;
    }
    const PortPath* path = path_of_device(device.name);
    const std::string netdev = !right->netdev.empty() ? right->netdev
                               : path == nullptr      ? device.name
                                                      : path->netdev;
    context.error(place,
                  "GID slot " + std::to_string(index) + " of " + device.name + " " + holds +
                      "; RoCE v2 with the IPv4 address is in slot " + std::to_string(right->index),
                  "slot " + std::to_string(index),
                  "while nothing uses RDMA: sudo nmcli device reapply " + netdev + ", or sudo ip link set " +
                      netdev + " down and up");
  });
}

void fabric_gid_subnet(LiveContext& context, const LiveNode& node) {
  const int64_t index = configured_gid_index(context.profile, node.node);
  for_devices(node, [&](const RdmaDevice& device) {
    const Gid* found = slot(device, index);
    if (found == nullptr || !is_v2(found->type) || !is_ipv4_gid(found->gid)) return;
    const std::string address = address_of(found->gid);
    for (const DeviceSubnet& subnet : node.node.subnets) {
      if (subnet.device != device.name) continue;
      const std::string network = subnet.cidr.substr(0, subnet.cidr.rfind('.') + 1);
      if (address.rfind(network, 0) == 0) return;
      context.error(
          place_of(context, node, device.name),
          "GID slot " + std::to_string(index) + " of " + device.name + " is the address " +
              (address.empty() ? found->gid : address),
          "an address in " + subnet.cidr + ", the subnet of " + cable_of(context, node, device.name),
          "correct the interface's address, or the cabling: the address belongs to another cable");
    }
  });
}

void fabric_pcie(LiveContext& context, const LiveNode& node) {
  for_devices(node, [&](const RdmaDevice& device) {
    if (!device.pcie_width || device.pcie_speed.empty())
      return context.unknown(node, "the PCIe link of " + device.name, "files");
    const bool narrow = device.pcie_max_width && *device.pcie_width < *device.pcie_max_width;
    const bool slow = !device.pcie_max_speed.empty() && device.pcie_speed != device.pcie_max_speed;
    if (!narrow && !slow) return;
    context.error(place_of(context, node, device.name),
                  "the PCIe link of " + device.name + " is x" + std::to_string(*device.pcie_width) + " at " +
                      device.pcie_speed,
                  "x" + std::to_string(device.pcie_max_width.value_or(*device.pcie_width)) + " at " +
                      device.pcie_max_speed,
                  "power the machine off and on; if it returns, the machine needs service");
  });
}

void fabric_aer(LiveContext& context, const LiveNode& node) {
  for_devices(node, [&](const RdmaDevice& device) {
    const auto count = [&](const char* kind) {
      const auto found = device.aer.find(kind);
      return found == device.aer.end() ? int64_t{0} : found->second;
    };
    const int64_t hard = count("fatal") + count("nonfatal"), soft = count("correctable");
    const std::string place = place_of(context, node, device.name);
    if (hard > 0) {
      context.error(place, device.name + " counted " + std::to_string(hard) + " uncorrectable PCIe errors",
                    "none",
                    "stop the service, power the machine off and on; if they return, it needs service");
    } else if (soft > 0) {
      context.warn(place, device.name + " counted " + std::to_string(soft) + " corrected PCIe errors", "none",
                   "watch the count; a growing one means a bad link between NIC and processor");
    }
  });
}

void fabric_errors(LiveContext& context, const LiveNode& node) {
  for_devices(node, [&](const RdmaDevice& device) {
    std::string list;
    for (const CounterLimit& limit : kCounterLimits) {
      const auto found = device.counters.find(limit.name);
      if (found == device.counters.end() || found->second <= limit.above) continue;
      list += (list.empty() ? "" : ", ") + std::string(limit.name) + " " + std::to_string(found->second);
    }
    if (list.empty()) return;
    context.warn(place_of(context, node, device.name), device.name + " counted " + list,
                 "none, or few after a peer's reboot",
                 "reseat " + cable_of(context, node, device.name) + " at both ends and watch the counters");
  });
}

void fabric_firmware(LiveContext& context, const LiveNode& node) {
  std::set<std::string> versions;
  for_devices(node, [&](const RdmaDevice& device) { versions.insert(device.firmware); });
  for (const std::string& version : versions) {
    if (version == kQualifiedFirmware) continue;
    context.warn(node.name(), "the NIC's firmware is " + (version.empty() ? "unknown" : version),
                 kQualifiedFirmware,
                 "qualify it with ib_write_bw between two nodes, or install the qualified one with the "
                 "service stopped");
  }
}

void fabric_firmware_same(LiveContext& context) {
  std::map<std::string, std::string> nodes_by_version;
  for (const LiveNode& node : context.nodes()) {
    if (node.facts.network.rdma.empty()) continue;
    std::string& nodes = nodes_by_version[node.facts.network.rdma.front().firmware];
    nodes += (nodes.empty() ? "" : ", ") + node.name();
  }
  if (nodes_by_version.size() < 2) return;
  std::string evidence = "the NIC's firmware differs: ";
  bool first = true;
  for (const auto& [version, nodes] : nodes_by_version) {
    evidence += (first ? "" : "; ") + (version.empty() ? "unknown" : version) + " on " + nodes;
    first = false;
  }
  context.warn("all nodes", evidence, "one version", "install the same firmware everywhere");
}

}  // namespace spark::ops::live
