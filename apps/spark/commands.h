// The commands of the `spark` program. To add one: write apps/spark/command_NAME.cpp with a function like
// those below, declare it here, and call it in main.cpp.
//
//   void add_hello_command(CLI::App& app, Outcome& outcome) {
//     auto name = std::make_shared<std::string>();
//     CLI::App* command = app.add_subcommand("hello", "Greet somebody");
//     command->add_option("NAME", *name, "Whom to greet")->required();
//     command->callback([name, &outcome] {
//       std::cout << greet(*name) << "\n";              // the work is done by src/
//       outcome.code = ExitCode::kOk;
//     });
//   }
//
// Results go to stdout, progress and diagnostics to stderr. A command throws spark::Error on bad input;
// main() prints it and exits with kFindings.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace spark::app {

// What scripts may rely on.
enum class ExitCode : int {
  kOk = 0,
  kFindings = 1,  // something is wrong with what was looked at, or the command failed
  kUsage = 2,     // flags that make no sense
  kUnreachable = 3,
  kAborted = 4,
  kRegression = 5,
  kGateFailed = 6,
  kInterrupted = 130,
};

struct Outcome {
  ExitCode code = ExitCode::kOk;
};

struct SiteOptions;

void add_bench_command(CLI::App& app, Outcome& outcome, const SiteOptions& options);
void add_cluster_command(CLI::App& app, Outcome& outcome, const SiteOptions& options);
void add_completion_commands(CLI::App& app);
void add_config_command(CLI::App& app, const SiteOptions& options);
void add_doctor_command(CLI::App& app, Outcome& outcome, const SiteOptions& options);
void add_fabric_command(CLI::App& app, const SiteOptions& options);
void add_host_command(CLI::App& app, Outcome& outcome, const SiteOptions& options);
// `command`: what was given behind "--", word for word.
void add_lab_command(CLI::App& app, Outcome& outcome, const SiteOptions& options,
                     const std::vector<std::string>& command);
void add_model_command(CLI::App& app, Outcome& outcome);
void add_plan_command(CLI::App& app, Outcome& outcome, const SiteOptions& options);
void add_probe_command(CLI::App& app, Outcome& outcome, const SiteOptions& options);
void add_render_command(CLI::App& app, const SiteOptions& options);
void add_status_command(CLI::App& app, Outcome& outcome, const SiteOptions& options);
void add_tuning_commands(CLI::App& app, const SiteOptions& options);
void add_watch_command(CLI::App& app, Outcome& outcome, const SiteOptions& options);

}  // namespace spark::app
