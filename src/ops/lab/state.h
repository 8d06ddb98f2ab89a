// What a running lab left in its directory, and whether it still runs.
//
// A lab lives in its processes: namespaces, mounts and cables are held by one process per node and one for
// the management network, and vanish with them. So this file needs to name processes only, and a lab that was
// killed in any way at any moment leaves files, empty cgroups and nothing else.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "ops/lab/plan.h"

namespace spark::ops {

// A process that cannot be confused with a later one of the same number.
struct ProcessIdentity {
  pid_t pid = 0;
  uint64_t start_ticks = 0;  // since boot, from /proc/PID/stat
};
std::optional<ProcessIdentity> identify_process(pid_t pid);
bool process_lives(const ProcessIdentity& process);
// SIGKILL, then waits until it is gone. False when it still is there after `timeout_s`.
bool kill_process(const ProcessIdentity& process, double timeout_s);

struct LabFault {
  std::string kind;  // "cable", "mtu", ...
  std::string node;
  std::string peer;   // cable, mtu: the node at the other end
  std::string value;  // as given
};

struct LabState {
  std::string boot_id;  // of the kernel: after a reboot the processes below are somebody else's
  LabPlan plan;
  ProcessIdentity network;             // holds the management network
  std::vector<ProcessIdentity> nodes;  // by rank
  std::string docker;                  // what runs containers, or why nothing does
  std::string image;                   // tag of the engine's image; empty: none
  std::vector<LabFault> faults;
};

inline constexpr const char* kLabStateFile = "state.json";

std::optional<LabState> read_lab_state(const std::string& directory);  // nullopt: none there
void write_lab_state(const LabState& state);
LabState load_lab(const std::string& directory);  // throws Error when none is there, runs, or belongs there
void require_home(const LabState& state);         // throws Error when its directory was moved
Error no_lab(const std::string& directory);       // what a command says then
const ProcessIdentity& living_node(const LabState& state, const std::string& node);  // throws Error
std::string boot_id();

}  // namespace spark::ops
