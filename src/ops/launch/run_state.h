// What a journal says about its run, and what has to be done about a run that did not end. Pure: any prefix
// of a journal gives a state, and every state that is not ended has a recovery.
//
//   RunState run = replay(read_journal(path));
//   if (!run.ended) {
//     std::cout << explain(run);                                    // which step it was in, and since when
//     Recovery recovery = plan_recovery(run, RecoveryAim::kRestoreService);
//   }
//
// Records ("event"): run (header and plan), begin {steps}, done {step, values}, failed {step, problem},
// undo {reason, waves} (from here on begin, done and failed are about these waves; a later undo replaces an
// earlier one), resume {by}, end {outcome}.
#pragma once

#include <set>

#include "ops/launch/steps.h"

namespace spark::ops {

enum class StepState { kPending, kBegun, kDone, kFailed };

struct RunHeader {
  std::string run;      // name
  std::string command;  // "start", "stop", "sync", "prune"
  std::string service;
  std::string profile;
  std::string by;     // user@host
  std::string since;  // UTC
  bool replace = false;
  std::string evidence;  // folder for what a failed start leaves; may be empty
};

struct RunState {
  RunHeader header;
  Waves waves;                                                       // the plan
  std::map<std::string, StepState> steps;                            // of the plan, by id
  std::map<std::string, std::map<std::string, std::string>> values;  // what done steps reported
  bool undoing = false;
  std::string reason;  // of the undo
  Waves undo_waves;
  std::map<std::string, StepState> undo_steps;
  std::set<std::string> undone;                 // steps of this or an earlier undo that were done
  std::map<std::string, std::string> problems;  // of failed steps
  bool ended = false;
  std::string outcome;  // "ready", "stopped", "synced", "rolled-back", "given-up"
  std::string last_time;

  StepState state(const Step& step) const;
  bool touched(const Step& step) const { return state(step) != StepState::kPending; }
  bool all_done(StepKind kind) const;  // and there is one
  bool any_touched(StepKind kind) const;
};

Json header_json(const RunHeader& header, const Waves& waves);
RunState replay(const std::vector<Json>& records);

// Several lines: what it was, how far it got, what may be half done, what the next command does. For a run
// that ended: one line.
std::string explain(const RunState& run);

// What is to be there after the recovery.
enum class RecoveryAim {
  kRestoreService,  // as before the run: what was retired runs again, guarded
  kRestoreNames,    // nothing of the run is left; what was retired has its name, and is stopped
};

struct Recovery {
  bool forward = false;  // the rest of the plan, not an undo
  Waves waves;
};

// Forward when the start had generated its token, for every stop and prune, and for a sync that had all
// fetched; otherwise an undo.
Recovery plan_recovery(const RunState& run, RecoveryAim aim);

// The undo of whatever the run may have done.
Waves plan_undo(const RunState& run, RecoveryAim aim);

}  // namespace spark::ops
