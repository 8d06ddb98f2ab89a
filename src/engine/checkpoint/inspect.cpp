#include "engine/checkpoint/inspect.h"

#include <filesystem>
#include <system_error>

#include "common/file.h"
#include "common/json.h"
#include "engine/checkpoint/checkpoint.h"
#include "model/config_file.h"
#include "model/tensors.h"
#include "text/engram_map.h"
#include "text/tokenizer.h"
#include "text/tool_text.h"

namespace spark::engine {
namespace {

namespace fs = std::filesystem;
using model::ModelConfig;

class Inspector {
 public:
  explicit Inspector(Inspection& result) : result_(result) {}

  // The configuration in `path`, or nothing and faults.
  std::optional<ModelConfig> read_config(const std::string& path, std::vector<std::string>* ignored_keys) {
    std::optional<ModelConfig> config;
    attempt([&] {
      Faults faults;
      const ModelConfig read = model::parse_model_config(
          parse_json(read_file(path, model::kMaxConfigBytes), path), faults, ignored_keys);
      for (Fault& fault : faults) {
        fault.where = path + (fault.where.empty() ? "" : ": " + fault.where);
        result_.faults.push_back(std::move(fault));
      }
      if (faults.empty()) config = read;
    });
    return config;
  }

  void check_agreement(const std::string& flat_path) {
    const std::optional<ModelConfig> flat = read_config(flat_path, nullptr);
    if (!flat || !result_.config) return;
    ModelConfig expected = *result_.config;  // without what the flat form cannot say
    expected.bos_token_id = flat->bos_token_id;
    expected.eos_token_id = flat->eos_token_id;
    expected.pad_token_id = flat->pad_token_id;
    expected.max_position_embeddings = flat->max_position_embeddings;
    if (expected.vision && flat->vision) expected.vision->min_pixels = flat->vision->min_pixels;
    if (expected == *flat) return;
    result_.faults.push_back({flat_path, "describes another model than " + result_.config_path,
                              "they belong to different checkpoints, or one was edited"});
  }

  void check_tokenizer(const std::string& path) {
    attempt([&] {
      const text::Tokenizer tokenizer = text::Tokenizer::from_file(path);
      const ModelConfig& config = *result_.config;
      if (tokenizer.vocab_size() > config.vocab_size) {
        result_.faults.push_back({path,
                                  "has " + std::to_string(tokenizer.vocab_size()) +
                                      " tokens; vocab_size is " + std::to_string(config.vocab_size),
                                  ""});
      }
      if (config.engram_layer_ids.empty()) return;
      const int32_t classes = text::build_engram_map(tokenizer).class_count;
      if (classes == config.engram_compressed_vocab_size) return;
      result_.faults.push_back({path,
                                "collapses to " + std::to_string(classes) +
                                    " Engram classes; engram_compressed_vocab_size is " +
                                    std::to_string(config.engram_compressed_vocab_size),
                                "tokenizer and model do not belong together"});
    });
  }

  void check_tool_text(const std::string& folder) {
    attempt([&] { text::load_tool_text(folder); });
  }

  void check_tensors(const std::string& folder) {
    attempt([&] {
      const Checkpoint checkpoint(folder);
      std::vector<TensorSpec> expected;
      for (model::TensorEntry& tensor : model::tensor_catalogue(*result_.config)) {
        if (!tensor.required && !checkpoint.contains(tensor.name)) continue;
        expected.push_back({std::move(tensor.name), tensor.dtype, std::move(tensor.shape)});
      }
      checkpoint.check_against(expected);
    });
  }

 private:
  template <typename Check>
  void attempt(Check check) {
    try {
      check();
    } catch (const Error& error) {
      result_.faults.push_back({error.where(), error.what(), error.hint()});
    }
  }

  Inspection& result_;
};

}  // namespace

Inspection inspect_checkpoint(const std::string& path) {
  Inspection result;
  Inspector inspector(result);
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) {
    result.configuration_only = true;
    result.config_path = path;
    result.config = inspector.read_config(path, &result.ignored_keys);
    return result;
  }
  std::error_code problem;
  if (!fs::exists(path, problem)) {
    throw Error(problem ? "cannot be examined: " + problem.message() : "does not exist", path,
                "name a checkpoint's folder, or one config.json");
  }
  if (!fs::is_directory(path, ignored)) {
    throw Error("is neither a folder nor a file", path, "name a checkpoint's folder, or one config.json");
  }
  const fs::path folder(path);
  const std::string nested = (folder / "config.json").string();
  const std::string flat = (folder / "inference" / "config.json").string();
  if (!fs::exists(nested, ignored)) {
    throw Error("has no config.json", path,
                "name the folder that holds the checkpoint's config.json and shards");
  }
  result.config_path = nested;
  result.config = inspector.read_config(nested, &result.ignored_keys);
  if (fs::exists(flat, ignored)) inspector.check_agreement(flat);
  if (!result.config) return result;
  inspector.check_tokenizer((folder / "tokenizer.json").string());
  inspector.check_tool_text(path);
  inspector.check_tensors(path);
  return result;
}

}  // namespace spark::engine
