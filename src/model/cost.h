// What a step costs: bytes of the caches, bytes that must move and operations that must be done.
//
//   const CacheCost cache = cache_cost(config);            // 528, 288, 68 bytes a record; 890 bytes a token
//   const CostModel cost(config, split_for(config, 4));
//   const StepBytes bytes = cost.step({.streams = 8, .rows_per_stream = 6, .context = 32768});
//   double floor_s = (bytes.target + bytes.draft) / bytes_per_second;
//
// These are floors: every weight that a step needs is read once, activations and collectives are left out,
// and rows are assumed to choose their experts independently (rows of one stream share experts, so real
// traffic is lower).
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "model/layer_plan.h"
#include "model/split.h"

namespace spark::model {

struct CacheCost {
  int64_t window_record = 0;       // E4M3 channels, one scale byte per 32
  int64_t main_record = 0;         // E2M1 channels, one scale byte per 16
  int64_t index_record = 0;        // E2M1 channels, one scale byte per 32
  double growth_per_token = 0;     // bytes of main and index records over all compressed caches
  int64_t fixed_per_sequence = 0;  // windows of all layers, open pairs of the ratio-2 compressors
};
CacheCost cache_cost(const ModelConfig& config);

// What the native engine allocates for its caches: blocks of kNativeBlockTokens positions in four groups
// (window records of the backbone, of the drafter, main records, index keys), the open pairs of ratio-2
// sources and a block table for each group. engine/cache takes its sizes from here (a test compares what it
// allocates).
inline constexpr int64_t kNativeBlockTokens = 256;
inline constexpr int64_t kNativeMaxRollback = 31;
inline constexpr int64_t kNativeCacheGroups = 4;
// Checkpoints of the prefix cache when no budget is given, for each sequence.
inline constexpr int64_t kNativeCheckpoints = 8;

struct NativeCacheLimits {
  int64_t sequences = 1;
  int64_t context = 4096;   // tokens of one sequence
  int64_t step_rows = 512;  // rows of one step, all sequences together
  // Bytes of all of it; 0: room for every sequence's whole context. With a budget sequences share what there
  // is.
  int64_t budget_bytes = 0;
  bool prefix_caching = false;
};

// What the sizes depend on beside the limits.
struct NativeCacheCosts {
  int64_t window = 0;              // positions
  int64_t window_block_bytes = 0;  // backbone and drafter
  int64_t whole_block_bytes = 0;   // main and index records of all sources; 0: there are none
  int64_t fixed_bytes = 0;         // open pairs and tables
};

struct NativeCacheBlocks {
  int64_t window = 0;  // of each window group: what running sequences need at most, then checkpoints
  int64_t whole = 0;   // of each whole group
};

// The smallest budget is one with a block for one sequence beside the windows; Error for a smaller one. A
// budget gives a quarter of what is beyond windows to checkpoints of the prefix cache, the rest to whole
// blocks.
NativeCacheBlocks native_cache_blocks(const NativeCacheLimits& limits, const NativeCacheCosts& costs);

struct NativeCacheBytes {
  int64_t window = 0;
  int64_t global = 0;  // main and index records
  int64_t pairs = 0;
  int64_t tables = 0;

  int64_t total() const { return window + global + pairs + tables; }
};
NativeCacheBytes native_cache_bytes(const ModelConfig& config, const NativeCacheLimits& limits);

// Distinct experts that `rows` independent rows choose, `per_row` of `experts` each.
double expected_experts(int64_t experts, int64_t per_row, double rows);

struct StepShape {
  int64_t streams = 1;
  int64_t rows_per_stream = 1;  // 1: plain decode; 1 + drafts: verification
  int64_t context = 0;          // tokens before the step, per stream
  // Rows share experts: r rows choose as many as r^this independent rows would. 1: independent.
  double routing_exponent = 1;

  int64_t rows() const { return streams * rows_per_stream; }
};

// Bytes that one rank reads for one layer.
struct LayerBytes {
  double replicated = 0;  // weights every rank has
  double split = 0;       // its part of the others
  double routed = 0;      // expected experts
  double kv = 0;          // window records per stream, selected records per row
  double index_keys = 0;  // per stream, or per row where candidates are gathered

  double total() const { return replicated + split + routed + kv + index_keys; }
};

struct StepBytes {
  double target = 0;  // backbone and packed head
  double draft = 0;   // drafter for its block of drafts per stream, with packed head and Markov head
};

class CostModel {
 public:
  CostModel(const ModelConfig& config, const RankSplit& split);

  LayerBytes layer(int64_t layer, const StepShape& shape) const;
  // `draft` is 0 for a model without drafter. Drafter rows: dspark_block_size per stream.
  StepBytes step(const StepShape& shape) const;

 private:
  struct Weights {
    double replicated = 0;
    double split = 0;
    double routed = 0;  // all experts
  };

  ModelConfig config_;
  LayerPlan plan_;
  CacheCost cache_;
  std::vector<Weights> layers_;
  Weights drafter_;         // all drafter layers and the main projection
  double packed_head_ = 0;  // 12 bits per weight
  double markov_head_ = 0;
};

// Operations of one row, a multiply-add counted as two.
struct LayerFlops {
  double projections = 0;
  double core = 0;
  double experts = 0;
  double router = 0;
  double streams = 0;
  double compressor = 0;
  double index_queries = 0;
  double index_scores = 0;
  double engram = 0;

  double total() const {
    return projections + core + experts + router + streams + compressor + index_queries + index_scores +
           engram;
  }
};
LayerFlops layer_flops(const ModelConfig& config, const LayerRole& role, int64_t context);
double head_flops(const ModelConfig& config);
double drafter_row_flops(const ModelConfig& config);  // without heads

}  // namespace spark::model
