// Scores of index keys for one row, and the exact choice of the best.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/kernels/cpu/buffer.h"
#include "engine/kernels/cpu/tile_product.h"

namespace spark::engine::cpu {

// One row's query, decoded: heads as rows of a product.
struct IndexQuery {
  const RowView* heads = nullptr;
  const float* weight = nullptr;  // BF16 values of round_bf16(head_weight * factor), [count]
  int count = 0;
  int64_t width = 0;
};

// Scores (as BF16 bits) of up to 32 key records: round_bf16(sum over heads in order of
// round_bf16(max(0, round_bf16(q_h . k)) * w_h)). `out` has room for 32.
void score_keys(const IndexQuery& query, const uint8_t* const* records, int count, Buffer& scratch,
                uint16_t* out);

// An order-preserving key of a BF16 score: a larger score has a larger key, +0 and -0 have the same. Key 0 is
// "takes no part" (minus infinity).
uint16_t score_key(uint16_t bf16);
constexpr uint16_t kAlwaysKept = 0xFFFF;

// The positions of the `count` largest keys (ties: lowest position), ascending, without those of key 0;
// writes -1 after them up to `capacity`. count <= capacity.
void select_best(std::span<const uint16_t> keys, int64_t count, int64_t capacity, int32_t* out);

}  // namespace spark::engine::cpu
