#include "ops/launch/remote_actions.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>

#include "common/clock.h"
#include "common/file.h"
#include "common/units.h"
#include "common/url_secrets.h"
#include "ops/launch/evidence.h"
#include "ops/launch/head_api.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

constexpr double kLookTimeout_s = 20;
constexpr double kOutagePause_s = 10;
constexpr double kGuardPause_s = 1;
constexpr double kTokenTimeout_s = 60;
constexpr size_t kShownLog = 4000;

// False when asked to stop.
bool pause_for(double seconds, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any wake;
  std::unique_lock lock(mutex);
  wake.wait_for(lock, stop, std::chrono::duration<double>(seconds), [] { return false; });
  return !stop.stop_requested();
}

StepResult failed_step(std::string problem) {
  StepResult result;
  result.ok = false;
  result.problem = std::move(problem);
  return result;
}

StepResult step_result(const RemoteResult& remote) {
  StepResult result;
  result.ok = remote.ok();
  result.values = read_values(remote.output);
  if (remote.ok()) return result;
  result.unreachable = !remote.reached();
  result.problem = remote.describe();
  if (remote.outcome == RemoteOutcome::kExited) {
    std::string text = remote.error;
    while (!text.empty() && text.back() == '\n') text.pop_back();
    if (!text.empty()) result.problem = text_without_url_secrets(text.substr(text.rfind('\n') + 1));
  }
  return result;
}

// One line; what the API says of itself stands in the service's log.
std::string refusal_of(const TokenProof& proof, bool with_key) {
  return "the API " +
         (with_key ? std::string("refuses the key that spark has") : "wants a key, and spark finds none") +
         " (SPARK_API_KEY here, else the files of engine.secret_environment_file and engine.api_key_file on "
         "the head): " +
         proof.problem;
}

// Says once per outage that a node is away, and how long it was.
class OutageLog {
 public:
  explicit OutageLog(const std::function<void(const std::string&)>& warn) : warn_(warn) {}
  void update(const std::vector<std::string>& unreachable) {
    if (!unreachable.empty() && since_ < 0) {
      since_ = monotonic_s();
      if (warn_) warn_("cannot look at " + unreachable.front() + "; trying again");
    } else if (unreachable.empty() && since_ >= 0) {
      if (warn_) warn_("every node answers again, after " + format_fixed(monotonic_s() - since_, 0) + " s");
      since_ = -1;
    }
  }

 private:
  const std::function<void(const std::string&)>& warn_;
  double since_ = -1;
};

}  // namespace

std::vector<RankLaunch> plan_launches(const Site& site) {
  std::vector<RankLaunch> launches;
  for (const Node* node : site.nodes.deployment_order()) launches.push_back(plan_launch(site, *node));
  if (launches.empty() || !launches.back().head)
    throw Error("names no head", site.nodes_file, "mark one node with \"head\": true");
  return launches;
}

RemoteActions::RemoteActions(const Site& site, const Remote& remote, RemoteActionsOptions options)
    : site_(site), remote_(remote), options_(std::move(options)), launches_(plan_launches(site)) {}

const RankLaunch* RemoteActions::launch_of(const std::string& node) const {
  for (const RankLaunch& launch : launches_) {
    if (launch.node == node) return &launch;
  }
  return nullptr;
}

RemoteNode RemoteActions::target(const std::string& node) const {
  return remote_node(site_.nodes, *site_.nodes.find(node));
}

std::vector<NodeLook> RemoteActions::look(std::stop_token stop) const {
  std::vector<RemoteCall> calls;
  for (const RankLaunch& launch : launches_)
    calls.push_back({target(launch.node), {.script = look_script(launch), .timeout_s = kLookTimeout_s}});
  const std::vector<RemoteResult> results = remote_.run_all(calls, std::move(stop));
  std::vector<NodeLook> looks;
  for (size_t i = 0; i < launches_.size(); ++i) looks.push_back(read_look(launches_[i].node, results[i]));
  return looks;
}

