// What a start, a stop or a sync consists of: steps on nodes, grouped into waves. The steps of a wave run at
// the same time, waves one after another. Plain data, so that the journal can hold the whole plan and a later
// command can take back or finish what an earlier one began, whatever became of the configuration since.
//
//   Wave wave = {{StepKind::kArm, "node2", {}}, {StepKind::kArm, "node3", {}}};
//   wave[0].id();      // "arm node2"
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/json.h"

namespace spark::ops {

enum class StepKind {
  kClaim,     // the head: this run owns the cluster
  kRetire,    // stop the container that is there and rename it to `backup`
  kArm,       // startup guard; done when its first sample was taken
  kLaunch,    // the rank; done when the guard watches it
  kReady,     // the head: wait until the API generated a token
  kSteady,    // the guard's steady limits, in place
  kDiscard,   // remove the container that was retired; a failure only warns
  kRelease,   // the head: this run no longer owns the cluster
  kStop,      // end the service under its guard, then make sure that no guard is left
  kEvidence,  // keep logs and state of what is about to be removed, on this machine
  kRemove,    // remove what kLaunch made
  kDisarm,    // end the guard of a service that does not run
  kRestore,   // give a retired container its name back; with "start" start it under a guard
  kFetch,     // get the revision from the origin
  kCheckout,  // detach the checkout at "revision" and write the node map
  kPrune,     // remove retired services that are still there
  kKeep,      // what it takes to start a unit or a process again, as `backup`; on every node before any is
              // stopped
};
inline constexpr int kStepKinds = static_cast<int>(StepKind::kKeep) + 1;

const char* step_name(StepKind kind);  // "claim", "retire", ...
// A failure of such a step is told, but ends nothing.
bool may_fail(StepKind kind);

struct Step {
  StepKind kind = StepKind::kClaim;
  std::string node;
  std::map<std::string, std::string> parameters = {};

  std::string id() const { return std::string(step_name(kind)) + " " + node; }
  std::string parameter(const std::string& name) const;  // "" when absent
  bool operator==(const Step&) const = default;
};

using Wave = std::vector<Step>;
using Waves = std::vector<Wave>;

// [[{"step": "arm", "node": "node2", ...parameters}]]
Json waves_json(const Waves& waves);
Waves read_waves(const JsonReader& reader);

}  // namespace spark::ops
