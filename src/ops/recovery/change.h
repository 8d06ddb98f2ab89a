// Putting the recovery policy on a machine, and taking it back.
//
//   Host host;                                                    // this machine; Host("/some/folder") for a
//   tree RecoveryPlan plan = plan_apply(host, policy, facts);          // reads only std::cout <<
//   plan_text(plan); execute(host, plan);                                          // says what it does
//   through `report`
//
// Applying twice changes nothing the second time. The first apply keeps what it replaces in kRecoveryState,
// every file with its mode and owner, every unit with its state; revert puts exactly that back. Both can be
// interrupted at any point and repeated. sshd's configuration is tested before anything listens anew; if it
// is refused the old file comes back.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ops/probe/facts.h"
#include "ops/recovery/host.h"
#include "ops/recovery/policy.h"

namespace spark::ops {

inline constexpr const char* kRecoveryFolder = "/var/lib/spark-recovery";  // nobody else's
inline constexpr const char* kRecoveryState = "/var/lib/spark-recovery/state.json";

enum class ChangeKind {
  kInstall,      // a file that is not there
  kReplace,      // a file with other content, mode or kind
  kRemove,       // a retired file
  kTestSshd,     // sshd -t; takes its file back when it is refused
  kDisableUnit,  // stop and disable, remembering its state
  kTextConsole,
  kCommand,
  kRestore,     // revert: a file as it was
  kDelete,      // revert: a file that was not there
  kEnableUnit,  // revert
};

struct HostChange {
  ChangeKind kind = ChangeKind::kCommand;
  std::string subject;  // path, unit or terminal
  std::vector<std::string> command = {};
  HostFile file = {};                            // to write
  bool was_enabled = false, was_active = false;  // of a unit
};

struct RecoveryPlan {
  bool revert = false;
  std::vector<HostChange> changes;  // in order; empty: nothing to do
};

// Throws Error when a file of the policy's place is a folder, or the state of an earlier apply cannot be
// read.
RecoveryPlan plan_apply(const Host& host, const RecoveryPolicy& policy, const Facts& facts);
RecoveryPlan plan_revert(const Host& host);

std::string plan_text(const RecoveryPlan& plan);

// `report` is called with one line before each change. Throws Error at the first that fails.
void execute(Host& host, const RecoveryPlan& plan,
             const std::function<void(const std::string&)>& report = {});

}  // namespace spark::ops
