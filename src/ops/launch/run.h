// One run from its first record to its last: carried out, and taken back when it fails. And a run of an
// earlier command that did not end: finished or taken back.
//
//   RunLog log(header, waves, Journal::create(folder, header.run));
//   RunResult result = carry_out(log, actions, hooks);
#pragma once

#include "ops/launch/executor.h"

namespace spark::ops {

// The records of a run, in memory and (but for tests) on the disk.
class RunLog {
 public:
  RunLog(const RunHeader& header, const Waves& waves, JournalSink disk);
  RunLog(std::vector<Json> records, JournalSink disk)
      : records_(std::move(records)), disk_(std::move(disk)) {}

  void append(Json record);
  RunState state() const { return replay(records_); }
  const std::vector<Json>& records() const { return records_; }

 private:
  std::vector<Json> records_;
  JournalSink disk_;
};

struct RunHooks {
  std::function<void(const Step& step, const StepResult& result)> step = {};
  std::function<void(const std::string& line)> say = {};
  std::stop_token stop = {};       // ends the plan; what was done is then taken back
  std::stop_token undo_stop = {};  // ends the undo too: the next command goes on with it
};

struct RunResult {
  bool ok = true;
  bool unreachable = false;
  bool taken_back = false;   // a plan failed, and nothing of it is left
  bool interrupted = false;  // asked to stop
  bool restored = false;     // the service from before the run serves again
  std::string problem;
};

// Executes the plan; a failure is followed by the undo, with the service from before restored.
RunResult carry_out(RunLog& log, const std::string& outcome, StepActions& actions, const RunHooks& hooks);

// Finishes or takes back. `ok`: the run has ended, one way or the other.
RunResult recover(RunLog& log, RecoveryAim aim, const std::string& by, StepActions& actions,
                  const RunHooks& hooks);

const char* outcome_of(const std::string& command);  // "ready", "stopped", "synced", "pruned"

}  // namespace spark::ops
