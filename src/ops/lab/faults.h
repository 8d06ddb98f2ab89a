// Things that go wrong in a cluster, done to a lab on purpose, and undone.
//
//   inject_fault("/srv/lab", {.kind = "mtu", .node = "node1", .peer = "node2", .value = "1500"});
//   heal_faults("/srv/lab", "", "");     // all of them, the last first
//
// Real: cables, MTU, addresses, cables in the wrong ports, freezing (cgroup), a full disk (the size of the
// node's filesystem becomes what is used), memory (a process takes it), stopped Docker and SSH servers.
// Faked: the clock. Linux has one wall clock for all namespaces, so `date` of the node is a script that adds
// the skew; a program that reads the clock itself sees the true time.
#pragma once

#include <string>
#include <vector>

#include "ops/lab/state.h"

namespace spark::ops {

struct FaultKind {
  const char* name;
  const char* wants;  // "NODE PEER", "NODE"
  const char* standard_value;
  const char* description;
};
const std::vector<FaultKind>& fault_kinds();

// What was done, for people. Throws Error: unknown kind, node or peer, a value out of range, not possible
// here; then the lab's record stays as it was.
std::string inject_fault(const std::string& directory, const LabFault& fault);

struct HealedFaults {
  std::vector<std::string> healed;
  Faults failed;  // they stay in the lab's record
};

// Empty kind or node: any. A fault that cannot be undone keeps none of the others from it.
HealedFaults heal_faults(const std::string& directory, const std::string& kind, const std::string& node);

// Takes memory until MemAvailable is at most `bytes`, says so on standard output, then sleeps for ever.
[[noreturn]] void eat_memory(int64_t available_bytes);

// "500M", "2G", "1024": bytes.
int64_t parse_size(const std::string& text);

}  // namespace spark::ops
