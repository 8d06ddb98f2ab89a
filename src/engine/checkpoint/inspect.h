// Checks a whole checkpoint folder without loading it, and reports everything that is wrong with it in one
// go.
//
//   const Inspection result = inspect_checkpoint("/models/DeepSeek-V4.1-Flash");
//   if (result.faults.empty()) { use(*result.config); }
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "model/config.h"

namespace spark::engine {

struct Inspection {
  std::string config_path;
  std::optional<model::ModelConfig> config;  // empty when it has faults of its own
  std::vector<std::string> ignored_keys;     // of config.json, not used by this program
  bool configuration_only = false;           // `path` was a configuration file
  std::vector<Fault> faults;
};

// `path` is a checkpoint folder, or a configuration file, of which alone it then speaks. A folder is checked
// for: both configuration files and their agreement, the tokenizer and its fit (size, Engram classes), the
// shards' headers and the index, every tensor's presence, dtype and shape. Tensor data are not read. Throws
// Error only when there is no configuration at all.
Inspection inspect_checkpoint(const std::string& path);

}  // namespace spark::engine
