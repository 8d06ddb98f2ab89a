// What the fabric ports of a node are to be while faults stand, and a script that makes them so.
//
//   run_in_node(state, "node1", ports_script(wanted_ports(plan, plan.node("node1"), state.faults)), 20);
//
// Faults are made and undone by the same script, with and without the fault in the list: it can be killed
// anywhere and run any number of times, and faults that touch the same port do not undo one another.
#pragma once

#include <string>
#include <vector>

#include "ops/lab/rdma_view.h"
#include "ops/lab/state.h"

namespace spark::ops {

// MTU, address and state belong to the port, so they stay where they are when cables change places.
struct WantedPort {
  std::string name;     // "enp1s0f0np0"
  std::string mac;      // of the cable's end that is plugged in
  std::string address;  // "10.12.1.1/24"
  int mtu = 0;
  bool up = true;
  bool carrier = true;  // the other end of the cable is up
};

// The ports of `node` that lead to `peer`, by stripe. Throws Error when there is no cable.
std::vector<std::string> ports_towards(const LabPlan& plan, const std::string& node, const std::string& peer);

// In the order of `node.interfaces`. Throws Error: a fault that this plan cannot have.
std::vector<WantedPort> wanted_ports(const LabPlan& plan, const LabNode& node,
                                     const std::vector<LabFault>& faults);

std::string ports_script(const std::vector<WantedPort>& ports);

// The made-up RDMA devices follow their ports.
RdmaChanges rdma_changes(const std::vector<WantedPort>& ports);

}  // namespace spark::ops
