// Hyper-parameters of a DeepSeek V4.1 Flash checkpoint, read from its config.json.
//
//   const Json json = parse_json(read_file(dir + "/config.json"), dir + "/config.json");
//   const ModelConfig config = read_model_config(json, dir + "/config.json");   // throws Error listing every
//   fault config.hidden_size; config.compress_ratios[20]; config.query_width();
//
// Both published name sets are understood: the nested config.json (`text_config`, `vision_config`) and the
// flat inference/config.json of the official code (`dim`, `n_layers`, ...). Fields carry the nested names. A
// value that is accepted keeps every relation the rest of the engine relies on (widths are whole 32-blocks,
// every compressed layer has a source, Engram table heights match their primes, ...), so nothing downstream
// checks them again.
//
// Units: sizes are element counts, ids are 0-based.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/json.h"

namespace spark::model {

// Channels of one quantisation block, and the side of one FP8 weight tile.
inline constexpr int64_t kBlock = 32;

// YaRN stretching of the rotary frequencies of layers with compress ratio 1 or 2.
struct YarnConfig {
  double factor = 1;
  double beta_fast = 32;
  double beta_slow = 1;
  int64_t original_max_position_embeddings = 0;

  bool operator==(const YarnConfig&) const = default;
};

struct VisionConfig {
  int64_t num_hidden_layers = 0;
  int64_t hidden_size = 0;
  int64_t num_attention_heads = 0;
  int64_t intermediate_size = 0;
  int64_t patch_size = 0;
  double rope_theta = 10000;
  int64_t downsample_ratio = 0;  // patches per side of one image token
  int64_t max_image_tokens = 0;  // delimiters included
  int64_t min_pixels = 0;

  bool operator==(const VisionConfig&) const = default;
  int64_t patch_width() const { return 3 * patch_size * patch_size; }
  int64_t aligner_width() const { return hidden_size * downsample_ratio * downsample_ratio; }
};

struct ModelConfig {
  int32_t bos_token_id = 0;
  int32_t eos_token_id = 1;
  int32_t pad_token_id = 2;
  int32_t image_token_id = -1;  // -1: the model has no image spans

  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t max_position_embeddings = 0;

  int64_t num_attention_heads = 0;
  int64_t head_dim = 0;          // width of every query head and of the one shared K=V latent
  int64_t qk_rope_head_dim = 0;  // the last channels of a head rotate
  int64_t q_lora_rank = 0;
  int64_t o_groups = 0;
  int64_t o_lora_rank = 0;  // per group
  int64_t sliding_window = 0;
  double rms_norm_eps = 0;
  double rope_theta = 0;           // layers with ratio 0
  double compress_rope_theta = 0;  // layers with ratio 1 or 2, stretched by `yarn`
  YarnConfig yarn;

  std::vector<int64_t> compress_ratios;         // one per layer, then one (0) per drafter layer
  std::vector<int64_t> kv_source_layer_ids;     // own a compressor, a compressed cache, an index-key cache
  std::vector<int64_t> index_source_layer_ids;  // run the indexer
  int64_t index_n_heads = 0;
  int64_t index_head_dim = 0;
  int64_t index_topk = 0;
  int64_t candidate_source_layer_id = -1;  // -1: later index sources see every entry
  int64_t candidate_topk_blocks = 0;
  int64_t candidate_block_size = 0;

  int64_t moe_intermediate_size = 0;  // routed and shared experts alike
  int64_t n_routed_experts = 0;
  int64_t num_experts_per_tok = 0;
  double routed_scaling_factor = 1;
  double gate_temp = 1;
  double swiglu_limit = 0;

  int64_t hc_mult = 0;  // residual streams
  int64_t hc_sinkhorn_iters = 0;
  double hc_eps = 0;

  std::vector<int64_t> engram_layer_ids;
  std::vector<int64_t> engram_num_embeddings;  // table rows, one per Engram layer
  int64_t engram_max_ngram_size = 0;           // orders 2 .. this
  int64_t engram_vocab_size = 0;               // the primes are searched upward from here
  int64_t engram_n_heads = 0;
  int64_t engram_head_dim = 0;
  int32_t engram_pad_token_id = 0;
  int64_t engram_compressed_vocab_size = 0;

  int64_t num_nextn_predict_layers = 0;  // drafter layers; 0: no drafter
  int64_t dspark_block_size = 0;         // drafts per block
  int32_t dspark_noise_token_id = 0;
  std::vector<int64_t> dspark_target_layer_ids;  // the inputs of these layers feed the drafter
  int64_t dspark_markov_rank = 0;
  int64_t dspark_n_routed_experts = 0;
  int64_t dspark_num_experts_per_tok = 0;

  std::optional<VisionConfig> vision;

  bool operator==(const ModelConfig&) const = default;
  int64_t query_width() const { return num_attention_heads * head_dim; }
  int64_t o_group_input() const { return num_attention_heads / o_groups * head_dim; }
  int64_t o_width() const { return o_groups * o_lora_rank; }
  int64_t index_width() const { return index_n_heads * index_head_dim; }
  int64_t stream_width() const { return hc_mult * hidden_size; }  // one row of the residual state
  int64_t hc_mixes() const {
    return (2 + hc_mult) * hc_mult;
  }  // outputs of one mHC function: pre, post, comb
  int64_t engram_orders() const { return engram_max_ngram_size - 1; }
  int64_t engram_columns() const {
    return engram_orders() * engram_n_heads;
  }  // table rows read per token and layer
  int64_t engram_width() const { return engram_columns() * engram_head_dim; }
  int64_t engram_output() const { return (hc_mult + 1) * hidden_size; }  // one key per stream, one value
  int64_t main_proj_input() const {
    return static_cast<int64_t>(dspark_target_layer_ids.size()) * hidden_size;
  }
  int64_t all_layers() const { return num_hidden_layers + num_nextn_predict_layers; }
};

// Reads and checks a whole config.json of either name set. `source` names the file in the Error, which lists
// every fault. Keys this program does not use are tolerated and, if `ignored_keys` is given, returned as
// paths.
ModelConfig read_model_config(const Json& json, const std::string& source,
                              std::vector<std::string>* ignored_keys = nullptr);

// The same, adding to `faults` instead of throwing; the result is meaningful only when none was added.
ModelConfig parse_model_config(const Json& json, Faults& faults,
                               std::vector<std::string>* ignored_keys = nullptr);

}  // namespace spark::model
