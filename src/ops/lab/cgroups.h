// The cgroups of a lab: one tree per hierarchy of this machine (one under cgroup v2, several under v1 or the
// hybrid layout), spark-lab-ID/NODE/host for the node's own processes and spark-lab-ID/NODE/docker for its
// containers.
//
//   Cgroups groups = Cgroups::find();
//   groups.create("spark-lab-1a2b3c4d/node1/host");
//   groups.enter("spark-lab-1a2b3c4d/node1/host", pid);
//   groups.freeze("spark-lab-1a2b3c4d/node1", true);
//   groups.kill_and_remove("spark-lab-1a2b3c4d");
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace spark::ops {

class Cgroups {
 public:
  // Reads /proc/self/mounts. A hierarchy in which nothing can be created is left out.
  static Cgroups find();
  Cgroups() = default;

  bool unified_only() const { return hierarchies_.empty(); }
  bool has_memory() const { return !memory_.empty(); }
  bool has_v2() const { return !v2_.empty(); }
  const std::string& v2() const { return v2_; }

  void create(const std::string& group) const;  // with its parents, controllers enabled where they exist
  void enter(const std::string& group, pid_t pid) const;
  std::vector<std::string> process_files(const std::string& group) const;  // cgroup.procs of every hierarchy
  void limit_memory(const std::string& group, int64_t bytes) const;        // nothing without has_memory()
  // Before the rest of this machine where processors are short: a node stands for a machine of its own, and
  // what runs on it with a deadline must not wait behind what the other one does. Where that is possible.
  void prefer(const std::string& group) const;
  // Paths of usage and of memory.stat, and the name of the field there that counts droppable file pages.
  struct MemoryFiles {
    std::string usage;
    std::string stat;
    std::string inactive_field;
  };
  std::optional<MemoryFiles> memory_files(const std::string& group) const;
  void freeze(const std::string& group, bool frozen) const;  // throws Error without cgroup v2
  bool frozen(const std::string& group) const;
  // Kills what runs inside and removes the tree everywhere. Nothing there is no error. False: could not.
  bool kill_and_remove(const std::string& group) const;

 private:
  std::string v2_;                        // mount point of cgroup v2; may be empty
  bool v2_memory_ = false;                // the memory controller is there, not under v1
  std::string memory_;                    // mount point that has the memory controller
  std::vector<std::string> hierarchies_;  // mount points of v1
};

}  // namespace spark::ops
