// The `spark` command: one file per command beside this one, errors and exit codes here.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "../run_program.h"
#include "commands.h"
#include "common/json.h"
#include "site_options.h"

namespace spark::app {
namespace {

// CLI11 answers a misspelt command with "a subcommand is required"; this says which word is wrong. Empty when
// none is.
std::string misspelt_command(const CLI::App& app, int argc, char** argv) {
  const CLI::App* scope = &app;
  for (int i = 1; i < argc && argv[i][0] != '-'; ++i) {
    std::vector<std::string> names;
    for (const CLI::App* sub : scope->get_subcommands(nullptr)) names.push_back(sub->get_name());
    if (names.empty()) break;
    if (std::find(names.begin(), names.end(), argv[i]) == names.end()) {
      const auto guess = nearest(argv[i], names);
      return scope->get_name() + " has no command \"" + argv[i] + "\"" +
             (guess ? "; did you mean \"" + *guess + "\"?" : std::string());
    }
    scope = scope->get_subcommand(argv[i]);
  }
  return {};
}

// What stands behind "--" of `lab shell` and `lab run` is another program's command. The parser does not see
// it: it takes a word in brackets for a list, and drops them.
std::vector<std::string> take_lab_command(int& argc, char** argv) {
  char** const end =
      std::find_if(argv, argv + argc, [](const char* word) { return std::string_view(word) == "--"; });
  const auto word = [&](char** from, std::initializer_list<std::string_view> names) {
    return std::find_if(
        from, end, [&](const char* w) { return std::find(names.begin(), names.end(), w) != names.end(); });
  };
  if (end == argv + argc || word(word(argv, {"lab"}), {"shell", "run"}) == end) return {};
  std::vector<std::string> command(end + 1, argv + argc);
  argc = static_cast<int>(end - argv);
  return command;
}

int run(int argc, char** argv) {
  const std::vector<std::string> lab_command = take_lab_command(argc, argv);
  CLI::App app("DeepSeek V4.1 Flash on small clusters: serve it, measure it, look after it.", "spark");
  app.set_version_flag("--version", std::string("spark ") + SPARK_VERSION);
  app.require_subcommand(1);
  Outcome outcome;
  SiteOptions site;
  add_site_options(app, site);
  add_bench_command(app, outcome, site);
  add_cluster_command(app, outcome, site);
  add_config_command(app, site);
  add_doctor_command(app, outcome, site);
  add_fabric_command(app, site);
  add_host_command(app, outcome, site);
  add_lab_command(app, outcome, site, lab_command);
  add_model_command(app, outcome);
  add_plan_command(app, outcome, site);
  add_probe_command(app, outcome, site);
  add_render_command(app, site);
  add_status_command(app, outcome, site);
  add_tuning_commands(app, site);
  add_watch_command(app, outcome, site);
  add_completion_commands(app);
  if (const std::string complaint = misspelt_command(app, argc, argv); !complaint.empty()) {
    std::cerr << complaint << "\nRun with --help for more information.\n";
    return static_cast<int>(ExitCode::kUsage);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wanted_text) {  // --help, --version
    app.exit(wanted_text, std::cout, std::cerr);
  } catch (const CLI::ParseError& error) {
    app.exit(error, std::cout, std::cerr);
    return static_cast<int>(ExitCode::kUsage);
  }
  require_written_output();
  return static_cast<int>(outcome.code);
}

}  // namespace
}  // namespace spark::app

int main(int argc, char** argv) {
  return spark::app::run_program([&] { return spark::app::run(argc, argv); },
                                 static_cast<int>(spark::app::ExitCode::kFindings));
}