std::vector<StepResult> RemoteActions::perform(const Wave& wave, std::stop_token stop) {
  std::vector<StepResult> results(wave.size());
  std::vector<RemoteCall> calls;
  std::vector<size_t> owners;
  for (size_t i = 0; i < wave.size(); ++i) {
    const Step& step = wave[i];
    const RankLaunch* launch = launch_of(step.node);
    if (launch == nullptr) {
      results[i] = failed_step("is no node of " + site_.nodes_file + " any more");
      continue;
    }
    if (step.kind == StepKind::kReady) {
      results[i] = wait_ready(step, stop);
    } else if (step.kind == StepKind::kEvidence) {
      results[i] = keep_evidence(step);
    } else {
      calls.push_back(
          {target(step.node),
           {.script = step_script(*launch, step, options_.context), .timeout_s = step_timeout_s(step.kind)}});
      owners.push_back(i);
    }
  }
  const std::vector<RemoteResult> answers = remote_.run_all(calls, std::move(stop));
  for (size_t i = 0; i < answers.size(); ++i) {
    results[owners[i]] = step_result(answers[i]);
    if (!answers[i].ok()) keep_words(wave[owners[i]], answers[i].error);
  }
  return results;
}

StepResult RemoteActions::wait_ready(const Step& step, const std::stop_token& stop) {
  const DeploymentSpec& deployment = site_.profile.deployment;
  HeadApi api(remote_, target(step.node), deployment.ready_url,
              find_api_key(remote_, target(step.node), api_key_source(site_)));
  const double begin = monotonic_s();
  OutageLog outage(options_.warn);
  std::string last = "it was not asked yet";
  int unguarded = 0;  // looks in a row
  while (monotonic_s() - begin < static_cast<double>(deployment.ready_timeout_seconds)) {
    const ReadinessVerdict verdict = judge_readiness(look(stop), unguarded);
    if (stop.stop_requested()) return failed_step("interrupted");
    if (!verdict.failure.empty()) {
      const std::string node = verdict.failure.substr(0, verdict.failure.find(':'));
      const std::string log = last_log_lines(node);
      return failed_step(verdict.failure + (log.empty() ? "" : "\nits last lines:\n" + log));
    }
    unguarded = verdict.unguarded.empty() ? 0 : unguarded + 1;
    outage.update(verdict.unreachable);
    if (verdict.unreachable.empty() && unguarded > 0) {
      last = verdict.unguarded;
      if (!pause_for(kGuardPause_s, stop)) return failed_step("interrupted");
      continue;
    }
    if (!verdict.all_there) {
      last = verdict.unreachable.front();
      if (!pause_for(kOutagePause_s, stop)) return failed_step("interrupted");
      continue;
    }
    const TokenProof proof = generate_token(api, kTokenTimeout_s, stop);
    if (proof.ready) {
      StepResult result;
      result.values = {{"model", proof.model}, {"seconds", format_fixed(monotonic_s() - begin, 1)}};
      return result;
    }
    if (proof.refused) return failed_step(refusal_of(proof, api.has_key()));
    last = proof.problem;
    if (!pause_for(0.5, stop)) return failed_step("interrupted");
  }
  return failed_step("the API generated no token within " + std::to_string(deployment.ready_timeout_seconds) +
                     " s: " + last);
}

std::string RemoteActions::last_log_lines(const std::string& node) const {
  const RankLaunch* launch = launch_of(node);
  if (launch == nullptr) return {};
  const RemoteResult result = remote_.run(target(node), {.script = log_script(*launch, 20), .timeout_s = 10});
  std::string text = result.output;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.size() > kShownLog ? text.substr(text.size() - kShownLog) : text;
}

// What a tool said of a start that it refused: the service that the evidence is taken of never was.
void RemoteActions::keep_words(const Step& step, const std::string& words) const {
  if (step.kind != StepKind::kArm && step.kind != StepKind::kLaunch) return;
  try {
    save_step_words(words, step.node, options_.evidence_folder);
  } catch (const std::exception& error) {
    if (options_.warn) options_.warn(step.node + ": cannot keep what it said: " + error.what());
  }
}

StepResult RemoteActions::keep_evidence(const Step& step) {
  const RankLaunch& launch = *launch_of(step.node);
  try {
    save_evidence(remote_, target(step.node), launch, options_.evidence_folder);
  } catch (const Error& error) {
    return failed_step(error.what());
  }
  StepResult result;
  result.values = {{"folder", options_.evidence_folder}};
  return result;
}

}  // namespace spark::ops
