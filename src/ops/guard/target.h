// The service that is guarded, held by descriptors that are opened while there is memory: its first process
// (pidfd) and its cgroup. Seeing whether it runs and killing it then need neither the container engine nor a
// new process nor the heap.
#pragma once

#include "common/descriptor.h"
#include "ops/guard/options.h"

namespace spark::ops {

class GuardTarget {
 public:
  explicit GuardTarget(const GuardOptions& options);

  // While nothing is held: looks for the systemd unit, the pid file and the container, in this order, and
  // takes hold of what runs. Afterwards: whether it still runs.
  TargetSeen look();

  // Ends everything in the service's cgroup, or its first process where that is all that may be touched, or
  // asks the container engine where this user may do nothing else. Returns when it is gone, or false after
  // `patience_ms`.
  bool kill(int64_t patience_ms);

  bool held() const { return process_.open(); }
  int64_t pid() const { return pid_; }
  const char* kind() const { return kind_; }  // "container", "unit", "pid-file", "none"
  const char* means() const {
    return means_;
  }  // how kill() would act: "cgroup", "members", "process", "engine"
  int event() const { return process_.get(); }  // readable when the first process has ended; -1 when not held

 private:
  TargetSeen look_again();
  TargetSeen look_for_unit();
  TargetSeen look_for_pid_file();
  TargetSeen look_for_container();
  TargetSeen hold(int64_t pid, const char* kind);
  void open_cgroup(int64_t pid);
  bool process_ended() const;
  bool members_gone();
  void strike();

  const GuardOptions& options_;
  PathText v2_mount_;
  PathText v1_mount_;
  FixedText<4096> own_cgroup_;
  int64_t pid_ = 0;
  const char* kind_ = "none";
  const char* means_ = "none";
  Descriptor process_;
  Descriptor kill_file_;     // cgroup.kill
  Descriptor members_file_;  // cgroup.procs of the service
  bool may_signal_ = false;
};

}  // namespace spark::ops
