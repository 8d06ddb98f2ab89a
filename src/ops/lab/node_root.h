// The filesystem of a node, built by the node's first process in its own mount namespace:
//
//   /                   this machine's root, copied on write into a memory filesystem of the node's own
//   /root /home /tmp /run /etc/ssh   empty and the node's own: no keys, no shell configuration of this
//   machine /var/lib/docker     the node's own memory filesystem (no overlay over an overlay) /proc /sys of
//   the node's namespaces; /proc/meminfo tells the memory of the node's cgroup /sys/class/infiniband   made
//   up from the address plan (rdma_view.h): this machine has no such ports /dev                a few devices,
//   a terminal filesystem and a shared memory of its own /srv/spark-lab      the lab's shared/ folder,
//   read-only: programs, image, origin of the site's repository
//
// Shared with this machine: the kernel, its clock, its cgroup filesystem, and whatever files of it nobody has
// written to.
#pragma once

#include <functional>
#include <string>

#include "ops/lab/cgroups.h"
#include "ops/lab/plan.h"

namespace spark::ops {

inline constexpr const char* kLabShared = "/srv/spark-lab";

// Returns what to call every 100 ms to keep /proc/meminfo current; empty when the node has no memory of its
// own. Throws Error. Runs in the node's first process.
std::function<void()> build_node_root(const LabPlan& plan, const LabNode& node, const Cgroups& cgroups);

// The text of /proc/meminfo for a node of `total` bytes of which `used` are taken, from this machine's text.
std::string node_meminfo(const std::string& machine, int64_t total, int64_t used);

}  // namespace spark::ops
