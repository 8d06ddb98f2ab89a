// spark cluster: moves checkouts, starts and stops the service on all nodes.
#include <CLI/CLI.hpp>
#include <chrono>
#include <condition_variable>
#include <iostream>
#include <memory>
#include <mutex>

#include "../signal_watch.h"
#include "commands.h"
#include "common/error.h"
#include "common/printable.h"
#include "common/units.h"
#include "ops/doctor/doctor.h"
#include "ops/launch/cluster.h"
#include "ops/launch/log_shipping.h"
#include "ops/launch/sync.h"
#include "site_options.h"

namespace spark::app {
namespace {

struct ClusterFlags {
  ops::ClusterOptions options;
  bool apply = false;
  bool json = false;
};

enum class ClusterVerb { kSync, kStart, kStop, kPrune };

ExitCode exit_code_of(ops::ClusterOutcome outcome) {
  switch (outcome) {
    case ops::ClusterOutcome::kDone:
      return ExitCode::kOk;
    case ops::ClusterOutcome::kFailed:
      return ExitCode::kFindings;
    case ops::ClusterOutcome::kUnreachable:
      return ExitCode::kUnreachable;
    case ops::ClusterOutcome::kInterrupted:
      return ExitCode::kInterrupted;
  }
  return ExitCode::kFindings;
}

void print_plan(ClusterVerb verb, const ops::Site& site, const ops::Repository& repository,
                const ClusterFlags& flags) {
  const std::vector<ops::RankLaunch> launches = ops::plan_launches(site);
  if (verb == ClusterVerb::kStart) {
    std::cout << ops::start_plan_text(site, launches, flags.options.replace);
  } else if (verb == ClusterVerb::kStop) {
    std::cout << ops::stop_plan_text(launches, flags.options.stop);
  } else if (verb == ClusterVerb::kPrune) {
    std::cout << ops::prune_plan_text(launches, ops::prunable_evidence(site, repository, flags.options.keep));
  } else {
    std::vector<std::string> maps = {site.nodes_file};
    if (repository.exists(site.request.site_file)) maps.push_back(site.request.site_file);
    std::cout << ops::sync_plan_text(launches, ops::resolve_revision(repository, flags.options.revision),
                                     maps);
  }
}

ops::ClusterReport report_for(bool json) {
  ops::ClusterReport report;
  report.progress = [json](const std::string& text, const Json& event) {
    if (json)
      std::cout << event.dump() << std::endl;
    else if (!text.empty())
      std::cout << fit_lines(text) << (text.back() == '\n' ? "" : "\n") << std::flush;
  };
  report.complain = [](const std::string& text) {
    std::cout.flush();
    std::cerr << fit_lines(text) << (text.back() == '\n' ? "" : "\n");
  };
  return report;
}

// A clean local doctor comes before any node is asked. Stopping and pruning need no more than readable files.
bool configuration_is_sound(const ops::Site& site) {
  const ops::Findings findings = ops::diagnose(site, nullptr);
  if (!ops::has_error(findings)) return true;
  std::cerr << ops::findings_text(findings) << "nothing was changed: correct the configuration first\n";
  return false;
}

void run_cluster(ClusterVerb verb, const ClusterFlags& flags, const SiteOptions& options, Outcome& outcome) {
  const ops::Repository repository(options.repository);
  const ops::Site site = options.load(repository);
  ops::throw_if_any_fault(site);
  if (!flags.apply) return print_plan(verb, site, repository, flags);
  if (verb == ClusterVerb::kStart && !site.profile.deployment.launch_enabled)
    throw Error("deployment.launch_enabled is false: this profile may not be started",
                options.request.profile, "it is a candidate or an example; start one that is enabled");
  const bool takes_away = verb == ClusterVerb::kStop || verb == ClusterVerb::kPrune;
  if (!takes_away && !configuration_is_sound(site)) {
    outcome.code = ExitCode::kFindings;
    return;
  }
  std::stop_source stop, undo_stop;
  const SignalWatch watch([&](int count) {
    const bool second = count > 1;
    std::cerr
        << (second ? "\nstopping at once; the next command takes back the rest\n"
                   : "\ninterrupted: taking back what was done; once more to leave it to the next command\n");
    (second ? undo_stop : stop).request_stop();
  });
  const ops::Remote remote;
  ops::ClusterCommand command(site, repository, remote, flags.options, report_for(flags.json),
                              stop.get_token(), undo_stop.get_token());
  const ops::ClusterOutcome result = verb == ClusterVerb::kStart   ? command.start()
                                     : verb == ClusterVerb::kStop  ? command.stop()
                                     : verb == ClusterVerb::kPrune ? command.prune()
                                                                   : command.sync();
  outcome.code = exit_code_of(result);
}

struct LogFlags {
  bool follow = false;
  double every_s = 5;
};

void run_logs(const LogFlags& flags, const SiteOptions& options, Outcome& outcome) {
  const ops::Repository repository(options.repository);
  const ops::Site site = options.load(repository);
  ops::throw_if_any_fault(site);
  const ops::Remote remote;
  const std::vector<ops::RankLaunch> launches = ops::plan_launches(site);
  const ops::LogRing ring{.folder = ops::log_folder(repository, site.profile.service_name())};
  std::stop_source stop;
  const SignalWatch watch([&](int) { stop.request_stop(); });
  std::mutex mutex;
  std::unique_lock lock(mutex);
  std::condition_variable_any wake;
  do {
    outcome.code = ExitCode::kOk;
    for (const ops::ShippedLog& log : ops::ship_logs(remote, site, launches, ring, stop.get_token())) {
      if (!log.problem.empty()) {
        std::cerr << log.node << ": " << one_line(log.problem) << "\n";
        outcome.code = ExitCode::kFindings;
      } else if (log.bytes > 0 || !flags.follow) {
        std::cout << log.node << ": " << format_bytes(log.bytes) << " new in " << ring.folder << "/"
                  << log.node << ".log" << std::endl;
      }
    }
    if (flags.follow)
      wake.wait_for(lock, stop.get_token(), std::chrono::duration<double>(flags.every_s),
                    [] { return false; });
  } while (flags.follow && !stop.stop_requested());
}

void add_common_flags(CLI::App& command, ClusterFlags& flags) {
  command.fallthrough();
  command.add_flag("--apply", flags.apply,
                   "Do it; without, only the plan is printed and nobody is contacted");
  command.add_option("--force-hold", flags.options.force_hold, "Go on in spite of a hold, for this reason");
  command.add_flag("--take-over", flags.options.take_over,
                   "Replace the claim of a dead `spark cluster` command of another machine");
  command.add_flag("--json", flags.json, "With --apply: one JSON object per event");
}

}  // namespace

void add_cluster_command(CLI::App& app, Outcome& outcome, const SiteOptions& options) {
  CLI::App* cluster =
      app.add_subcommand("cluster", "Move checkouts, start and stop the service on all nodes");
  cluster->require_subcommand(1);
  cluster->fallthrough();
  cluster->footer(
      "Every command prints its plan unless --apply is given. What an interrupted command left is explained "
      "by "
      "`spark status` and finished or taken back by the next start or stop. docs/launch.md.");
  const auto add = [&](const char* name, const char* description, ClusterVerb verb) {
    auto flags = std::make_shared<ClusterFlags>();
    CLI::App* command = cluster->add_subcommand(name, description);
    add_common_flags(*command, *flags);
    command->callback([verb, flags, &options, &outcome] { run_cluster(verb, *flags, options, outcome); });
    return std::pair(command, flags);
  };
  const auto [sync, sync_flags] =
      add("sync", "Put every node's checkout at one published revision", ClusterVerb::kSync);
  sync->add_option("--revision", sync_flags->options.revision,
                   "Commit; the HEAD of this repository otherwise");
  const auto [start, start_flags] =
      add("start", "Guarded start of every rank, workers before the head", ClusterVerb::kStart);
  start->add_flag("--replace", start_flags->options.replace, "Stop and replace a service that is there");
  const auto [stop, stop_flags] = add("stop", "Stop every rank, the head first", ClusterVerb::kStop);
  stop->add_flag("--remove", stop_flags->options.stop.remove, "Remove the containers as well");
  stop->add_flag("--parallel", stop_flags->options.stop.parallel, "All nodes at once");
  const auto [prune, prune_flags] =
      add("prune", "Remove retired services that were kept, and old evidence of failed starts",
          ClusterVerb::kPrune);
  prune->add_option("--keep", prune_flags->options.keep, "How many failed starts' evidence stays here")
      ->capture_default_str();
  auto log_flags = std::make_shared<LogFlags>();
  CLI::App* logs =
      cluster->add_subcommand("logs", "Bring the ranks' logs here, into rings of files; changes no node");
  logs->fallthrough();
  logs->add_flag("--follow", log_flags->follow, "Again and again, until Ctrl-C");
  logs->add_option("--every", log_flags->every_s, "Seconds between two rounds of --follow")
      ->capture_default_str()
      ->check(CLI::Range(0.2, 86400.0));
  logs->callback([log_flags, &options, &outcome] { run_logs(*log_flags, options, outcome); });
}

}  // namespace spark::app
