// spark status: what runs, what guards it, whether it answers, what was interrupted.
#include <CLI/CLI.hpp>
#include <chrono>
#include <condition_variable>
#include <iostream>
#include <memory>
#include <mutex>

#include "../signal_watch.h"
#include "commands.h"
#include "common/clock.h"
#include "common/printable.h"
#include "ops/launch/journal.h"
#include "ops/launch/status.h"
#include "site_options.h"

namespace spark::app {
namespace {

struct StatusFlags {
  bool json = false;
  double watch_s = 0;
};

ExitCode print_status(const ops::Site& site, const ops::Repository& repository, const ops::Remote& remote,
                      const StatusFlags& flags, const std::stop_token& stop) {
  const ops::ClusterStatus status = ops::cluster_status(site, repository, remote, stop);
  if (stop.stop_requested()) return ExitCode::kInterrupted;
  if (flags.json) {
    std::cout << ops::status_json(status).dump(flags.watch_s > 0 ? -1 : 2) << std::endl;
  } else {
    if (flags.watch_s > 0) std::cout << "\n" << ops::utc_now() << "\n";
    std::cout << fit_lines(ops::status_text(status)) << std::flush;
  }
  return status.any_unreachable() ? ExitCode::kUnreachable
         : status.serving()       ? ExitCode::kOk
                                  : ExitCode::kFindings;
}

void run_status(const StatusFlags& flags, const SiteOptions& options, Outcome& outcome) {
  const ops::Repository repository(options.repository);
  const ops::Site site = options.load(repository);
  ops::throw_if_any_fault(site);
  const ops::Remote remote;
  std::stop_source stop;
  if (flags.watch_s == 0) {
    outcome.code = print_status(site, repository, remote, flags, stop.get_token());
    return;
  }
  const SignalWatch signals([&stop](int) { stop.request_stop(); });
  std::mutex mutex;
  std::unique_lock lock(mutex);
  std::condition_variable_any wake;
  while (!stop.stop_requested()) {
    print_status(site, repository, remote, flags, stop.get_token());
    wake.wait_for(lock, stop.get_token(), std::chrono::duration<double>(flags.watch_s), [] { return false; });
  }
  outcome.code = ExitCode::kInterrupted;
}

}  // namespace

void add_status_command(CLI::App& app, Outcome& outcome, const SiteOptions& options) {
  auto flags = std::make_shared<StatusFlags>();
  CLI::App* command =
      app.add_subcommand("status", "Containers, guards and the API of every node; changes nothing");
  command->fallthrough();
  command->add_flag("--json", flags->json, "Print one JSON document; with --watch one line each time");
  command->add_option("--watch", flags->watch_s, "Again every so many seconds, until Ctrl-C")
      ->check(CLI::Range(0.5, 86400.0));
  command->footer(
      "Exit code 0: every node serves, guarded. 1: not. 3: a node cannot be reached. docs/launch.md. For a "
      "line "
      "per change instead: spark watch.");
  command->callback([flags, &options, &outcome] { run_status(*flags, options, outcome); });
}

}  // namespace spark::app
