#include "engine/checkpoint/synthetic.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <vector>

#include "common/file.h"
#include "engine/checkpoint/checkpoint_index.h"
#include "engine/checkpoint/partial_folder.h"
#include "engine/checkpoint/safetensors_writer.h"
#include "engine/checkpoint/synthetic_tokenizer.h"
#include "engine/checkpoint/synthetic_tool_text.h"
#include "engine/checkpoint/synthetic_weights.h"
#include "model/config_json.h"
#include "model/engram_primes.h"
#include "model/tensors.h"
#include "text/engram_map.h"
#include "text/tokenizer.h"
#include "text/tool_text.h"

namespace spark::engine {
namespace {

namespace fs = std::filesystem;
using model::Component;
using model::ModelConfig;

// What both presets share, and everything of `tiny`.
ModelConfig tiny_config() {
  ModelConfig c;
  c.vocab_size = 1024;
  c.hidden_size = 128;
  c.num_hidden_layers = 9;
  c.max_position_embeddings = 8192;
  c.num_attention_heads = 16;
  c.head_dim = 64;
  c.qk_rope_head_dim = 16;
  c.q_lora_rank = 64;
  c.o_groups = 8;
  c.o_lora_rank = 32;
  c.sliding_window = 32;
  c.rms_norm_eps = 1e-20;
  c.rope_theta = 10000;
  c.compress_rope_theta = 160000;
  c.yarn = {.factor = 16, .beta_fast = 32, .beta_slow = 1, .original_max_position_embeddings = 64};
  c.compress_ratios = {0, 0, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0};
  c.kv_source_layer_ids = {2, 4, 5};
  c.index_source_layer_ids = {2, 4, 5, 7};
  c.index_n_heads = 4;
  c.index_head_dim = 64;
  c.index_topk = 40;
  c.candidate_source_layer_id = 5;
  c.candidate_topk_blocks = 12;
  c.candidate_block_size = 4;
  c.moe_intermediate_size = 384;
  c.n_routed_experts = 6;
  c.num_experts_per_tok = 3;
  c.routed_scaling_factor = 1.5;
  c.swiglu_limit = 2;  // low enough for the clamps to act
  c.hc_mult = 4;
  c.hc_sinkhorn_iters = 20;
  c.hc_eps = 1e-6;
  c.engram_layer_ids = {1, 4};
  c.engram_max_ngram_size = 4;
  c.engram_vocab_size = 211;
  c.engram_n_heads = 2;
  c.engram_head_dim = 64;
  c.engram_pad_token_id = c.pad_token_id;
  c.num_nextn_predict_layers = 3;
  c.dspark_block_size = 5;
  c.dspark_target_layer_ids = {6, 7, 8};
  c.dspark_markov_rank = 32;
  c.dspark_n_routed_experts = 4;
  c.dspark_num_experts_per_tok = 2;
  return c;
}

ModelConfig small_config() {
  ModelConfig c = tiny_config();
  c.vocab_size = 4096;
  c.hidden_size = 1024;
  c.num_hidden_layers = 10;
  c.max_position_embeddings = 65536;
  c.head_dim = 128;
  c.qk_rope_head_dim = 32;
  c.q_lora_rank = 256;
  c.o_lora_rank = 128;
  c.sliding_window = 128;
  c.yarn.original_max_position_embeddings = 4096;
  c.compress_ratios = {0, 0, 2, 2, 2, 1, 1, 1, 1, 1, 0, 0, 0};
  c.index_source_layer_ids = {2, 4, 5, 7, 9};
  c.index_n_heads = 8;
  c.index_topk = 256;
  c.candidate_topk_blocks = 256;
  c.candidate_block_size = 8;
  c.moe_intermediate_size = 768;
  c.n_routed_experts = 16;
  c.num_experts_per_tok = 4;
  c.swiglu_limit = 10;
  c.engram_vocab_size = 20011;
  c.engram_n_heads = 4;
  c.dspark_target_layer_ids = {7, 8, 9};
  c.dspark_markov_rank = 64;
  return c;
}

// Tokens of merges that are whole text: greedy decoding walks through them, so that its output reads like
// words.
std::vector<int32_t> fluent_tokens(const text::Tokenizer& tokenizer) {
  std::vector<int32_t> tokens;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string text = tokenizer.decode(std::span(&id, 1));
    const bool whole = text.find("\xEF\xBF\xBD") == std::string::npos;  // U+FFFD
    if (!tokenizer.is_added(id) && whole && text.size() > 1) tokens.push_back(id);
  }
  return tokens;
}

struct Shard {
  std::string name;
  std::vector<const model::TensorEntry*> tensors;
};

bool is_engram_table(const model::TensorEntry& tensor) {
  return tensor.component == Component::kEngramTable;
}

// Two shards of about equal size for everything but the Engram tables, one more per table.
std::vector<Shard> plan_shards(const std::vector<model::TensorEntry>& catalogue, int64_t tables) {
  constexpr int64_t kOthers = 2;
  std::vector<Shard> shards(static_cast<size_t>(kOthers + tables));
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].name = shard_name(static_cast<int>(i) + 1, static_cast<int>(shards.size()));
  }
  int64_t total = 0;
  for (const model::TensorEntry& tensor : catalogue) total += is_engram_table(tensor) ? 0 : tensor.bytes();
  int64_t placed = 0;
  size_t table = kOthers;
  int32_t table_layer = -1;
  for (const model::TensorEntry& tensor : catalogue) {
    if (is_engram_table(tensor)) {
      if (table_layer >= 0 && tensor.layer != table_layer) ++table;
      table_layer = tensor.layer;
      shards[table].tensors.push_back(&tensor);
      continue;
    }
    const auto at = static_cast<size_t>(std::min(kOthers - 1, placed * kOthers / total));
    shards[at].tensors.push_back(&tensor);
    placed += tensor.bytes();
  }
  return shards;
}

