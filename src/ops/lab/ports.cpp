#include "ops/lab/ports.h"

#include <algorithm>

#include "ops/lab/fault_scripts.h"

namespace spark::ops {
namespace {

WantedPort& port_of(std::vector<WantedPort>& ports, const std::string& name) {
  return *std::find_if(ports.begin(), ports.end(),
                       [&name](const WantedPort& port) { return port.name == name; });
}

// The node's own fault.
void apply_fault(std::vector<WantedPort>& ports, const LabPlan& plan, const LabFault& fault) {
  if (fault.kind == "swap") {
    for (size_t stripe = 0; stripe < 2; ++stripe) std::swap(ports.at(stripe).mac, ports.at(stripe + 2).mac);
    return;
  }
  for (const std::string& name : ports_towards(plan, fault.node, fault.peer)) {
    WantedPort& port = port_of(ports, name);
    if (fault.kind == "cable") port.up = false;
    if (fault.kind == "mtu") port.mtu = fault_mtu(fault);
    if (fault.kind == "subnet") port.address = wrong_address(port.address);
  }
}

// One name may be another port's before: every cable that is in the wrong port is pulled before one is
// plugged in. A cable's end is known by its MAC address, whatever a killed script named it.
constexpr const char* kFunctions =
    "end() {\n"
    "  ip -o link show | sed -n \"s,^[0-9]*: \\([^:@]*\\)[:@].* link/ether $1 .*,\\1,p\"\n"
    "}\n"
    "pull() {\n"
    "  now=$(end $2)\n"
    "  [ -n \"$now\" ] || { echo \"the end of the cable with the address $2 is gone\" >&2; exit 1; }\n"
    "  [ \"$now\" = $1 ] || { ip link set dev $now down; ip link set dev $now name spark-$3; }\n"
    "}\n"
    "plug() {\n"
    "  now=$(end $2)\n"
    "  [ \"$now\" = $1 ] || { ip link set dev $now down; ip link set dev $now name $1; }\n"
    "}\n"
    // An address that is right is left alone: connections go on.
    "set_up() {\n"
    "  have=$(ip -o -4 addr show dev $1 | sed -n 's/.* inet \\([^ ]*\\) .*/\\1/p')\n"
    "  [ \"$have\" = $2 ] || { ip addr flush dev $1; ip addr add $2 dev $1; }\n"
    "  ip link set dev $1 mtu $3 $4\n"
    "}\n";

}  // namespace

std::vector<std::string> ports_towards(const LabPlan& plan, const std::string& node,
                                       const std::string& peer) {
  const int64_t mine = plan.node(node).rank;
  const int64_t other = plan.node(peer).rank;
  std::vector<std::string> names;
  for (const LabLink& link : plan.links) {
    if (link.rank_a == mine && link.rank_b == other) names.push_back(link.interface_a);
    if (link.rank_b == mine && link.rank_a == other) names.push_back(link.interface_b);
  }
  if (names.empty()) throw Error("has no cable to " + peer, node, "spark fabric show draws the cables");
  return names;
}

std::vector<WantedPort> wanted_ports(const LabPlan& plan, const LabNode& node,
                                     const std::vector<LabFault>& faults) {
  std::vector<WantedPort> ports;
  for (const LabInterface& each : node.interfaces)
    ports.push_back({.name = each.name, .mac = each.mac, .address = each.address, .mtu = each.mtu});
  for (const LabFault& fault : faults) {
    if (!is_port_fault(fault.kind)) continue;
    if (fault.node == node.name) apply_fault(ports, plan, fault);
    if (fault.kind == "cable" && fault.peer == node.name) {
      for (const std::string& name : ports_towards(plan, fault.peer, fault.node))
        port_of(ports, name).carrier = false;
    }
  }
  return ports;
}

std::string ports_script(const std::vector<WantedPort>& ports) {
  std::string pulls, plugs, settings;
  for (const WantedPort& port : ports) {
    // Named after the cable's end: a second run finds the name that the first one gave.
    const std::string words = port.name + " " + port.mac;
    pulls += "pull " + words + " " + port.mac.substr(port.mac.size() - 2) + "\n";
    plugs += "plug " + words + "\n";
    settings += "set_up " + port.name + " " + port.address + " " + std::to_string(port.mtu) +
                (port.up ? " up\n" : " down\n");
  }
  return kFunctions + pulls + plugs + settings;
}

RdmaChanges rdma_changes(const std::vector<WantedPort>& ports) {
  RdmaChanges changes;
  for (const WantedPort& port : ports) {
    changes.down[port.name] = !port.up || !port.carrier;
    changes.mtu[port.name] = port.mtu;
    changes.address[port.name] = port.address;
  }
  return changes;
}

}  // namespace spark::ops
