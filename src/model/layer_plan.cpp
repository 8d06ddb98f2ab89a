#include "model/layer_plan.h"

#include <algorithm>

namespace spark::model {
namespace {

int64_t position_of(const std::vector<int64_t>& values, int64_t value) {
  const auto found = std::find(values.begin(), values.end(), value);
  return found == values.end() ? -1 : found - values.begin();
}

// The last source at or before the layer.
int64_t source_of(const std::vector<int64_t>& sources, int64_t layer) {
  const auto after = std::upper_bound(sources.begin(), sources.end(), layer);
  return after == sources.begin() ? -1 : *(after - 1);
}

int64_t first_decoder_layer(const LayerPlan& plan) {
  int64_t first = -1;
  for (const LayerRole& role : plan.layers) {
    if (role.owns_kv()) first = role.layer;
  }
  for (const LayerRole& role : plan.layers) {
    if (role.engram >= 0 && role.layer >= first) return -1;
    if (role.aux >= 0 && role.layer <= first) return -1;
  }
  return first;
}

}  // namespace

std::string_view name_of(AttentionMode mode) {
  switch (mode) {
    case AttentionMode::kWindow:
      return "window";
    case AttentionMode::kFull:
      return "full";
    case AttentionMode::kReindex:
      return "reindex";
    case AttentionMode::kReuse:
      return "reuse";
  }
  return "";
}

LayerPlan make_layer_plan(const ModelConfig& config) {
  LayerPlan plan;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    LayerRole role;
    role.layer = layer;
    role.compress_ratio = config.compress_ratios[static_cast<size_t>(layer)];
    role.engram = position_of(config.engram_layer_ids, layer);
    if (config.num_nextn_predict_layers > 0) role.aux = position_of(config.dspark_target_layer_ids, layer);
    if (role.compress_ratio > 0) {
      role.kv_source = source_of(config.kv_source_layer_ids, layer);
      role.index_source = source_of(config.index_source_layer_ids, layer);
      role.mode = role.kv_source == layer      ? AttentionMode::kFull
                  : role.index_source == layer ? AttentionMode::kReindex
                                               : AttentionMode::kReuse;
      role.is_candidate_source = layer == config.candidate_source_layer_id;
      role.uses_candidates = role.mode == AttentionMode::kReindex && config.candidate_source_layer_id >= 0 &&
                             role.kv_source == config.candidate_source_layer_id;
    }
    plan.layers.push_back(role);
  }
  for (int64_t layer = 0; layer < config.num_nextn_predict_layers; ++layer) {
    plan.drafter.push_back({.layer = layer});
  }
  plan.first_decoder_layer = first_decoder_layer(plan);
  return plan;
}

}  // namespace spark::model
