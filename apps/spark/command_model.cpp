// spark model: look at a checkpoint.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "commands.h"
#include "common/file.h"
#include "model/config.h"

namespace spark::app {

void add_model_command(CLI::App& app, Outcome& outcome) {
  CLI::App* model = app.add_subcommand("model", "Look at a checkpoint");
  model->require_subcommand(1);
  auto directory = std::make_shared<std::string>();
  CLI::App* inspect = model->add_subcommand("inspect", "Check a checkpoint's configuration");
  inspect->add_option("DIR", *directory, "Folder with config.json")->required();
  inspect->callback([directory, &outcome] {
    const std::string path = *directory + "/config.json";
    const auto config = spark::model::read_model_config(parse_json(read_file(path), path), path);
    std::cout << config.num_hidden_layers << " layers, hidden size " << config.hidden_size << "\n";
    outcome.code = ExitCode::kOk;
  });
}

}  // namespace spark::app
