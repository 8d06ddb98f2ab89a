// What a plan is made from: the parts of a profile, a node map and a model that decide about memory and
// speed.
//
//   Faults faults;
//   PlanRequest request = plan_request(site, config, faults);
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/config.h"
#include "model/native_memory.h"
#include "ops/site/site.h"

namespace spark::ops {

// The weights of a rank. Going through all tensors takes a while, and the search for a change asks often:
// what was asked once is kept, by all copies together.
class RankWeights {
 public:
  RankWeights() = default;
  explicit RankWeights(model::ModelConfig config) : config_(std::move(config)) {}

  // Throws Error (that of split_for) when the model does not split over `ranks`.
  const model::RankMemory& of(int64_t ranks) const { return entry(ranks).published; }
  // What the native engine allocates.
  const std::vector<model::ComponentWeight>& native(int64_t ranks) const { return entry(ranks).native; }

 private:
  struct Entry {
    model::RankMemory published;
    std::vector<model::ComponentWeight> native;
  };
  const Entry& entry(int64_t ranks) const;

  model::ModelConfig config_;
  std::shared_ptr<std::map<int64_t, Entry>> known_ = std::make_shared<std::map<int64_t, Entry>>();
};

struct PlanRequest {
  std::string profile;  // its file
  EngineKind engine = EngineKind::kVllm;
  model::ModelConfig model;
  RankWeights weights;
  int64_t ranks = 0;               // one per node
  std::vector<std::string> nodes;  // names by rank; may be empty
  const TransportTraits* transport = nullptr;
  // Host
  int64_t page_size = 4096;
  bool memory_saver = false;
  int64_t guard_gib = 0;
  int64_t startup_guard_gib = 0;
  int64_t service_memory_max_gib = 0;  // native; 0: no limit
  // Engine
  int64_t max_model_len = 0;
  int64_t max_num_seqs = 0;
  int64_t max_num_batched_tokens = 0;
  int64_t kv_bytes = 0;            // native: 0 is room for every sequence's whole context
  bool prefix_caching = false;     // native: checkpoints of the prefix cache are counted
  int64_t engram_cache_bytes = 0;  // native
  int64_t block_size = 0;          // vllm
  std::vector<int64_t> captured_sizes;
  int64_t drafts = 0;             // per stream and step; 0: no speculation
  bool adaptive = false;          // verification shortens with load
  bool carveout_weights = false;  // embedding and head lie in the display reserve
  bool packed_head = false;
};

// Faults have paths of the profile: what a plan needs and the profile does not state.
PlanRequest plan_request(const Site& site, const model::ModelConfig& model, Faults& faults);

}  // namespace spark::ops
