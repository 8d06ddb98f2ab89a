// Things that go wrong in a cluster, done to a lab on purpose, and undone.
//
//   inject_fault("/srv/lab", {.kind = "mtu", .node = "node1", .peer = "node2", .value = "1500"});
//   heal_faults("/srv/lab", "", "");     // all of them
//
// Real: cables, MTU, addresses, cables in the wrong ports, freezing (cgroup), a full disk (the size of the
// node's filesystem becomes what is used), memory (a process takes it), stopped Docker and SSH servers.
// Faked: the clock. Linux has one wall clock for all namespaces, so `date` of the node is a script that adds
// the skew; a program that reads the clock itself sees the true time.
#pragma once

#include <string>
#include <vector>

#include "ops/lab/fault_scripts.h"
#include "ops/lab/state.h"

namespace spark::ops {

// What was done, for people. Throws Error: unknown kind, node or peer, a value out of range, not possible
// here; then the lab's record stays as it was. A fault that cannot be made is taken back.
std::string inject_fault(const std::string& directory, const LabFault& fault);

struct HealedFaults {
  std::vector<std::string> healed;
  Faults failed;  // they stay in the lab's record
};

// Empty kind or node: any. A fault that cannot be undone keeps none of the others from it. Healing what is
// healed, or was never made, changes nothing.
HealedFaults heal_faults(const std::string& directory, const std::string& kind, const std::string& node);

}  // namespace spark::ops
