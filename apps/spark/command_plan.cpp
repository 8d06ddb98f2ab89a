// spark plan: memory, cache and speed of a profile before anything is launched.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "commands.h"
#include "model/config_file.h"
#include "ops/plan/plan.h"
#include "ops/plan/published.h"
#include "site_options.h"

namespace spark::app {
namespace {

constexpr const char* kDefaultModel = "config/models/deepseek-v4.1-flash.json";

struct PlanFlags {
  std::string model;
  bool json = false;
  bool published = false;
  ops::PlanOptions options;
};

model::ModelConfig load_model(const PlanFlags& flags, const ops::Repository& repository) {
  if (flags.model.empty()) {
    return model::read_model_config(parse_json(repository.read(kDefaultModel), kDefaultModel), kDefaultModel);
  }
  std::error_code ignored;  // reading says what is wrong with it
  const bool folder = std::filesystem::is_directory(flags.model, ignored);
  const std::string path = folder ? flags.model + "/config.json" : flags.model;
  return model::load_model_config(path);
}

// A plan needs no site: only what the profile itself says about engine and host counts.
ops::PlanRequest load_request(const ops::Repository& repository, const ops::SiteRequest& wanted,
                              const model::ModelConfig& model) {
  const ops::Site site = ops::load_site(repository, wanted);
  const auto matters = [&](const ops::FileFault& fault) {
    return fault.fault.where.starts_with("engine") || fault.fault.where.starts_with("host.kernel") ||
           fault.fault.where.starts_with("host.memguard") || fault.fault.where.starts_with("host.startup") ||
           fault.fault.where.starts_with("serve_args") || !site.profile_loaded;
  };
  Faults faults;
  for (const ops::FileFault& fault : site.faults) {
    if (matters(fault)) {
      faults.push_back({fault.file + (fault.fault.where.empty() ? "" : ": " + fault.fault.where),
                        fault.fault.what, fault.fault.hint});
    }
  }
  throw_if_any(faults, wanted.profile);
  ops::PlanRequest request = ops::plan_request(site, model, faults);
  throw_if_any(faults, wanted.profile);
  return request;
}

void run_plan(const PlanFlags& flags, const SiteOptions& options, Outcome& outcome) {
  const ops::Repository repository(options.repository);
  const model::ModelConfig model = load_model(flags, repository);
  if (flags.published) {
    std::map<std::string, ops::PlanRequest> requests;
    for (const std::string& profile : ops::published_profiles()) {
      ops::SiteRequest wanted = options.request;
      wanted.profile = profile;
      requests[profile] = load_request(repository, wanted, model);
    }
    std::cout << ops::comparison_markdown(ops::compare_with_published(requests));
    return;
  }
  const ops::Plan plan = ops::make_plan(load_request(repository, options.request, model), flags.options);
  std::cout << (flags.json ? ops::plan_json(plan).dump(2) + "\n" : ops::plan_text(plan));
  if (!plan.misfits.empty()) outcome.code = ExitCode::kFindings;
}

}  // namespace

void add_plan_command(CLI::App& app, Outcome& outcome, const SiteOptions& options) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command =
      app.add_subcommand("plan", "Memory, cache and speed of a profile, before anything is launched");
  command->fallthrough();
  command->add_option("--model", flags->model,
                      "Checkpoint folder or config.json instead of the published model");
  command->add_option("--workload", flags->options.workload, "What the streams write: prose or code")
      ->check(CLI::IsMember(ops::workload_names()))
      ->capture_default_str();
  command->add_option("--streams", flags->options.streams, "Streams to predict steps for, such as 1,4,8")
      ->delimiter(',');
  command->add_option("--context", flags->options.context, "Tokens before a step, per stream")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  command->add_option("--prompts", flags->options.prompts, "Prompt lengths to predict prefill for")
      ->delimiter(',');
  command->add_flag("--published", flags->published,
                    "Compare with the reference deployment's published figures");
  command->add_flag("--json", flags->json, "Print one JSON document");
  command->footer(
      "Examples:\n"
      "  spark plan\n"
      "  spark --cluster-config config/cluster-tp4.json plan --workload code --streams 1,16\n"
      "  spark plan --published\n"
      "Exit code 0: it fits. 1: it does not, and the smallest change that makes it fit is printed.\n"
      "docs/plan.md explains every line.");
  command->callback([flags, &options, &outcome] { run_plan(*flags, options, outcome); });
}

}  // namespace spark::app
