#include <algorithm>
#include <bit>

#include "model/layer_plan.h"
#include "model/native_memory.h"

namespace spark::model {
namespace {

// As engine/kernels/cuda/plan has them.
constexpr int64_t kFewRows = 96;       // of a launch, but for a prompt's
constexpr int64_t kPromptRows = 2048;  // of a launch
constexpr int64_t kMixOutputs = 25, kMixColumns = 160;
constexpr int64_t kArgmaxBytes = 64 * 8;
constexpr int64_t kIndexBytes = int64_t{256} << 20;
constexpr int64_t kBf16Bytes = 2, kWordBytes = 4;

int64_t power_of_two(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(n, 1))));
}

// Rows of all buffers that a use has had when steps have grown to `rows`: 1 + 2 + 4 + ...
int64_t grown(int64_t rows) {
  return 2 * power_of_two(rows) - 1;
}

int64_t routed_bytes(const ModelConfig& c, const RankSplit& split, int64_t top_k, int64_t rows) {
  const int64_t stride = (split.expert_width + 127) / 128 * 128;
  const int64_t few = rows <= kFewRows / 3 * 2 ? grown(rows) : grown(kFewRows / 3 * 2) + kFewRows;
  const int64_t many = rows <= kFewRows ? 0 : grown(std::min(rows, kPromptRows)) - grown(kFewRows / 3 * 2);
  const int64_t item =
      16 + 4 * kWordBytes + kBf16Bytes * split.expert_width;  // work list, activations as words
  return top_k * ((few + many) * (kBf16Bytes * c.hidden_size + stride + stride / 32 + kWordBytes) +
                  few * item + many * 2 * kWordBytes);
}

int64_t index_bytes(const ModelConfig& c, const NativeSteps& steps) {
  int64_t most_scores = 0, most_blocks = 0;
  const auto add = [&](int64_t scores, int64_t blocks) {
    const int64_t fit = std::max<int64_t>(8, kIndexBytes / (kBf16Bytes * (scores + blocks)));
    const int64_t rows = std::min(steps.rows, fit);
    most_scores = std::max(most_scores, rows * scores);
    most_blocks = std::max(most_blocks, rows * blocks);
  };
  for (const LayerRole& role : make_layer_plan(c).layers) {
    if (!role.runs_indexer()) continue;
    // Sequences count as a power of two of positions, or the longest.
    for (int64_t length = 1; length < 2 * steps.context; length *= 2) {
      const int64_t entries = std::max<int64_t>(1, std::min(length, steps.context) / role.compress_ratio);
      add(entries, 0);
      if (role.is_candidate_source)
        add(entries, (entries + c.candidate_block_size - 1) / c.candidate_block_size);
    }
    if (role.uses_candidates) add(c.candidate_topk_blocks * c.candidate_block_size, 0);
  }
  if (most_scores == 0) return 0;
  return kBf16Bytes * (grown(most_scores) + (most_blocks == 0 ? 0 : grown(most_blocks)));
}

}  // namespace

int64_t native_scratch_bytes(const ModelConfig& c, const RankSplit& split, const NativeSteps& steps) {
  const bool has_drafter = c.num_nextn_predict_layers > 0;
  const int64_t drafts = has_drafter ? steps.sequences * c.dspark_block_size : 0;
  const int64_t all_rows = std::max(steps.rows, drafts);
  const int64_t mix = kWordBytes * kMixOutputs * ((c.stream_width() + kMixColumns - 1) / kMixColumns);
  const int64_t width = split.expert_width;
  const int64_t shared = (2 * kBf16Bytes + 1) * width + width / 32 + kBf16Bytes * c.hidden_size;
  int64_t bytes = grown(all_rows) * (mix + shared) + index_bytes(c, steps) +
                  routed_bytes(c, split, c.num_experts_per_tok, steps.rows);
  if (!has_drafter) return bytes;
  // Sizes that both have are allocated once.
  if (c.dspark_num_experts_per_tok != c.num_experts_per_tok)
    bytes += routed_bytes(c, split, c.dspark_num_experts_per_tok, drafts);
  return bytes +
         grown(drafts) * (kBf16Bytes * c.dspark_markov_rank + kWordBytes * c.vocab_size + kArgmaxBytes);
}

}  // namespace spark::model
