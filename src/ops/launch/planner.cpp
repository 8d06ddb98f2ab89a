#include "ops/launch/planner.h"

#include <algorithm>

#include "common/url_secrets.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

constexpr const char* kApplyHint = "plan only; --apply is required\n";

Wave on_all(const ClusterSituation& cluster, StepKind kind) {
  Wave wave;
  for (const ClusterNode& node : cluster.nodes) wave.push_back({kind, node.name, {}});
  return wave;
}

std::string guard_words(const GuardLaunch& guard) {
  return std::to_string(guard.threshold_gib) + " GiB, every " + Json(guard.interval_seconds).dump() + " s";
}

std::string launch_line(const RankLaunch& launch) {
  if (launch.runtime != LaunchRuntime::kUnit) return launch_shell(launch);
  std::string line;
  for (const std::string& word : unit_command(launch)) line += (line.empty() ? "" : " ") + shell_quote(word);
  return line;
}

}  // namespace

Waves plan_start(const ClusterSituation& cluster, const StartOptions& options) {
  Waves waves;
  waves.push_back({{StepKind::kClaim, cluster.head().name, {}}});
  Wave kept, retired;
  for (const ClusterNode& node : cluster.nodes) {
    if (!options.replace || !node.exists) continue;
    // When one rank is stopped the others end by themselves.
    if (node.keeps && node.running)
      kept.push_back({StepKind::kKeep, node.name, {{"backup", options.backup}}});
    retired.push_back({StepKind::kRetire,
                       node.name,
                       {{"backup", options.backup},
                        {"was_running", node.running ? "1" : "0"},
                        {"head", node.head ? "1" : "0"}}});
  }
  const Wave discarded = [&retired] {
    Wave wave;
    for (const Step& step : retired)
      wave.push_back({StepKind::kDiscard, step.node, {{"backup", step.parameter("backup")}}});
    return wave;
  }();
  if (!kept.empty()) waves.push_back(std::move(kept));
  if (!retired.empty()) waves.push_back(std::move(retired));
  waves.push_back(on_all(cluster, StepKind::kArm));
  Wave workers = on_all(cluster, StepKind::kLaunch);
  const Step head = workers.back();
  workers.pop_back();
  if (!workers.empty()) waves.push_back(std::move(workers));
  waves.push_back({head});
  waves.push_back({{StepKind::kReady, cluster.head().name, {}}});
  waves.push_back(on_all(cluster, StepKind::kSteady));
  if (!discarded.empty()) waves.push_back(discarded);
  waves.push_back({{StepKind::kRelease, cluster.head().name, {}}});
  return waves;
}

// The head first: nobody is served by a cluster that is being taken apart.
Waves plan_stop(const ClusterSituation& cluster, const StopOptions& options) {
  Waves waves;
  waves.push_back({{StepKind::kClaim, cluster.head().name, {}}});
  Wave together;
  for (auto node = cluster.nodes.rbegin(); node != cluster.nodes.rend(); ++node) {
    Step step{StepKind::kStop, node->name, {}};
    if (options.remove) step.parameters["remove"] = "1";
    if (options.parallel)
      together.push_back(std::move(step));
    else
      waves.push_back({std::move(step)});
  }
  if (!together.empty()) waves.push_back(std::move(together));
  waves.push_back({{StepKind::kRelease, cluster.head().name, {}}});
  return waves;
}

Waves plan_prune(const ClusterSituation& cluster) {
  Waves waves;
  waves.push_back({{StepKind::kClaim, cluster.head().name, {}}});
  waves.push_back(on_all(cluster, StepKind::kPrune));
  waves.push_back({{StepKind::kRelease, cluster.head().name, {}}});
  return waves;
}

Waves plan_sync(const ClusterSituation& cluster, const std::string& revision) {
  Waves waves;
  waves.push_back({{StepKind::kClaim, cluster.head().name, {}}});
  Wave fetches;
  for (const ClusterNode& node : cluster.nodes)
    fetches.push_back({StepKind::kFetch, node.name, {{"revision", revision}}});
  waves.push_back(std::move(fetches));
  for (const ClusterNode& node : cluster.nodes)
    waves.push_back({{StepKind::kCheckout, node.name, {{"revision", revision}, {"old", node.commit}}}});
  waves.push_back({{StepKind::kRelease, cluster.head().name, {}}});
  return waves;
}

std::string start_plan_text(const Site& site, const std::vector<RankLaunch>& launches, bool replace) {
  const RankLaunch& head = launches.back();
  std::string text = "start plan: " + head.service + " on " + std::to_string(launches.size()) + " nodes (" +
                     site.request.profile + ")\n";
  text += "  every node: preflight, changes nothing\n";
  if (replace) {
    for (const RankLaunch& launch : launches)
      text += "  " + launch.node + ": if " + launch.service +
              " is there: stop it under its guard, keep it as " + launch.service + "-pre-<unix time>\n";
  }
  for (const RankLaunch& launch : launches) {
    std::string line;
    for (const std::string& word : guard_command(launch)) line += " " + shell_quote(word);
    text +=
        "  " + launch.node + ": pre-arm startup memguard (" + guard_words(launch.guard) + "):" + line + "\n";
  }
  for (const RankLaunch& launch : launches) text += "  " + launch.node + ": " + launch_line(launch) + "\n";
  const GuardLaunch steady = plan_guard(site.profile, GuardPhase::kSteady);
  text += "  wait up to " + std::to_string(site.profile.deployment.ready_timeout_seconds) +
          " s until the API (" + without_url_secrets(site.profile.deployment.ready_url) +
          ") generated a token, then the steady guard (" + guard_words(steady) + ") on every node\n";
  if (replace) text += "  every node: remove what was kept\n";
  return text + kApplyHint;
}

std::string stop_plan_text(const std::vector<RankLaunch>& launches, const StopOptions& options) {
  std::string text = "stop plan: " + launches.back().service + " on " + std::to_string(launches.size()) +
                     " nodes" + (options.parallel ? ", all at once" : ", one after another") + "\n";
  for (auto launch = launches.rbegin(); launch != launches.rend(); ++launch) {
    const bool container = launch->runtime == LaunchRuntime::kContainer;
    text += "  " + launch->node + ": " +
            (container ? "docker stop --time 60 " + launch->service : "stop " + launch->service) +
            " under its guard, then end the guard" +
            (options.remove && container ? ", docker rm " + launch->service : "") + "\n";
  }
  return text + kApplyHint;
}

std::string prune_plan_text(const std::vector<RankLaunch>& launches,
                            const std::vector<std::string>& evidence) {
  const std::string& service = launches.back().service;
  std::string text = "prune plan: " + service + " on " + std::to_string(launches.size()) + " nodes\n";
  for (const RankLaunch& launch : launches)
    text += "  " + launch.node + ": remove what earlier starts retired and is not running (" + service +
            "-pre-<unix time>)\n";
  for (const std::string& folder : evidence) text += "  here: remove " + folder + "\n";
  return text + kApplyHint;
}

std::string sync_plan_text(const std::vector<RankLaunch>& launches, const std::string& revision,
                           const std::vector<std::string>& node_maps) {
  std::string maps;
  for (const std::string& map : node_maps) maps += (maps.empty() ? "" : ", ") + map;
  std::string text = "sync plan: revision " + revision + "\n";
  for (const RankLaunch& launch : launches) {
    text += "  " + launch.node + ": git fetch, detach " + launch.working_directory + " at " +
            revision.substr(0, 12) + ", write " + maps + "\n";
  }
  text += "  a node that has no checkout yet is refused, with the command that makes one\n";
  return text + kApplyHint;
}

}  // namespace spark::ops
