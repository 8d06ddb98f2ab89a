#include "ops/launch/executor.h"

#include <set>

namespace spark::ops {
namespace {

Json begin_record(const Wave& wave) {
  Json ids = Json::array();
  for (const Step& step : wave) ids.push_back(step.id());
  return {{"event", "begin"}, {"steps", std::move(ids)}};
}

Json result_record(const Step& step, const StepResult& result) {
  if (!result.ok) return {{"event", "failed"}, {"step", step.id()}, {"problem", result.problem}};
  return {{"event", "done"}, {"step", step.id()}, {"values", Json(result.values)}};
}

}  // namespace

Execution execute(const Waves& waves, const JournalSink& journal, StepActions& actions,
                  const ExecuteOptions& options, const std::stop_token& stop) {
  Execution execution;
  std::set<std::string> lost;  // nodes on which an undo cannot go on
  for (const Wave& wave : waves) {
    if (stop.stop_requested()) return {false, false, "interrupted"};
    Wave possible;
    for (const Step& step : wave) {
      if (!lost.contains(step.node) || step.kind == StepKind::kRelease) possible.push_back(step);
    }
    if (possible.empty()) continue;
    journal(begin_record(possible));
    const std::vector<StepResult> results = actions.perform(possible, stop);
    for (size_t i = 0; i < possible.size(); ++i) {
      const Step& step = possible[i];
      const StepResult& result = results.at(i);
      journal(result_record(step, result));
      if (options.progress) options.progress(step, result);
      if (result.ok || may_fail(step.kind)) continue;
      if (options.keep_going && (step.kind == StepKind::kReady || step.kind == StepKind::kSteady)) continue;
      lost.insert(step.node);
      execution.unreachable = execution.unreachable || result.unreachable;
      if (execution.ok) execution.problem = step.id() + ": " + result.problem;
      execution.ok = false;
    }
    const bool refused = !execution.ok && wave.front().kind == StepKind::kClaim && !execution.unreachable;
    if (!execution.ok && (!options.keep_going || refused)) return execution;
  }
  if (!execution.ok && execution.problem.empty()) execution.problem = "interrupted";
  return execution;
}

}  // namespace spark::ops
