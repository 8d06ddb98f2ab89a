// spark watch: what changes in a running cluster, one line per change.
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <memory>
#include <mutex>
#include <stop_token>

#include "../signal_watch.h"
#include "commands.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/units.h"
#include "node_choice.h"
#include "ops/watch/collector.h"
#include "ops/watch/detector.h"
#include "site_options.h"

namespace spark::app {
namespace {

constexpr double kFirstPatience_s = 12;  // logins
constexpr double kPatience = 0.8;        // of an interval

struct WatchFlags {
  double interval_s = 5;
  double frozen_s = 20;
  bool once = false;
  bool json = false;
  std::vector<std::string> nodes;
};

// A path of sockets may have some fifty bytes.
std::string own_control_folder() {
  const std::string suffix = "-w" + std::to_string(::getpid());
  const std::string folder = ops::default_control_folder() + suffix;
  return folder.size() <= 48 ? folder : "/tmp/spark-ssh-" + std::to_string(::getuid()) + suffix;
}

// Shared SSH connections of this run only: nothing of them stays.
class OwnConnections {
 public:
  OwnConnections(std::vector<ops::RemoteNode> nodes, double keep_s)
      : nodes_(std::move(nodes)),
        folder_(own_control_folder()),
        remote_(ops::RemoteOptions{.control_folder = folder_, .keep_s = keep_s}) {}
  ~OwnConnections() {
    remote_.close(nodes_);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  OwnConnections(const OwnConnections&) = delete;
  OwnConnections& operator=(const OwnConnections&) = delete;

  const ops::Remote& remote() const { return remote_; }

 private:
  std::vector<ops::RemoteNode> nodes_;
  std::string folder_;
  ops::Remote remote_;
};

// The first line, once every node has been asked: from now on silence means that nothing changes.
ops::WatchChange beginning(const ops::WatchSample& sample, double interval_s) {
  std::string text = "watches ";
  for (const ops::NodeSample& node : sample.nodes) text += (text.back() == ' ' ? "" : ", ") + node.node;
  text += " every " + format_fixed(interval_s, 0) + " s";
  return {sample.time_s, "cluster", "watch.began", ops::WatchSeverity::kNote, ops::ConditionChange::kBegan,
          text,          0};
}

void print(const std::vector<ops::WatchChange>& changes, const WatchFlags& flags) {
  for (const ops::WatchChange& change : changes)
    std::cout << (flags.json ? ops::watch_json(change).dump() : ops::watch_line(change)) << "\n";
  std::cout.flush();
}

// False: asked to stop.
bool pause_until(double monotonic_deadline_s, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any wakes;
  std::unique_lock lock(mutex);
  const auto left = std::chrono::duration<double>(std::max(0.0, monotonic_deadline_s - monotonic_s()));
  wakes.wait_for(lock, stop, left, [] { return false; });
  return !stop.stop_requested();
}

ExitCode verdict(const std::vector<ops::WatchChange>& standing) {
  ExitCode code = ExitCode::kOk;
  for (const ops::WatchChange& each : standing) {
    if (each.check == "node.answer") return ExitCode::kUnreachable;
    if (each.severity == ops::WatchSeverity::kError) code = ExitCode::kFindings;
  }
  return code;
}

class WatchRun {
 public:
  WatchRun(const ops::Site& site, const std::vector<const ops::Node*>& nodes, const WatchFlags& flags,
           const ops::Remote& remote)
      : flags_(flags),
        detector_(settings(site)),
        // A single look gives everything the time it needs.
        collector_(site, nodes, remote,
                   {.interval_s = flags.once ? std::max(10.0, flags.interval_s) : flags.interval_s}) {}

  ExitCode run(const std::stop_token& stop) {
    double patience_s = std::max(kFirstPatience_s, kPatience * flags_.interval_s);
    bool begun = false;
    for (double next_s = monotonic_s(); pause_until(next_s, stop);) {
      const ops::WatchSample sample = collector_.look(patience_s, stop);
      if (stop.stop_requested()) break;
      const std::vector<ops::WatchChange> changes = detector_.observe(sample);
      // Ends by itself: either something moves, or nothing has for `--frozen` seconds.
      const bool decided = !detector_.undecided();
      if (flags_.once && decided) return conclude();
      if (!flags_.once && !begun) print({beginning(sample, flags_.interval_s)}, flags_);
      if (!flags_.once) print(changes, flags_);
      begun = true;
      if (!std::cout)
        throw Error("cannot be written", "standard output", "check the disk or pipe it goes to");
      if (!flags_.once) patience_s = kPatience * flags_.interval_s;
      next_s = std::max(next_s + flags_.interval_s, monotonic_s());
    }
    return ExitCode::kInterrupted;
  }

 private:
  ops::WatchSettings settings(const ops::Site& site) const {
    ops::WatchSettings settings = ops::watch_settings(site);
    settings.interval_s = flags_.interval_s;
    settings.frozen_s = flags_.frozen_s;
    settings.at_once = flags_.once;
    return settings;
  }

  ExitCode conclude() {
    const std::vector<ops::WatchChange> standing = detector_.standing();
    print(standing, flags_);
    if (standing.empty() && !flags_.json) std::cout << "all in order\n";
    return verdict(standing);
  }

  const WatchFlags& flags_;
  ops::WatchDetector detector_;
  ops::WatchCollector collector_;
};

void run_watch(const WatchFlags& flags, const SiteOptions& options, Outcome& outcome) {
  const ops::Site site = options.load(ops::Repository(options.repository));
  ops::throw_if_any_fault(site);
  std::vector<const ops::Node*> nodes;
  for (const std::string& name : flags.nodes) nodes.push_back(&find_node(site, name));
  if (nodes.empty()) {
    for (const ops::Node& node : site.nodes.nodes) nodes.push_back(&node);
  }
  std::vector<ops::RemoteNode> targets;
  for (const ops::Node* node : nodes) targets.push_back(ops::remote_node(site.nodes, *node));
  std::signal(SIGPIPE, SIG_IGN);  // a reader that goes away is an error like others: connections are closed
  std::stop_source stop;
  const SignalWatch signals([&stop](int) { stop.request_stop(); });
  const OwnConnections connections(std::move(targets), std::max(20.0, 3 * flags.interval_s));
  WatchRun run(site, nodes, flags, connections.remote());
  outcome.code = run.run(stop.get_token());
}

}  // namespace

void add_watch_command(CLI::App& app, Outcome& outcome, const SiteOptions& options) {
  auto flags = std::make_shared<WatchFlags>();
  CLI::App* command =
      app.add_subcommand("watch", "Look after a running cluster: a line per change; change nothing");
  command->fallthrough();
  command->add_option("--interval", flags->interval_s, "Seconds between looks")
      ->check(CLI::Range(1.0, 3600.0))
      ->capture_default_str();
  command
      ->add_option("--frozen", flags->frozen_s, "Requests that get no token for so many seconds are frozen")
      ->check(CLI::Range(1.0, 86400.0))
      ->capture_default_str();
  command->add_option("--node", flags->nodes, "Only these nodes");
  command->add_flag("--once", flags->once, "Say what is wrong now, and leave");
  command->add_flag("--json", flags->json, "Print one JSON document per line");
  command->footer(
      "With --once: exit code 0: no error. 1: errors. 2: wrong usage. 3: a node does not answer. Without: "
      "130 "
      "after Ctrl-C.\ndocs/watch.md describes every check. Example: spark watch --interval 2");
  command->callback([flags, &options, &outcome] { run_watch(*flags, options, outcome); });
}

}  // namespace spark::app
