// What one look at a node shows (look_script), and what the readiness loop makes of all of them. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ops/remote/remote.h"

namespace spark::ops {

struct NodeLook {
  std::string node;
  bool reached = true;
  bool answered = true;  // the whole script ran; Docker may not answer: then `problem`, and the rest is known
  std::string problem;
  std::string hint;
  std::string seen;                              // "absent", "stopped", "running"; empty: not known
  std::string id, since, image_id, tag, status;  // of the container
  std::string exit_code;
  bool oom_killed = false;
  bool guard_alive = false;
  std::map<std::string, std::string> guard;  // status of the guard, of the living one or the last
  std::string guard_unit;                    // what systemd says; empty without it
  std::optional<int64_t> available_kib, total_kib;
  std::string commit, origin;
  std::vector<std::string> changes;  // of the checkout, as git status shows them
  std::string kept;                  // retired services that are still there
  std::string unkeepable;            // why a replaced service could not be started again; empty: it could
  std::map<std::string, std::string> files;  // claim and hold files of the login's home, by name

  bool running() const { return seen == "running"; }
  bool guarded() const { return guard_alive && guard_value("state") == "watching"; }
  std::string guard_value(const std::string& key) const;
  // Why the service ended, as the guard says: "low-memory, 4.2 GiB available, threshold 5 GiB"; "" when it
  // was not the guard.
  std::string killed_by_guard() const;
  // "active", "active (startup)", "killed: ...", "inactive"
  std::string guard_text() const;
};

NodeLook read_look(const std::string& node, const RemoteResult& result);

// The first hold or foreign claim among the looks: "spark-hold.json on node1: {...}"; "" when nobody holds.
std::string hold_text(const std::vector<NodeLook>& looks);

// Whether a start may go on waiting. `failure` names the node.
struct ReadinessVerdict {
  bool all_there = false;  // every node runs and is guarded: ask the API
  std::string failure;     // give up
  std::string unguarded;   // a guard that says nothing, though nothing says that it has ended: look again
  std::vector<std::string> unreachable;
};
// A guard that only one look has missed may have been without a processor at that moment, or just have been
// started again; after this many looks in a row the service counts as unguarded.
inline constexpr int kUnguardedLooks = 3;
// `unguarded_before`: how many looks right before this one had something `unguarded`.
ReadinessVerdict judge_readiness(const std::vector<NodeLook>& looks, int unguarded_before = 0);

}  // namespace spark::ops
