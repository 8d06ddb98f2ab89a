#include "engine/forward/scratch.h"

#include <algorithm>

namespace spark::engine {
namespace {

MixBuffers allocate_mix(Backend& backend, int64_t rows, int64_t streams) {
  return {.pre = allocate_array<float>(backend, rows * streams),
          .post = allocate_array<float>(backend, rows * streams),
          .comb = allocate_array<float>(backend, rows * streams * streams)};
}

}  // namespace

QuantisedRows allocate_quantised(Backend& backend, int64_t rows, int64_t cols) {
  return {.codes = allocate_array<uint8_t>(backend, rows * cols),
          .scales = allocate_array<uint8_t>(backend, rows * cols / 32)};
}

BlockScratch allocate_block_scratch(Backend& backend, const model::ModelConfig& config,
                                    const model::RankSplit& split, int64_t rows, CollectiveDtype sums) {
  const bool is_exact = sums == CollectiveDtype::kFp64;
  const int64_t hidden = config.hidden_size;
  const int64_t q_rank = config.q_lora_rank;
  const int64_t query = split.heads * config.head_dim;
  const int64_t o_low = split.groups * config.o_lora_rank;
  const int64_t experts = std::max(config.n_routed_experts, config.dspark_n_routed_experts);
  const int64_t top_k = std::max(config.num_experts_per_tok, config.dspark_num_experts_per_tok);
  const int64_t unrounded = std::max(rows, std::min<int64_t>(rows, kExpertSlice) * (top_k + 1));
  return {.h = allocate_array<uint16_t>(backend, rows * config.stream_width()),
          .attention_mix = allocate_mix(backend, rows, config.hc_mult),
          .expert_mix = allocate_mix(backend, rows, config.hc_mult),
          .x = allocate_array<uint16_t>(backend, rows * hidden),
          .x_q = allocate_quantised(backend, rows, hidden),
          .y = allocate_array<uint16_t>(backend, rows * hidden),
          .y_f64 = is_exact ? allocate_array<double>(backend, unrounded * hidden) : nullptr,
          .q_kv = allocate_array<uint16_t>(backend, rows * (q_rank + config.head_dim)),
          .qr_q = allocate_quantised(backend, rows, q_rank),
          .q = allocate_array<uint16_t>(backend, rows * query),
          .kv = allocate_array<uint16_t>(backend, rows * config.head_dim),
          .o = allocate_array<uint16_t>(backend, rows * query),
          .o_low = allocate_array<uint16_t>(backend, rows * o_low),
          .o_low_q = allocate_quantised(backend, rows, o_low),
          .router_logits = allocate_array<float>(backend, rows * experts),
          .expert_ids = allocate_array<int32_t>(backend, rows * top_k),
          .expert_weights = allocate_array<float>(backend, rows * top_k)};
}

IndexScratch allocate_index_scratch(Backend& backend, const model::ModelConfig& config, int64_t rows) {
  const int64_t width = config.head_dim;
  const int64_t key = config.index_head_dim;
  const int64_t query = config.index_width();
  return {.kv = allocate_array<float>(backend, rows * width),
          .score = allocate_array<float>(backend, rows * width),
          .pooled = allocate_array<uint16_t>(backend, rows * width),
          .latent = allocate_array<uint16_t>(backend, rows * width),
          .key_raw = allocate_array<uint16_t>(backend, rows * key),
          .key = allocate_array<uint16_t>(backend, rows * key),
          .q = allocate_array<uint16_t>(backend, rows * query),
          .q_packed = allocate_array<uint8_t>(backend, rows * query / 2),
          .q_scales = allocate_array<uint8_t>(backend, rows * query / 32),
          .head_weight = allocate_array<uint16_t>(backend, rows * config.index_n_heads),
          .selected = allocate_array<int32_t>(backend, rows * config.index_topk),
          .candidate_blocks = allocate_array<int32_t>(backend, rows * config.candidate_topk_blocks)};
}

EngramScratch allocate_engram_scratch(Backend& backend, const model::ModelConfig& config,
                                      const model::RankSplit& split, int64_t rows) {
  EngramScratch scratch{.x = allocate_array<uint16_t>(backend, rows * config.engram_width()),
                        .x_q = allocate_quantised(backend, rows, config.engram_width()),
                        .part = allocate_array<uint16_t>(backend, rows * split.engram_output)};
  scratch.kv =
      split.ranks == 1 ? scratch.part : allocate_array<uint16_t>(backend, rows * config.engram_output());
  return scratch;
}

}  // namespace spark::engine
