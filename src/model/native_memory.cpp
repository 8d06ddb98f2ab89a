#include "model/native_memory.h"

#include <algorithm>
#include <array>

namespace spark::model {
namespace {

constexpr int64_t kBf16 = 2, kFp32 = 4;

// E4M3 or E2M1 codes, one scale for every 32.
int64_t quantised(int64_t columns) {
  return columns + columns / 32;
}

// Bytes of a row in the arrays that every block needs: streams, mixes, sublayer inputs and outputs, queries
// and heads, the router.
int64_t block_row(const ModelConfig& c, const RankSplit& split) {
  const int64_t heads = split.heads * c.head_dim;
  const int64_t low = split.groups * c.o_lora_rank;
  const int64_t mix = kFp32 * c.hc_mult * (2 + c.hc_mult);
  const int64_t router = kFp32 * (std::max(c.n_routed_experts, c.dspark_n_routed_experts) +
                                  2 * std::max(c.num_experts_per_tok, c.dspark_num_experts_per_tok));
  return kBf16 * (c.stream_width() + 2 * c.hidden_size + c.q_lora_rank + 2 * c.head_dim + 2 * heads + low) +
         2 * mix + quantised(c.hidden_size) + quantised(c.q_lora_rank) + quantised(low) + router;
}

int64_t index_row(const ModelConfig& c) {
  const int64_t query = c.index_width();
  return kFp32 * (2 * c.head_dim + c.index_topk + c.candidate_topk_blocks) +
         kBf16 * (2 * c.head_dim + 2 * c.index_head_dim + query + c.index_n_heads) + query / 2 + query / 32;
}

int64_t engram_row(const ModelConfig& c, const RankSplit& split) {
  if (c.engram_layer_ids.empty()) return 0;
  const int64_t width = c.engram_width();
  return kBf16 * (width + split.engram_output + (split.ranks > 1 ? c.engram_output() : 0)) +
         quantised(width) + static_cast<int64_t>(c.engram_layer_ids.size()) * quantised(width);
}

}  // namespace

bool native_loads(const TensorEntry& tensor) {
  return tensor.component != Component::kEngramTable && tensor.component != Component::kVision;
}

int64_t native_gpu_bytes(const TensorEntry& tensor, const RankSplit& split) {
  const Slice slice = slice_of(tensor, split, 0);
  const int64_t bytes = tensor.bytes() / tensor.shape[slice.axis] * slice.extent;
  const int64_t rows = slice.axis == 0 ? slice.extent : tensor.shape[0];
  const bool packs = tensor.shape.size() == 2 && tensor.dtype == Dtype::kBf16 &&
                     rows >= kNativePackedFromRows && tensor.shape[1] % 32 == 0;
  return packs ? bytes / 4 * 3 : bytes;
}

std::vector<ComponentWeight> native_gpu_weights(const std::vector<TensorEntry>& tensors,
                                                const RankSplit& split) {
  std::array<int64_t, kComponents> totals{};
  for (const TensorEntry& tensor : tensors) {
    if (native_loads(tensor))
      totals[static_cast<size_t>(tensor.component)] += native_gpu_bytes(tensor, split);
  }
  std::vector<ComponentWeight> weights;
  for (size_t i = 0; i < totals.size(); ++i) {
    if (totals[i] > 0) weights.push_back({static_cast<Component>(i), totals[i]});
  }
  return weights;
}

int64_t native_engram_cache_bytes(const ModelConfig& config, int64_t budget_bytes) {
  const auto tables = std::max<int64_t>(1, static_cast<int64_t>(config.engram_layer_ids.size()));
  const int64_t record = config.engram_head_dim * 33 / 32;  // E4M3 and a scale for every 32
  int64_t bytes = 0;
  for (const int64_t rows : config.engram_num_embeddings)
    bytes += std::min(budget_bytes / tables, rows * record);
  return config.engram_layer_ids.empty() ? 0 : bytes;
}

int64_t native_step_bytes(const ModelConfig& c, const RankSplit& split, int64_t rows, int64_t sequences) {
  constexpr int64_t kPositions = 2 * 9 * 4;  // where rows are and what they belong to
  constexpr int64_t kLogitRows = 64;         // at a time
  const bool gathers = split.ranks > 1;
  const int64_t logits = kFp32 * (split.vocabulary + (gathers ? c.vocab_size : 0)) + kBf16 * c.hidden_size;
  const int64_t row = block_row(c, split) + index_row(c) + engram_row(c, split) + kPositions +
                      3 * kFp32 * c.qk_rope_head_dim + kBf16 * c.main_proj_input();
  const int64_t bytes = rows * row + std::min(rows, kLogitRows) * logits;
  if (c.num_nextn_predict_layers == 0) return bytes;
  const int64_t drafts = sequences * c.dspark_block_size;
  return bytes + drafts * (block_row(c, split) + logits) +
         rows * (quantised(c.main_proj_input()) + quantised(c.hidden_size) +
                 kBf16 * (split.main_output + (gathers ? 2 : 1) * c.hidden_size + 2 * c.head_dim));
}

}  // namespace spark::model
