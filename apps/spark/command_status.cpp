// spark status: what runs, what guards it, whether it answers, what was interrupted.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "commands.h"
#include "ops/launch/status.h"
#include "site_options.h"

namespace spark::app {

void add_status_command(CLI::App& app, Outcome& outcome, const SiteOptions& options) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command =
      app.add_subcommand("status", "Containers, guards and the API of every node; changes nothing");
  command->fallthrough();
  command->add_flag("--json", *json, "Print one JSON document");
  command->footer(
      "Exit code 0: every node serves, guarded. 1: not. 3: a node cannot be reached. docs/launch.md.");
  command->callback([json, &options, &outcome] {
    const ops::Repository repository(options.repository);
    const ops::Site site = options.load(repository);
    ops::throw_if_any_fault(site);
    const ops::Remote remote;
    const ops::ClusterStatus status = ops::cluster_status(site, repository, remote);
    std::cout << (*json ? ops::status_json(status).dump(2) + "\n" : ops::status_text(status));
    outcome.code = status.any_unreachable() ? ExitCode::kUnreachable
                   : status.serving()       ? ExitCode::kOk
                                            : ExitCode::kFindings;
  });
}

}  // namespace spark::app
