#include "ops/launch/run.h"

namespace spark::ops {
namespace {

JournalSink sink_of(RunLog& log) {
  return [&log](Json record) { log.append(std::move(record)); };
}

void end_run(RunLog& log, const std::string& outcome) {
  log.append({{"event", "end"}, {"outcome", outcome}});
}

// Whether what ran before was started again and generated a token; that it did not fails no undo.
bool serves_again(const RunState& run) {
  for (const Wave& wave : run.undo_waves) {
    for (const Step& step : wave) {
      if (step.kind != StepKind::kReady) continue;
      const auto found = run.undo_steps.find(step.id());
      return found != run.undo_steps.end() && found->second == StepState::kDone;
    }
  }
  return false;
}

// What nothing has to be taken back of.
bool only_takes_away(const std::string& command) {
  return command == "stop" || command == "prune";
}

// Takes everything back; the run ends when all of it could be.
RunResult take_back(RunLog& log, RecoveryAim aim, const std::string& reason, StepActions& actions,
                    const RunHooks& hooks) {
  const Waves waves = plan_undo(log.state(), aim);
  log.append({{"event", "undo"}, {"reason", reason}, {"waves", waves_json(waves)}});
  const Execution undone =
      execute(waves, sink_of(log), actions, {.keep_going = true, .progress = hooks.step}, hooks.undo_stop);
  RunResult result;
  result.ok = undone.ok;
  result.unreachable = undone.unreachable;
  result.taken_back = undone.ok;
  result.restored = undone.ok && serves_again(log.state());
  result.problem = undone.problem;
  if (undone.ok) end_run(log, "rolled-back");
  return result;
}

}  // namespace

RunLog::RunLog(const RunHeader& header, const Waves& waves, JournalSink disk) : disk_(std::move(disk)) {
  append(header_json(header, waves));
}

void RunLog::append(Json record) {
  if (disk_) disk_(record);
  records_.push_back(std::move(record));
}

const char* outcome_of(const std::string& command) {
  return command == "start"   ? "ready"
         : command == "stop"  ? "stopped"
         : command == "prune" ? "pruned"
                              : "synced";
}

RunResult carry_out(RunLog& log, const std::string& outcome, StepActions& actions, const RunHooks& hooks) {
  const RunState begun = log.state();
  const bool keep_going =
      only_takes_away(begun.header.command);  // one node's failure does not keep the others up
  const Execution done = execute(begun.waves, sink_of(log), actions,
                                 {.keep_going = keep_going, .progress = hooks.step}, hooks.stop);
  RunResult result;
  if (done.ok) {
    end_run(log, outcome);
    return result;
  }
  result.ok = false;
  result.interrupted = hooks.stop.stop_requested();
  result.unreachable = done.unreachable;
  result.problem = done.problem;
  if (keep_going) {
    // What is stopped stays stopped. Nothing is half done on a node that answered; the others are told.
    if (!result.interrupted) end_run(log, "incomplete: " + done.problem);
    return result;
  }
  // What the service logged stands in the second and later lines; whoever reports the end tells all of it.
  const std::string problem = done.problem.substr(0, done.problem.find('\n'));
  if (hooks.say) hooks.say("failed: " + problem + "; taking back what was done");
  const RunResult undone = take_back(log, RecoveryAim::kRestoreService, done.problem, actions, hooks);
  result.taken_back = undone.taken_back;
  result.restored = undone.restored;
  if (!undone.ok) result.problem += "; not all of it could be taken back: " + undone.problem;
  return result;
}

RunResult recover(RunLog& log, RecoveryAim aim, const std::string& by, StepActions& actions,
                  const RunHooks& hooks) {
  const RunState state = log.state();
  const Recovery recovery = plan_recovery(state, aim);
  log.append({{"event", "resume"}, {"by", by}});
  if (!recovery.forward)
    return take_back(log, aim, state.undoing ? state.reason : "it was interrupted", actions, hooks);
  const bool stopping = only_takes_away(state.header.command);
  const Execution done = execute(recovery.waves, sink_of(log), actions,
                                 {.keep_going = stopping, .progress = hooks.step}, hooks.stop);
  RunResult result;
  result.ok = done.ok;
  result.unreachable = done.unreachable;
  result.problem = done.problem;
  if (done.ok) {
    end_run(log, outcome_of(state.header.command));
    return result;
  }
  if (stopping || hooks.stop.stop_requested()) return result;
  // What was ready is no longer there: then nothing of it shall stay.
  return take_back(log, aim, "it could not be finished: " + done.problem, actions, hooks);
}

}  // namespace spark::ops
