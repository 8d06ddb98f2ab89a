#include "model/cost.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "common/error.h"

namespace spark::model {
namespace {

int64_t places(int64_t positions) {
  return (positions + kNativeBlockTokens - 1) / kNativeBlockTokens;
}

double real(int64_t value) {
  return static_cast<double>(value);
}

// Entries of a layer's compressed cache that a row scores.
int64_t scored_entries(const ModelConfig& c, const LayerRole& role, int64_t context) {
  const int64_t entries = context / role.compress_ratio;
  return role.uses_candidates ? std::min(entries, c.candidate_topk_blocks * c.candidate_block_size) : entries;
}

int64_t selected_entries(const ModelConfig& c, const LayerRole& role, int64_t context) {
  return role.compress_ratio == 0 ? 0 : std::min(c.index_topk, context / role.compress_ratio);
}

double projection_flops(const ModelConfig& c) {
  return 2 * (real(c.q_lora_rank + c.head_dim) * real(c.hidden_size) +
              real(c.query_width()) * real(c.q_lora_rank) + real(c.o_width()) * real(c.o_group_input()) +
              real(c.hidden_size) * real(c.o_width()));
}

double core_flops(const ModelConfig& c, int64_t keys) {
  return 4 * real(keys) * real(c.query_width());
}

double expert_flops(const ModelConfig& c, int64_t experts) {
  return 2 * 3 * real(experts) * real(c.hidden_size) * real(c.moe_intermediate_size);
}

// Per layer: two mixing functions, two collapses, two expansions of the streams.
double stream_flops(const ModelConfig& c) {
  const double mixes = 2 * real(c.hc_mixes()) * real(c.stream_width());
  const double collapse = 2 * real(c.stream_width());
  const double expand = 2 * real(c.hc_mult + 1) * real(c.stream_width());
  return 2 * (mixes + collapse + expand);
}

}  // namespace

CacheCost cache_cost(const ModelConfig& config) {
  constexpr int64_t kFp4ScaleBlock = 16;
  constexpr int64_t kFp32Bytes = 4;
  CacheCost cost;
  cost.window_record = config.head_dim + config.head_dim / kBlock;
  cost.main_record = config.head_dim / 2 + config.head_dim / kFp4ScaleBlock;
  cost.index_record = config.index_head_dim / 2 + config.index_head_dim / kBlock;
  cost.fixed_per_sequence = config.all_layers() * config.sliding_window * cost.window_record;
  for (const int64_t layer : config.kv_source_layer_ids) {
    const int64_t ratio = config.compress_ratios[static_cast<size_t>(layer)];
    cost.growth_per_token += real(cost.main_record + cost.index_record) / real(ratio);
    if (ratio == 2)
      cost.fixed_per_sequence += 2 * config.head_dim * kFp32Bytes;  // latent and gate of the open token
  }
  return cost;
}

NativeCacheBlocks native_cache_blocks(const NativeCacheLimits& limits, const NativeCacheCosts& costs) {
  const int64_t whole = places(limits.context);
  const int64_t everything = limits.sequences * whole;
  // A sequence holds its last positions and the rows of the step; both may straddle a block border.
  const int64_t kept = places(costs.window + kNativeMaxRollback) + 2;
  const int64_t least_window = std::min(limits.sequences * kept + places(limits.step_rows), everything);
  const int64_t per_checkpoint = std::max<int64_t>(1, places(costs.window - 1));
  const bool caching = limits.prefix_caching && costs.whole_block_bytes > 0;
  if (costs.whole_block_bytes == 0) return {.window = least_window, .whole = 0};
  if (limits.budget_bytes == 0) {
    const int64_t checkpoints = caching ? kNativeCheckpoints * limits.sequences : 0;
    return {.window = least_window + std::min(checkpoints * per_checkpoint, everything), .whole = everything};
  }
  const int64_t rest = limits.budget_bytes - costs.fixed_bytes - least_window * costs.window_block_bytes;
  if (rest < costs.whole_block_bytes) {
    const int64_t least = limits.budget_bytes - rest + costs.whole_block_bytes;
    throw Error("the caches cannot do with " + std::to_string(limits.budget_bytes) + " bytes",
                "--kv-cache-memory-bytes",
                "give them " + std::to_string(least) + " or more, or fewer sequences or rows of a step");
  }
  if (!caching)
    return {.window = least_window, .whole = std::min(rest / costs.whole_block_bytes, everything)};
  constexpr int64_t kCheckpointShare = 4;
  const int64_t checkpoints = rest / kCheckpointShare / costs.window_block_bytes;
  return {.window = least_window + checkpoints,
          .whole = (rest - checkpoints * costs.window_block_bytes) / costs.whole_block_bytes};
}

NativeCacheBytes native_cache_bytes(const ModelConfig& config, const NativeCacheLimits& limits) {
  constexpr int64_t kFloatBytes = 4;
  const CacheCost cost = cache_cost(config);
  NativeCacheBytes bytes;
  NativeCacheCosts costs{.window = config.sliding_window,
                         .window_block_bytes = kNativeBlockTokens * cost.window_record * config.all_layers()};
  for (const int64_t layer : config.kv_source_layer_ids) {
    const int64_t ratio = config.compress_ratios[static_cast<size_t>(layer)];
    costs.whole_block_bytes += (kNativeBlockTokens / ratio) * (cost.main_record + cost.index_record);
    if (ratio > 1) {
      bytes.pairs += limits.sequences * (kNativeMaxRollback + 1) * 2 * config.head_dim * kFloatBytes;
    }
  }
  bytes.tables =
      kNativeCacheGroups * limits.sequences * places(limits.context) * static_cast<int64_t>(sizeof(int32_t));
  costs.fixed_bytes = bytes.pairs + bytes.tables;
  const NativeCacheBlocks blocks = native_cache_blocks(limits, costs);
  bytes.window = blocks.window * costs.window_block_bytes;
  bytes.global = blocks.whole * costs.whole_block_bytes;
  return bytes;
}

double expected_experts(int64_t experts, int64_t per_row, double rows) {
  return real(experts) * (1 - std::pow(1 - real(per_row) / real(experts), rows));
}

CostModel::CostModel(const ModelConfig& config, const RankSplit& split)
    : config_(config),
      plan_(make_layer_plan(config)),
      cache_(cache_cost(config)),
      layers_(static_cast<size_t>(config.num_hidden_layers)) {
  const auto drafter_head = [](const TensorEntry& tensor, const char* name) {
    return tensor.component == Component::kDrafterHeads && tensor.name.find(name) != std::string::npos;
  };
  for (const TensorEntry& tensor : tensor_catalogue(config)) {
    const bool is_split = tensor.split_over != SplitOver::kNothing;
    const double bytes = real(tensor.bytes()) / real(tensor.shape[tensor.split_axis]) *
                         real(slice_of(tensor, split, 0).extent);
    switch (tensor.component) {
      case Component::kEmbedding:  // single rows of these are read
      case Component::kEngramTable:
      case Component::kFinalNorm:
      case Component::kVision:
        continue;
      case Component::kHead:
        packed_head_ = bytes * 12 / 16;
        continue;
      default:
        break;
    }
    if (drafter_head(tensor, "markov_head.embed")) continue;
    if (drafter_head(tensor, "markov_head.head")) {
      markov_head_ = bytes;
      continue;
    }
    const bool drafter = tensor.component >= Component::kDrafterAttention;
    Weights& weights = drafter ? drafter_ : layers_[static_cast<size_t>(tensor.layer)];
    const bool routed =
        tensor.component == Component::kRoutedExperts || tensor.component == Component::kDrafterRoutedExperts;
    (routed ? weights.routed : is_split ? weights.split : weights.replicated) += bytes;
  }
}

LayerBytes CostModel::layer(int64_t layer, const StepShape& shape) const {
  const LayerRole& role = plan_.layers[static_cast<size_t>(layer)];
  const Weights& weights = layers_[static_cast<size_t>(layer)];
  LayerBytes bytes;
  bytes.replicated = weights.replicated;
  bytes.split = weights.split;
  bytes.routed = weights.routed / real(config_.n_routed_experts) *
                 expected_experts(config_.n_routed_experts, config_.num_experts_per_tok,
                                  std::pow(real(shape.rows()), shape.routing_exponent));
  bytes.kv =
      real(shape.streams * std::min(config_.sliding_window, shape.context + 1) * cache_.window_record) +
      real(shape.rows() * selected_entries(config_, role, shape.context) * cache_.main_record);
  if (role.runs_indexer()) {
    const int64_t readers = role.uses_candidates ? shape.rows() : shape.streams;
    bytes.index_keys = real(readers * scored_entries(config_, role, shape.context) * cache_.index_record);
  }
  return bytes;
}

StepBytes CostModel::step(const StepShape& shape) const {
  StepBytes bytes;
  bytes.target = packed_head_;
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) bytes.target += layer(i, shape).total();
  if (config_.num_nextn_predict_layers == 0) return bytes;
  const int64_t rows = shape.streams * config_.dspark_block_size;
  bytes.draft =
      drafter_.replicated + drafter_.split + packed_head_ +
      real(config_.dspark_block_size) * markov_head_ +  // the drafts of a block depend on one another
      drafter_.routed / real(config_.dspark_n_routed_experts) *
          expected_experts(config_.dspark_n_routed_experts, config_.dspark_num_experts_per_tok,
                           std::pow(real(rows), shape.routing_exponent)) +
      real(config_.num_nextn_predict_layers * shape.streams *
           std::min(config_.sliding_window, shape.context + 1) * cache_.window_record);
  return bytes;
}

