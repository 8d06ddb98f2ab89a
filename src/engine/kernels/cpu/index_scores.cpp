#include "engine/kernels/cpu/index_scores.h"

#include <algorithm>
#include <array>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/index_scores.cpp"
// The order matters: the choice of targets, the loop over them, then highway.h.
// clang-format off
#include "engine/kernels/cpu/simd_targets.h"
#include <hwy/foreach_target.h>
#include "engine/kernels/cpu/simd_inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace spark::engine::cpu::HWY_NAMESPACE {

// z: [heads][32] products of 32 keys.
void weigh_heads_simd(const float* z, const float* weight, int heads, uint16_t* out) {
  for (size_t lane = 0; lane < kTile; lane += kLanes) {
    VF sum = zero();
    for (int h = 0; h < heads; ++h) {
      const VF product = round_bf16(load(z + h * kTile + lane));
      const VF positive = hn::IfThenElse(hn::Lt(product, zero()), zero(), product);
      sum = hn::Add(sum, round_bf16(hn::Mul(positive, set(weight[h]))));
    }
    store_bf16(sum, out + lane);
  }
}

}  // namespace spark::engine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spark::engine::cpu {
namespace {

HWY_EXPORT(weigh_heads_simd);

// Puts the records of 32 keys side by side, as a tile of FP4 weights with the keys as outputs.
void gather_tile(const uint8_t* const* records, int count, int64_t width, uint32_t* words, uint8_t* scales) {
  const int64_t groups = width / 8;
  const int64_t blocks = width / kBlock;
  for (int n = 0; n < kTile; ++n) {
    const uint8_t* record = records[std::min(n, count - 1)];
    for (int64_t g = 0; g < groups; ++g) std::memcpy(&words[g * kTile + n], record + 4 * g, 4);
    for (int64_t b = 0; b < blocks; ++b) scales[b * kTile + n] = record[width / 2 + b];
  }
}

// Where the best `count` keys end.
struct Cut {
  uint32_t at = 0;  // larger keys are taken; of equal ones the first `partial`
  int64_t partial = 0;
};

// Two counting passes: over the high bytes, then over the low bytes inside the deciding bucket.
Cut find_cut(std::span<const uint16_t> keys, int64_t count) {
  std::array<int64_t, 256> high{};
  for (const uint16_t key : keys) ++high[key >> 8];
  int bucket = 255;
  int64_t left = count;
  while (bucket > 0 && high[static_cast<size_t>(bucket)] < left) left -= high[static_cast<size_t>(bucket--)];
  std::array<int64_t, 256> low{};
  for (const uint16_t key : keys) {
    if (key >> 8 == bucket) ++low[key & 0xFF];
  }
  int value = 255;
  while (value > 0 && low[static_cast<size_t>(value)] < left) left -= low[static_cast<size_t>(value--)];
  const auto at = static_cast<uint32_t>(bucket * 256 + value);
  return {at, left};
}

}  // namespace

void score_keys(const IndexQuery& query, const uint8_t* const* records, int count, Buffer& scratch,
                uint16_t* out) {
  const int64_t words = query.width / 8 * kTile;
  const int64_t blocks = query.width / kBlock;
  const int64_t products = padded_rows(query.count) * kTile;
  auto* z = scratch.get<float>(static_cast<size_t>(products + words + blocks * kTile / 4));
  auto* packed = reinterpret_cast<uint32_t*>(z + products);
  auto* scales = reinterpret_cast<uint8_t*>(packed + words);
  gather_tile(records, count, query.width, packed, scales);
  tile_product_fp4(packed, scales, blocks, query.heads, query.count, z);
  HWY_DYNAMIC_DISPATCH(weigh_heads_simd)(z, query.weight, query.count, out);
}

uint16_t score_key(uint16_t bf16) {
  if ((bf16 & 0x7FFFu) == 0) return 0x8000u;
  if (bf16 == 0xFF80u) return 0;
  const uint32_t flipped = (bf16 & 0x8000u) != 0 ? ~static_cast<uint32_t>(bf16) : bf16 | 0x8000u;
  return static_cast<uint16_t>(flipped & 0xFFFFu);
}

void select_best(std::span<const uint16_t> keys, int64_t count, int64_t capacity, int32_t* out) {
  const auto n = static_cast<int64_t>(keys.size());
  int64_t filled = 0;
  if (n <= count) {
    for (int64_t j = 0; j < n; ++j) {
      if (keys[static_cast<size_t>(j)] != 0) out[filled++] = static_cast<int32_t>(j);
    }
  } else if (count > 0) {
    Cut cut = find_cut(keys, count);
    if (cut.at == 0) cut.partial = 0;
    for (int64_t j = 0; j < n; ++j) {
      const uint32_t key = keys[static_cast<size_t>(j)];
      const bool taken = key > cut.at || (key == cut.at && cut.partial > 0);
      if (!taken) continue;
      if (key == cut.at) --cut.partial;
      out[filled++] = static_cast<int32_t>(j);
    }
  }
  std::fill(out + filled, out + capacity, -1);
}

}  // namespace spark::engine::cpu
#endif
