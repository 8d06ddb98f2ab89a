#include "ops/launch/run_state.h"

#include <algorithm>

namespace spark::ops {
namespace {

std::string text_of(const Json& record, const char* key) {
  const auto found = record.find(key);
  return found != record.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::map<std::string, StepState> pending_steps(const Waves& waves) {
  std::map<std::string, StepState> steps;
  for (const Wave& wave : waves) {
    for (const Step& step : wave) steps[step.id()] = StepState::kPending;
  }
  return steps;
}

Waves waves_of(const Json& record) {
  Faults faults;
  if (!record.contains("waves")) return {};
  return read_waves(JsonReader(record["waves"], "waves", faults));
}

void read_header(const Json& record, RunState& run) {
  RunHeader& header = run.header;
  header.run = text_of(record, "run");
  header.command = text_of(record, "command");
  header.service = text_of(record, "service");
  header.profile = text_of(record, "profile");
  header.by = text_of(record, "by");
  header.since = text_of(record, "time");
  header.evidence = text_of(record, "evidence");
  header.replace = record.value("replace", Json(false)) == Json(true);
  run.waves = waves_of(record);
  run.steps = pending_steps(run.waves);
}

void apply_step_event(const Json& record, const std::string& event, RunState& run) {
  auto& steps = run.undoing ? run.undo_steps : run.steps;
  if (event == "begin") {
    for (const Json& id : record.value("steps", Json::array())) {
      if (id.is_string()) steps[id.get<std::string>()] = StepState::kBegun;
    }
    return;
  }
  const std::string id = text_of(record, "step");
  if (event == "failed") {
    steps[id] = StepState::kFailed;
    run.problems[id] = text_of(record, "problem");
    return;
  }
  steps[id] = StepState::kDone;
  if (run.undoing) run.undone.insert(id);
  run.problems.erase(id);
  const Json values = record.value("values", Json::object());
  for (auto it = values.begin(); it != values.end(); ++it) {
    if (it->is_string()) run.values[id][it.key()] = it->get<std::string>();
  }
}

// The steps of a kind that may have had an effect, in the order of the plan.
std::vector<const Step*> touched_steps(const RunState& run, StepKind kind) {
  std::vector<const Step*> found;
  for (const Wave& wave : run.waves) {
    for (const Step& step : wave) {
      if (step.kind == kind && run.touched(step)) found.push_back(&step);
    }
  }
  return found;
}

void add_wave(Waves& waves, Wave wave) {
  if (!wave.empty()) waves.push_back(std::move(wave));
}

// What it may remove: the container with this id; where the id is not known, the one that took the place of
// the retired one (a restored service is never removed).
Step launched_removal(const RunState& run, const Step& launch) {
  Step removal{StepKind::kRemove, launch.node, {}};
  for (const Step* retire : touched_steps(run, StepKind::kRetire)) {
    if (retire->node == launch.node) removal.parameters["backup"] = retire->parameter("backup");
  }
  const auto values = run.values.find(launch.id());
  if (values != run.values.end() && values->second.contains("id"))
    removal.parameters["id"] = values->second.at("id");
  return removal;
}

bool was_running(const Step& retire) {
  return retire.parameter("was_running") == "1";
}

// Workers of the old service before its head, as in a start.
void add_restores(const RunState& run, RecoveryAim aim, Waves& waves) {
  const std::vector<const Step*> retired = touched_steps(run, StepKind::kRetire);
  Wave workers, heads, steady;
  for (const Step* retire : retired) {
    Step restore{StepKind::kRestore, retire->node, {{"backup", retire->parameter("backup")}}};
    const bool start = aim == RecoveryAim::kRestoreService && was_running(*retire);
    if (start) {
      restore.parameters["start"] = "1";
      steady.push_back({StepKind::kSteady, retire->node, {}});
    }
    (retire->parameter("head") == "1" ? heads : workers).push_back(std::move(restore));
  }
  const bool serves = !steady.empty() && steady.size() == retired.size() && !heads.empty();
  const std::string head = heads.empty() ? std::string() : heads.front().node;
  add_wave(waves, std::move(workers));
  add_wave(waves, std::move(heads));
  if (!serves) return;
  add_wave(waves, {{StepKind::kReady, head, {}}});
  add_wave(waves, std::move(steady));
}

// Of services that were not to be stopped any more.
Wave needless_backups(const RunState& run) {
  Wave wave;
  if (run.any_touched(StepKind::kRetire)) return wave;
  for (const Step* keep : touched_steps(run, StepKind::kKeep))
    wave.push_back({StepKind::kDiscard, keep->node, {{"backup", keep->parameter("backup")}}});
  return wave;
}

Waves undo_of_sync(const RunState& run) {
  Waves waves;
  std::vector<const Step*> changed = touched_steps(run, StepKind::kCheckout);
  std::reverse(changed.begin(), changed.end());
  for (const Step* step : changed)
    waves.push_back({{StepKind::kCheckout, step->node, {{"revision", step->parameter("old")}}}});
  return waves;
}

Waves rest_of_plan(const RunState& run) {
  Waves rest;
  for (const Wave& wave : run.waves) {
    Wave left;
    for (const Step& step : wave) {
      if (run.state(step) != StepState::kDone) left.push_back(step);
    }
    add_wave(rest, std::move(left));
  }
  return rest;
}

// The release belongs to the end even when it was begun before.
void add_release(const RunState& run, Waves& waves) {
  for (const Step* claim : touched_steps(run, StepKind::kClaim))
    add_wave(waves, {{StepKind::kRelease, claim->node, {}}});
}

std::string steps_in(const std::map<std::string, StepState>& steps, StepState state) {
  std::string list;
  for (const auto& [id, of] : steps) {
    if (of == state) list += (list.empty() ? "" : ", ") + id;
  }
  return list;
}

size_t count_in(const std::map<std::string, StepState>& steps, StepState state) {
  return static_cast<size_t>(std::count_if(steps.begin(), steps.end(),
                                           [state](const auto& entry) { return entry.second == state; }));
}

}  // namespace

StepState RunState::state(const Step& step) const {
  const auto found = steps.find(step.id());
  return found == steps.end() ? StepState::kPending : found->second;
}

bool RunState::all_done(StepKind kind) const {
  bool any = false;
  for (const Wave& wave : waves) {
    for (const Step& step : wave) {
      if (step.kind != kind) continue;
      any = true;
      if (state(step) != StepState::kDone) return false;
    }
  }
  return any;
}

bool RunState::any_touched(StepKind kind) const {
  return !touched_steps(*this, kind).empty();
}

Json header_json(const RunHeader& header, const Waves& waves) {
  return {{"event", "run"},
          {"run", header.run},
          {"command", header.command},
          {"service", header.service},
          {"profile", header.profile},
          {"by", header.by},
          {"replace", header.replace},
          {"evidence", header.evidence},
          {"waves", waves_json(waves)}};
}

RunState replay(const std::vector<Json>& records) {
  RunState run;
  for (const Json& record : records) {
    const std::string event = text_of(record, "event");
    run.last_time = text_of(record, "time");
    if (event == "run") {
      read_header(record, run);
    } else if (event == "undo") {
      run.undoing = true;
      run.reason = text_of(record, "reason");
      run.undo_waves = waves_of(record);
      run.undo_steps = pending_steps(run.undo_waves);
    } else if (event == "begin" || event == "done" || event == "failed") {
      apply_step_event(record, event, run);
    } else if (event == "end") {
      run.ended = true;
      run.outcome = text_of(record, "outcome");
    }
  }
  return run;
}

Waves plan_undo(const RunState& run, RecoveryAim aim) {
  if (run.header.command == "sync") {
    Waves waves = undo_of_sync(run);
    add_release(run, waves);
    return waves;
  }
  Waves waves;
  Wave evidence, removals, guards;
  const auto is_undone = [&run](StepKind kind, const std::string& node) {
    return run.undone.contains(Step{kind, node, {}}.id());
  };
  for (const Step* launch : touched_steps(run, StepKind::kLaunch)) {
    if (is_undone(StepKind::kRemove, launch->node)) continue;
    evidence.push_back({StepKind::kEvidence, launch->node, {}});
    removals.push_back(launched_removal(run, *launch));
  }
  for (const Step* arm : touched_steps(run, StepKind::kArm)) {
    if (!is_undone(StepKind::kDisarm, arm->node)) guards.push_back({StepKind::kDisarm, arm->node, {}});
  }
  add_wave(waves, std::move(evidence));
  add_wave(waves, std::move(removals));
  add_wave(waves, std::move(guards));
  add_restores(run, aim, waves);
  add_wave(waves, needless_backups(run));
  add_release(run, waves);
  return waves;
}

Recovery plan_recovery(const RunState& run, RecoveryAim aim) {
  const std::string& command = run.header.command;
  const bool forward = !run.undoing && (command == "stop" || command == "prune" ||
                                        (command == "start" && run.all_done(StepKind::kReady)));
  if (forward) return {true, rest_of_plan(run)};
  return {false, plan_undo(run, aim)};
}

std::string explain(const RunState& run) {
  const RunHeader& header = run.header;
  if (header.run.empty()) return "a run that had not begun\n";
  const std::string title =
      header.command + " " + header.run + " of " + header.by + " (" + header.profile + ")";
  if (run.ended) {
    return title + ": " + run.outcome + " at " + run.last_time +
           (run.reason.empty() ? "" : "; " + run.reason) + "\n";
  }
  const auto& steps = run.undoing ? run.undo_steps : run.steps;
  std::string text =
      title + " did not end: it began at " + header.since + ", its last record is of " + run.last_time + "\n";
  if (run.undoing) text += "  it was being rolled back: " + run.reason + "\n";
  text += "  " + std::to_string(count_in(steps, StepState::kDone)) + " of " + std::to_string(steps.size()) +
          (run.undoing ? " steps of the rollback" : " steps") + " were done\n";
  if (const std::string begun = steps_in(steps, StepState::kBegun); !begun.empty())
    text += "  begun, and perhaps done: " + begun + "\n";
  for (const auto& [id, problem] : run.problems) text += "  failed: " + id + ": " + problem + "\n";
  const Recovery recovery = plan_recovery(run, RecoveryAim::kRestoreService);
  if (header.command == "sync")
    return text + "  the next `spark cluster sync --apply` puts the checkouts back and begins anew\n";
  return text + "  the next `spark cluster start --apply` or `spark cluster stop --apply` " +
         (recovery.forward ? "finishes it first\n" : "takes it back first\n");
}

}  // namespace spark::ops
