// spark model: look at a checkpoint, write a synthetic one.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <optional>

#include "../flag_checks.h"
#include "commands.h"
#include "common/error.h"
#include "common/json.h"
#include "common/printable.h"
#include "common/units.h"
#include "engine/checkpoint/inspect.h"
#include "engine/checkpoint/synthetic.h"
#include "model/config_file.h"
#include "model/rank_table.h"
#include "model/report.h"

namespace spark::app {
namespace {

struct InspectFlags {
  std::string path;
  int64_t ranks = 1;
  bool json = false;
};

void print_json(const engine::Inspection& found, const std::optional<model::ModelReport>& report) {
  Json json = report ? model::report_json(*report) : Json::object();
  json["configuration"] = found.config_path;
  json["ignored_keys"] = found.ignored_keys;
  json["faults"] = Json::array();
  for (const Fault& fault : found.faults) {
    json["faults"].push_back({{"where", fault.where}, {"what", fault.what}, {"hint", fault.hint}});
  }
  std::cout << json.dump(2) << "\n";
}

void print_text(const engine::Inspection& found, const std::optional<model::ModelReport>& report) {
  std::cout << found.config_path << "\n";
  if (report) std::cout << model::report_text(*report);
  for (const std::string& key : found.ignored_keys) std::cout << "ignored: " << one_line(key) << "\n";
  std::cout << "\n";
  for (const Fault& fault : found.faults) {
    std::cout << "fault: " << Error(fault.what, fault.where, fault.hint).describe() << "\n";
  }
  if (!found.faults.empty()) return;
  std::cout << (found.configuration_only
                    ? "No fault in the configuration; a file was given, so nothing else was looked at.\n"
                    : "No fault: configuration, tokenizer and all tensors fit together.\n");
}

void add_inspect(CLI::App& model, Outcome& outcome) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = model.add_subcommand(
      "inspect", "Check a checkpoint folder (or one config.json); print its plan, sizes and faults");
  command->add_option("PATH", flags->path, "Checkpoint folder, or a configuration file")->required();
  command->add_option("--tensor-parallel", flags->ranks, "Also show what each of this many ranks would hold")
      ->check(CLI::Range(int64_t{1}, model::kMaxRanks))
      ->capture_default_str();
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([flags, &outcome] {
    engine::Inspection found = engine::inspect_checkpoint(flags->path);
    std::optional<model::ModelReport> report;
    if (found.config) {
      try {
        report = model::make_model_report(*found.config, flags->ranks);
      } catch (const Error& error) {  // a width that does not split is one more finding
        found.faults.push_back({error.where(), error.what(), error.hint()});
      }
    }
    flags->json ? print_json(found, report) : print_text(found, report);
    if (!found.faults.empty()) outcome.code = ExitCode::kFindings;
  });
}

struct SynthFlags {
  std::string preset = "tiny";
  uint64_t seed = 1;
  std::string out;
  bool force = false;
};

void add_synth(CLI::App& model) {
  auto flags = std::make_shared<SynthFlags>();
  CLI::App* command =
      model.add_subcommand("synth", "Write a checkpoint with invented weights in the published layout");
  command->add_option("--preset", flags->preset, "tiny: 12 MB, for tests. small: 350 MB, for throughput")
      ->check(CLI::IsMember({"tiny", "small"}))
      ->capture_default_str();
  command->add_option("--seed", flags->seed, "Same seed, same bytes, on every machine")
      ->check(whole_number())
      ->capture_default_str();
  command->add_option("--out", flags->out, "Folder to make")->required()->check(not_empty());
  command->add_flag("--force", flags->force, "Replace the checkpoint in the folder");
  command->callback([flags] {
    const auto preset = engine::synthetic_preset(flags->preset);
    SPARK_CHECK(preset.has_value());
    const int64_t bytes = engine::create_synthetic_checkpoint(*preset, flags->seed, flags->out, flags->force);
    std::cout << flags->out << ": " << flags->preset << " checkpoint, seed " << flags->seed << ", "
              << format_bytes(static_cast<uint64_t>(bytes)) << " of tensors\n";
  });
}

void add_ranks(CLI::App& model) {
  auto path = std::make_shared<std::string>();
  CLI::App* command =
      model.add_subcommand("ranks", "What each of one to four ranks holds, as the tables of docs/engine.md");
  command->add_option("CONFIG", *path, "A config.json")->required();
  command->callback([path] { std::cout << model::rank_tables_markdown(model::load_model_config(*path)); });
}

}  // namespace

void add_model_command(CLI::App& app, Outcome& outcome) {
  CLI::App* model = app.add_subcommand("model", "Look at a checkpoint, or write a synthetic one");
  model->require_subcommand(1);
  add_inspect(*model, outcome);
  add_ranks(*model);
  add_synth(*model);
}

}  // namespace spark::app
