// The kinds of fault, what each may be asked for, and the scripts that make and undo it inside its node.
//
// A command that makes or undoes a fault may be killed at any moment, before, in or after its script, and the
// record then tells what was meant, not what was done. So every `undo` works from any of these states and
// twice, and a script of a killed command never runs beside or after a later one's (change_script).
#pragma once

#include <cstdint>
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
const FaultKind& fault_kind(const std::string& name);  // throws Error with the nearest name
bool is_port_fault(const std::string& kind);           // made and undone by ports.h

// The fault with its standard value. Throws Error: unknown kind, node, peer or cable, a value out of range,
// not possible in this lab.
LabFault checked_fault(const LabState& state, LabFault fault);

int fault_mtu(const LabFault& fault);                           // throws Error
std::string wrong_address(const std::string& address);          // 10.12.1.1/24 -> 10.99.1.1/24
std::string describe_fault(const LabFault& fault);              // "mtu node1 node2 (1500)"
std::vector<std::string> touched_nodes(const LabFault& fault);  // where scripts run

struct FaultScripts {
  std::string make;
  std::string undo;
  double timeout_s = 0;
};
// `state` holds the faults that are to stand afterwards. Freezing has no script: the node's cgroup is frozen.
FaultScripts fault_scripts(const LabState& state, const LabFault& fault);

// `script` for a node, one at a time and in the order of `number` (later is larger): it waits for a script
// that an earlier, killed command left, and does nothing when a later command was here before.
std::string change_script(int64_t number, const std::string& script);

// Which faults to undo, in this order: what keeps others from being undone first (a frozen node runs no
// script, a full disk takes no file), then the last first.
std::vector<LabFault> healing_order(const std::vector<LabFault>& faults, const std::string& kind,
                                    const std::string& node);

// "500M", "2G", "1024": bytes.
int64_t parse_size(const std::string& text);

}  // namespace spark::ops
