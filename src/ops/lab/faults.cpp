#include "ops/lab/faults.h"

#include <time.h>

#include <algorithm>

#include "ops/lab/cgroups.h"
#include "ops/lab/directory.h"
#include "ops/lab/enter.h"
#include "ops/lab/ports.h"
#include "ops/lab/rdma_view.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

constexpr double kRdmaSeconds = 20;
// For another command that changes the lab: as long as most faults may take.
constexpr double kLockSeconds = 20;

// Larger for every later holder of the lab's lock; a lab does not outlive the boot that this counts from.
int64_t change_number() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::string frozen_group(const LabState& state, const std::string& node) {
  return state.plan.cgroup() + "/" + node;
}

// A script in a frozen node would wait, and go on when it is no longer wanted.
void require_awake(const LabState& state, const LabFault& fault) {
  for (const std::string& node : touched_nodes(fault)) {
    if (Cgroups::find().frozen(frozen_group(state, node)))
      throw Error("is frozen, so nothing can be changed in it", node, "spark lab heal freeze " + node);
  }
}

void refresh_rdma(const LabState& state, const LabFault& fault) {
  if (!is_port_fault(fault.kind)) return;
  for (const std::string& name : touched_nodes(fault)) {
    const LabNode& node = state.plan.node(name);
    std::string script = "cd /sys/class/infiniband\n";
    const RdmaChanges changes = rdma_changes(wanted_ports(state.plan, node, state.faults));
    for (const auto& [path, content] : rdma_view(node, changes))
      script += "printf %s " + shell_quote(content) + " >" + path + "\n";
    run_in_node(state, name, change_script(change_number(), script), kRdmaSeconds);
  }
}

// `state` holds the faults that are to stand afterwards.
void change(const LabState& state, const LabFault& fault, bool make) {
  require_awake(state, fault);
  if (fault.kind == "freeze") {
    living_node(state, fault.node);
    Cgroups::find().freeze(frozen_group(state, fault.node), make);
    return;
  }
  const FaultScripts scripts = fault_scripts(state, fault);
  run_in_node(state, fault.node, change_script(change_number(), make ? scripts.make : scripts.undo),
              scripts.timeout_s);
  refresh_rdma(state, fault);
}

bool same_place(const LabFault& a, const LabFault& b) {
  return a.kind == b.kind && a.node == b.node && a.peer == b.peer;
}

void drop(LabState& state, const LabFault& fault) {
  std::erase_if(state.faults, [&fault](const LabFault& each) { return same_place(each, fault); });
}

// Throws what made it necessary; whether it succeeds decides about the advice.
[[noreturn]] void take_back(LabState state, const LabFault& fault, const Error& cause) {
  std::string hint = cause.hint();
  try {
    drop(state, fault);
    change(state, fault, false);
    write_lab_state(state);
  } catch (const Error&) {
    hint = "some of it may be there: spark lab heal " + fault.kind + " " + fault.node + " undoes it";
  }
  throw Error(cause.what(), cause.where(), hint);
}

}  // namespace

std::string inject_fault(const std::string& directory, const LabFault& wanted) {
  const Descriptor lock = lock_lab(directory, kLockSeconds);
  LabState state = load_lab(directory);  // only now: another command may have recorded a fault until here
  const LabFault fault = checked_fault(state, wanted);
  for (const LabFault& present : state.faults) {
    if (same_place(present, fault)) {
      throw Error("this fault is already there", describe_fault(present),
                  "spark lab heal " + fault.kind + " " + fault.node);
    }
  }
  require_awake(state, fault);
  // Recorded before it is made: when this command is killed, what it made can be healed.
  state.faults.push_back(fault);
  write_lab_state(state);
  try {
    change(state, fault, true);
  } catch (const Error& error) {
    take_back(state, fault, error);
  }
  return describe_fault(fault);
}

HealedFaults heal_faults(const std::string& directory, const std::string& kind, const std::string& node) {
  const Descriptor lock = lock_lab(directory, kLockSeconds);
  LabState state = load_lab(directory);  // only now, as above
  if (!kind.empty()) fault_kind(kind);
  if (!node.empty()) state.plan.node(node);
  HealedFaults result;
  std::vector<std::string> unwritten;  // undone, but not yet out of the record
  std::string trouble;
  for (const LabFault& fault : healing_order(state.faults, kind, node)) {
    LabState without = state;
    drop(without, fault);
    try {
      change(without, fault, false);
    } catch (const Error& error) {
      // The others are undone all the same.
      result.failed.push_back({describe_fault(fault), error.where() + ": " + error.what(), error.hint()});
      continue;
    }
    state = std::move(without);
    unwritten.push_back(describe_fault(fault));
    try {
      write_lab_state(state);
      result.healed.insert(result.healed.end(), unwritten.begin(), unwritten.end());
      unwritten.clear();
    } catch (const Error& error) {
      trouble = error.what();
    }
  }
  for (const std::string& fault : unwritten) {
    result.failed.push_back({fault, "is undone, but still in the lab's record, which " + trouble,
                             "make room, then heal it again: that changes nothing else"});
  }
  return result;
}

}  // namespace spark::ops
