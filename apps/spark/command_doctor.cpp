// spark doctor: what is wrong with the configuration, and how to correct it.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "commands.h"
#include "ops/doctor/doctor.h"
#include "site_options.h"

namespace spark::app {
namespace {

struct DoctorFlags {
  bool json = false;
  bool rules = false;
  bool markdown = false;
  bool no_secrets = false;
};

void run_doctor(const DoctorFlags& flags, const SiteOptions& options, Outcome& outcome) {
  if (flags.rules) {
    std::cout << (flags.markdown ? ops::rules_markdown() : ops::rules_text());
    return;
  }
  const ops::Repository repository(options.repository);
  repository.confine(options.request.profile);
  const ops::Site site = options.load(repository);
  ops::SecretScan secrets;
  if (!flags.no_secrets) secrets = ops::scan_tracked_files(repository);
  const ops::Findings findings = ops::diagnose(site, flags.no_secrets ? nullptr : &secrets);
  std::cout << (flags.json ? ops::findings_json(findings).dump(2) + "\n" : ops::findings_text(findings));
  outcome.code = ops::has_error(findings) ? ExitCode::kFindings : ExitCode::kOk;
}

}  // namespace

void add_doctor_command(CLI::App& app, Outcome& outcome, const SiteOptions& options) {
  auto flags = std::make_shared<DoctorFlags>();
  CLI::App* command =
      app.add_subcommand("doctor", "Check profile, node map, sources and tracked files; change nothing");
  command->fallthrough();
  command->add_flag("--json", flags->json, "Print one JSON document");
  command->add_flag("--no-secret-scan", flags->no_secrets, "Do not search tracked files for credentials");
  CLI::Option* rules = command->add_flag("--rules", flags->rules, "List the rules instead of checking");
  command->add_flag("--markdown", flags->markdown, "With --rules: the text of docs/doctor.md")->needs(rules);
  command->footer(
      "Exit code 0: no error. 1: errors, each with the place and a fix. 2: wrong usage.\n"
      "docs/doctor.md describes every rule.");
  command->callback([flags, &options, &outcome] { run_doctor(*flags, options, outcome); });
}

}  // namespace spark::app
