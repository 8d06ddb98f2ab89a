// Carries out waves of steps: every step is in the journal before it is begun and after it ended. What a step
// does to the world is behind an interface, so that the tests can replace the world and crash at any moment.
//
//   Execution done = execute(waves, journal, actions, {.progress = print}, stop);
//   if (!done.ok) { ... done.problem ... }
#pragma once

#include <functional>
#include <stop_token>

#include "ops/launch/journal.h"
#include "ops/launch/run_state.h"

namespace spark::ops {

struct StepResult {
  bool ok = true;
  bool unreachable = false;
  std::map<std::string, std::string> values = {};
  std::string problem = {};
};

class StepActions {
 public:
  virtual ~StepActions() = default;
  // All at once, results in order. Returns early, with failures, when asked to stop.
  virtual std::vector<StepResult> perform(const Wave& wave, std::stop_token stop) = 0;
};

// Where records go. A file in programs, memory in tests.
using JournalSink = std::function<void(Json record)>;

struct ExecuteOptions {
  // An undo goes on after a failed step: other nodes, and the rest of the plan where it does not need the
  // node that failed.
  bool keep_going = false;
  std::function<void(const Step& step, const StepResult& result)> progress = {};
};

struct Execution {
  bool ok = true;
  bool unreachable = false;  // a node that could not be reached is among the failures
  std::string problem;       // the first failure: "arm node2: ..."
};

Execution execute(const Waves& waves, const JournalSink& journal, StepActions& actions,
                  const ExecuteOptions& options, const std::stop_token& stop);

}  // namespace spark::ops
