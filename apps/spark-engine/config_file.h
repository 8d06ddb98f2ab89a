// --config FILE: flags in a file, as vLLM takes them. One YAML map from a flag's long name, without the
// dashes, to its value; a list for a flag that may be repeated, true or false for a switch, and "model" for
// MODEL_DIR.
//
//   model: /models/DeepSeek-V4.1-Flash
//   port: 8000
//   max-num-seqs: 16
//   exact-prefill: true
//   served-model-name: [deepseek-v4.1-flash, default]
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace spark::app {

// Gives the file's values to all flags that the command line has not given; call it after parse(). Throws
// Error that lists everything wrong with the file, unknown names with the nearest known one.
void apply_config_file(CLI::App& app, const std::string& path);

}  // namespace spark::app