void write_json(const fs::path& path, const Json& json) {
  write_file_atomic(path.string(), json.dump(1) + "\n");
}

void write_small_files(const SyntheticModel& synthetic, const fs::path& dir) {
  const ModelConfig& config = synthetic.config;
  fs::create_directories(dir / "inference");
  write_json(dir / "config.json", model::published_json(config));
  write_json(dir / "inference" / "config.json", model::official_json(config));
  write_json(dir / "generation_config.json", {{"bos_token_id", config.bos_token_id},
                                              {"eos_token_id", config.eos_token_id},
                                              {"do_sample", true},
                                              {"temperature", 1.0},
                                              {"top_p", 0.95}});
  write_json(dir / "tokenizer_config.json", {{"add_bos_token", false},
                                             {"add_eos_token", false},
                                             {"bos_token", "<｜begin▁of▁sentence｜>"},
                                             {"eos_token", "<｜end▁of▁sentence｜>"},
                                             {"pad_token", "<｜▁pad▁｜>"},
                                             {"model_max_length", config.max_position_embeddings},
                                             {"tokenizer_class", "PreTrainedTokenizerFast"}});
  write_file_atomic((dir / "tokenizer.json").string(), synthetic.tokenizer_json);
  const fs::path tool_text = dir / text::kToolTextPath;
  fs::create_directories(tool_text.parent_path());
  write_file_atomic(tool_text.string(), synthetic_tool_text());
}

}  // namespace

std::optional<SyntheticPreset> synthetic_preset(std::string_view name) {
  if (name == "tiny") return SyntheticPreset::kTiny;
  if (name == "small") return SyntheticPreset::kSmall;
  return std::nullopt;
}

SyntheticModel synthetic_model(SyntheticPreset preset) {
  SyntheticModel result;
  ModelConfig& config = result.config;
  config = preset == SyntheticPreset::kTiny ? tiny_config() : small_config();
  SyntheticTokenizer tokenizer = make_synthetic_tokenizer(static_cast<int32_t>(config.vocab_size));
  config.image_token_id = tokenizer.image_token;
  config.dspark_noise_token_id = tokenizer.system_token;
  config.engram_compressed_vocab_size =
      text::build_engram_map(text::Tokenizer::from_json(tokenizer.json, "synthetic tokenizer")).class_count;
  for (const auto& orders : model::engram_primes(config)) {
    int64_t rows = 0;
    for (const auto& heads : orders) rows = std::accumulate(heads.begin(), heads.end(), rows);
    config.engram_num_embeddings.push_back(rows);
  }
  result.tokenizer_json = std::move(tokenizer.json);
  return result;
}

int64_t write_synthetic_checkpoint(SyntheticPreset preset, uint64_t seed, const std::string& dir) {
  const SyntheticModel synthetic = synthetic_model(preset);
  write_small_files(synthetic, dir);
  const std::vector<model::TensorEntry> catalogue = model::tensor_catalogue(synthetic.config);
  int64_t total = 0;
  for (const model::TensorEntry& tensor : catalogue) total += tensor.bytes();
  CheckpointIndex index;
  index.total_size = static_cast<uint64_t>(total);
  SyntheticWeights weights(
      synthetic.config,
      fluent_tokens(text::Tokenizer::from_json(synthetic.tokenizer_json, "synthetic tokenizer")), seed);
  for (const Shard& shard :
       plan_shards(catalogue, static_cast<int64_t>(synthetic.config.engram_layer_ids.size()))) {
    std::vector<TensorSpec> specs;
    std::map<std::string_view, const model::TensorEntry*> by_name;
    for (const model::TensorEntry* tensor : shard.tensors) {
      specs.push_back({tensor->name, tensor->dtype, tensor->shape});
      by_name[tensor->name] = tensor;
      index.weight_map.emplace_back(tensor->name, shard.name);
    }
    SafetensorsWriter writer((fs::path(dir) / shard.name).string(), std::move(specs), {{"format", "pt"}});
    for (const TensorSpec& spec : writer.order()) {
      writer.append(weights.bytes(*by_name.at(spec.name)));
    }
    writer.finish();
  }
  write_file_atomic((fs::path(dir) / kCheckpointIndexName).string(), format_checkpoint_index(index));
  return total;
}

int64_t create_synthetic_checkpoint(SyntheticPreset preset, uint64_t seed, const std::string& dir,
                                    bool replace) {
  PartialFolder folder(dir, replace);
  const int64_t bytes = write_synthetic_checkpoint(preset, seed, folder.path().string());
  folder.put_in_place();
  return bytes;
}

}  // namespace spark::engine