LayerFlops layer_flops(const ModelConfig& c, const LayerRole& role, int64_t context) {
  LayerFlops flops;
  flops.projections = projection_flops(c);
  flops.core = core_flops(c, std::min(c.sliding_window, context + 1) + selected_entries(c, role, context));
  flops.experts = expert_flops(c, c.num_experts_per_tok + 1);
  flops.router = 2 * real(c.n_routed_experts) * real(c.hidden_size);
  flops.streams = stream_flops(c);
  if (role.owns_kv()) {
    flops.compressor = 2 * real(role.compress_ratio) * real(c.head_dim) * real(c.hidden_size) +
                       2 * real(c.index_head_dim) * real(c.head_dim) / real(role.compress_ratio);
  }
  if (role.runs_indexer()) {
    flops.index_queries =
        2 * (real(c.index_width()) * real(c.q_lora_rank) + real(c.index_n_heads) * real(c.hidden_size));
    flops.index_scores = 2 * real(c.index_width()) * real(scored_entries(c, role, context));
  }
  if (role.engram >= 0) flops.engram = 2 * real(c.engram_output()) * real(c.engram_width());
  return flops;
}

double head_flops(const ModelConfig& c) {
  return 2 * real(c.vocab_size) * real(c.hidden_size);
}

double drafter_row_flops(const ModelConfig& c) {
  return real(c.num_nextn_predict_layers) *
         (projection_flops(c) + core_flops(c, c.sliding_window + c.dspark_block_size) +
          expert_flops(c, c.dspark_num_experts_per_tok + 1) +
          2 * real(c.dspark_n_routed_experts) * real(c.hidden_size) + stream_flops(c));
}

}  // namespace spark::model
