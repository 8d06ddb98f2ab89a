// How the tensors are cut for tensor parallelism, and what every rank then holds and sends.
//
//   const RankSplit split = split_for(config, 3);      // throws Error when a width cannot be cut
//   split.groups;                                      // 3 output groups of 8 heads on each rank (one of the
//   nine is padding) const Slice slice = slice_of(tensor, split, 1);    // rank 1's part of the stored tensor
//   const auto bytes = rank_bytes(tensor_catalogue(config), split);
//
// Query heads are cut by whole output groups, experts by width, embedding and head by vocabulary rows, the
// Engram and the drafter's main projection by outputs; everything else is copied: the latent has no head
// dimension, and every rank must select exactly the same cache entries. Scale blocks of 32 are never cut.
// What does not divide is padded with zeros, except the expert width, which must divide.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "model/tensors.h"

namespace spark::model {

inline constexpr int64_t kMaxRanks = 8;

// Sizes of one rank, padding included. All ranks are alike.
struct RankSplit {
  int64_t ranks = 1;
  int64_t groups = 0;        // output groups
  int64_t heads = 0;         // query heads
  int64_t expert_width = 0;  // of routed and shared experts
  int64_t vocabulary = 0;    // rows of embedding and head
  int64_t engram_output = 0;
  int64_t main_output = 0;  // 0 without a drafter
  // The whole model's, without padding.
  int64_t all_groups = 0;
  int64_t all_expert_width = 0;
  int64_t all_vocabulary = 0;
  int64_t all_engram_output = 0;
  int64_t all_main_output = 0;

  int64_t padded_groups() const { return groups * ranks; }
  int64_t padded_heads() const { return heads * ranks; }
};

// Throws Error that lists every width which `ranks` (1 to kMaxRanks) cannot cut.
RankSplit split_for(const ModelConfig& config, int64_t ranks);

// The part [begin, end) of a stored tensor along `axis`; the rank's own tensor has `extent` there, zeros
// after the part.
struct Slice {
  int64_t axis = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t extent = 0;
};
Slice slice_of(const TensorEntry& tensor, const RankSplit& split, int64_t rank);

// Bytes that one rank holds, padding included.
struct ComponentBytes {
  Component component = Component::kEmbedding;
  int64_t split = 0;       // this rank's part of tensors that are cut
  int64_t replicated = 0;  // full copies
};
std::vector<ComponentBytes> rank_bytes(const std::vector<TensorEntry>& tensors, const RankSplit& split);

// Bytes of a rank in device memory: Engram tables stay on disk or in host memory, and the head is packed to
// 12 bits per weight (its few exceptions not counted).
struct RankMemory {
  int64_t total = 0;
  int64_t routed_experts = 0;  // backbone
  int64_t attention_split = 0;
  int64_t attention_replicated = 0;
  int64_t drafter = 0;
  int64_t vision = 0;
  int64_t embedding_and_head = 0;
};
RankMemory rank_memory(const std::vector<TensorEntry>& tensors, const RankSplit& split);

// Bytes per row that the collectives of one step move.
struct CollectivePayloads {
  int64_t embedding = 0;        // once: BF16 row of the owning rank
  int64_t sublayer = 0;         // each all-reduce: after the output projection and after the experts
  int64_t all_reduces = 0;      // of the backbone, per step
  int64_t engram_gather = 0;    // per Engram layer, all ranks together
  int64_t logits = 0;           // FP32 logits of a row, all ranks together
  int64_t greedy_per_rank = 0;  // or one (maximum, index) pair
};
CollectivePayloads collective_payloads(const ModelConfig& config);

}  // namespace spark::model
