// A cluster of three or four virtual nodes on one Linux machine: real network namespaces joined by veth
// cables in the triangle or the ring, a real SSH server and a real container engine in each. Needs root.
//
//   lab_up({.directory = "/srv/lab", .nodes = 3, .spark_program = self}, [](auto& line) { log_info(line); });
//   Remote remote({.ssh_config = "/srv/lab/ssh_config"});          // now ops/remote reaches node1...node3
//   lab_down("/srv/lab");
//
// A lab touches its directory, cgroups named spark-lab-ID, and namespaces of its own; no interface, address,
// mount or process appears outside. It is idempotent in both directions: up clears what an earlier lab of the
// same directory left, however that one ended, and down of nothing is done.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ops/lab/state.h"

namespace spark::ops {

using LabProgress = std::function<void(const std::string& line)>;

// Throws Error when root, a program or a kernel feature is missing; then nothing is left.
LabState lab_up(const LabOptions& options, const LabProgress& progress);

// True when there was something to clear. Throws Error when something cannot be cleared.
bool lab_down(const std::string& directory);

struct LabNodeStatus {
  std::string name;
  std::string process;    // "running", "frozen" or "gone"
  std::string ssh;        // "ok", or why not
  std::string docker;     // server version, or why not
  std::string available;  // MemAvailable as the node tells it
  std::string faults;     // "cable to node2, disk"
};
struct LabStatus {
  LabState state;
  std::vector<LabNodeStatus> nodes;
  bool healthy() const;
};
LabStatus lab_status(const std::string& directory);

}  // namespace spark::ops
