// A baseline manifest (manifests/baselines/*.json): what was observed to run when a profile was promoted.
// Immutable evidence; prose stays JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/json.h"

namespace spark::ops {

struct BaselineNode {
  std::string name;
  std::string image_id;
  std::string role;  // "api-head-rank-0" or "headless-rank-N"
};

struct BaselineCapacity {
  std::optional<int64_t> kv_cache_bytes_per_rank;
  std::optional<int64_t> kv_cache_tokens;
  std::optional<int64_t> max_model_len;
  std::optional<int64_t> max_num_seqs;
  std::optional<double> reported_full_context_concurrency;
  std::optional<double> graph_capture_gib;
  std::optional<double> vision_tower_gib;
  std::optional<double> display_carveout_weights_mib;
  std::optional<int64_t> checkpoint_native_max_position_embeddings;
};

struct BaselineManifest {
  std::string status;
  std::string captured_at;
  std::string container_name;
  std::string image_tag;
  std::string image_id;
  std::vector<BaselineNode> nodes;
  BaselineCapacity capacity;
  std::optional<std::string> benchmark_reference;
  Json document;  // everything, including the prose
};

BaselineManifest read_baseline_manifest(const Json& document, Faults& faults);

}  // namespace spark::ops
