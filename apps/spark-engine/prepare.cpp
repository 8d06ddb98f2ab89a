#include "prepare.h"

#include <algorithm>
#include <filesystem>
#include <thread>

#include "attempt.h"
#include "common/error.h"
#include "common/log.h"
#include "engine/schedule/speculation_config.h"
#include "model/config_file.h"
#include "text/tool_text.h"
#include "text/unicode.h"

namespace spark::app {
namespace {

std::string folder_name(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  const std::string name = path.has_filename() ? path.filename() : path.parent_path().filename();
  if (!text::is_valid_utf8(name)) {
    throw Error("the folder's name is not valid UTF-8, so the API cannot know the model by it", folder,
                "name the model with --served-model-name");
  }
  return name.empty() ? "model" : name;
}

// The tokenizer must know the token that ends an answer.
int32_t end_token(const model::ModelConfig& config, const text::Tokenizer& tokenizer,
                  const std::string& folder) {
  if (tokenizer.contains(config.eos_token_id)) return config.eos_token_id;
  throw Error(
      "has no token " + std::to_string(config.eos_token_id) + ", which config.json says ends an answer",
      folder + "/tokenizer.json", "tokenizer.json and config.json must come from the same release");
}

int32_t context_length(const EngineFlags& flags, const model::ModelConfig& config,
                       const std::string& config_path) {
  const int64_t end = config.max_position_embeddings;
  if (end < kLeastModelLen) {
    throw Error("max_position_embeddings is " + std::to_string(end) + "; " + std::to_string(kLeastModelLen) +
                    " is the least: a token of a prompt, one of an answer",
                config_path, "compare it with the config.json of the published checkpoint");
  }
  if (!flags.max_model_len) return static_cast<int32_t>(std::min<int64_t>(kDefaultModelLen, end));
  if (*flags.max_model_len > end) {
    throw Error("is " + std::to_string(*flags.max_model_len) + "; the model ends at " + std::to_string(end) +
                    " tokens",
                "--max-model-len");
  }
  return *flags.max_model_len;
}

engine::SpeculationOptions speculation(const EngineFlags& flags, const model::ModelConfig& config) {
  const auto offered =
      static_cast<int32_t>(config.num_nextn_predict_layers > 0 ? config.dspark_block_size : 0);
  if (flags.speculative_config) {
    return engine::read_speculation(*flags.speculative_config, offered, flags.ranks.tensor_parallel_size);
  }
  engine::SpeculationOptions options;
  options.max_drafts = offered;
  return options;
}

engine::GenerationConfig generation_config(const EngineFlags& flags) {
  if (flags.generation_config == "vllm") return {};
  const bool is_own = flags.generation_config == "auto";
  const std::string path =
      (is_own ? flags.model.folder : flags.generation_config) + "/generation_config.json";
  std::error_code ignored;
  if (is_own && !std::filesystem::exists(path, ignored)) return {};
  return engine::read_generation_config(path);
}

// The description of tools that requests with tools put into their prompts.
std::optional<text::ChatTemplateParts> tool_text(const std::string& folder) {
  auto parts = text::load_tool_text(folder);
  if (!parts) log_info(folder + " has no " + text::kToolTextPath + ": requests with tools are refused");
  if (parts && !text::is_published_tool_text(*parts))
    log_debug("the tool text of " + folder + "/" + text::kToolTextPath +
              " is not the one known for this model");
  return parts;
}

// The ranks of a machine share its cores and its memory; the first process looks at the memory for all.
void plan_memory(const RankFlags& ranks, Prepared& prepared) {
  if (prepared.load.threads == 0 && ranks.local_ranks() > 1) {
    const auto cores = static_cast<int>(std::thread::hardware_concurrency());
    prepared.load.threads = std::max(1, cores / ranks.local_ranks());
  }
  prepared.memory = engine::plan_memory(prepared.config, prepared.load, ranks.tensor_parallel_size);
  auto available = engine::memory_available_to(prepared.load.backend);
  if (available) *available /= static_cast<uint64_t>(ranks.local_ranks());
  if (!ranks.local_rank) prepared.memory.check(available);
}

std::vector<std::string> served_names(const EngineFlags& flags) {
  return flags.served_names.empty() ? std::vector{folder_name(flags.model.folder)} : flags.served_names;
}

}  // namespace

bool is_local(const engine::HttpOptions& http) {
  return !http.unix_socket.empty() || http.host == "localhost" || http.host == "::1" ||
         http.host.starts_with("127.");
}

Prepared prepare(const EngineFlags& flags, Faults* faults) {
  const std::string& folder = flags.model.folder;
  const std::string config_path = folder + "/config.json";
  Prepared prepared;
  engine::LoadOptions& load = prepared.load;
  load = flags.model;
  load.spread_rows_above = flags.ranks.spread_rows_above;
  load.collective_dtype = engine::resolved_collective_dtype(flags.ranks.collective_dtype, load.backend);
  engine::ServiceOptions& service = prepared.service;
  service.api_keys = flags.api_keys;
  service.version = SPARK_VERSION;
  service.engine.max_waiting = flags.max_queued;
  service.engine.parallel_prefills = flags.parallel_prefills;
  service.engine.max_token_gap_ms = flags.max_token_gap_ms;

  bool is_good = true;
  const auto try_to = [&](const auto& check) {
    const bool passed = attempt(faults, check);
    is_good = is_good && passed;
    return passed;
  };
  const bool has_config = try_to([&] { prepared.config = model::load_model_config(config_path); });
  const bool has_tokenizer = try_to([&] {
    prepared.tokenizer =
        std::make_unique<text::Tokenizer>(text::Tokenizer::from_file(folder + "/tokenizer.json"));
  });
  if (has_config) {
    try_to([&] { load.limits.max_context = context_length(flags, prepared.config, config_path); });
    const size_t tables = std::max<size_t>(1, prepared.config.engram_layer_ids.size());
    load.engram.cache_bytes = (flags.engram_cache_mib << 20) / tables;
    load.engram.direct = !flags.engram_page_cache;
  }
  try_to([&] { service.served_names = served_names(flags); });
  try_to([&] { service.generation = generation_config(flags); });
  try_to([&] { service.tool_text = tool_text(folder); });
  if (has_config && has_tokenizer) {
    try_to([&] { service.engine.eos_token = end_token(prepared.config, *prepared.tokenizer, folder); });
  }
  if (has_config) try_to([&] { service.engine.speculation = speculation(flags, prepared.config); });
  if (is_good) try_to([&] { plan_memory(flags.ranks, prepared); });
  return prepared;
}

void check_flags(const EngineFlags& flags, const std::optional<model::ModelConfig>& config, Faults& faults) {
  if (config) attempt(&faults, [&] { context_length(flags, *config, flags.model.folder + "/config.json"); });
  attempt(&faults, [&] { served_names(flags); });
  attempt(&faults, [&] { generation_config(flags); });
  if (config) attempt(&faults, [&] { speculation(flags, *config); });
}

}  // namespace spark::app
