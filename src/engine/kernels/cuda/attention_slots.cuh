// What the kernels of sparse attention share: the slots of a row's list, their records, and the values whose
// rounding every form must do alike.
#pragma once

#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/paged.cuh"

namespace spark::engine::cuda {

constexpr int kChunk = 64;  // slots: the unit of the contract's running maximum
constexpr int kHeads = 16;  // a row's heads that are computed together
constexpr int kMaxWidth = 512;
constexpr int kPad = 8;  // BF16 elements that keep ldmatrix rows in different banks
constexpr float kInitialMax = -1e30f;

struct AttentionParams {
  SparseAttentionArgs a;
  EarlyRecords early;
  int owned_units = 0;  // of a block, the last may have fewer
};

// What a slot shows.
struct Slot {
  const uint8_t* record;  // null: empty
  bool main;              // FP4 entry, else FP8 record
  bool early;             // complete when the kernel starts
};

__device__ __forceinline__ bool is_selected(const SparseAttentionArgs& a, int slot) {
  return slot >= a.window && slot < a.window + a.max_selected;
}

__device__ __forceinline__ Slot slot_at(const AttentionParams& params, int row, int slot) {
  const SparseAttentionArgs& a = params.a;
  const int sequence = a.step.sequence[row];
  if (slot < a.window) {
    const int end = a.window_end != nullptr ? a.window_end[row] : a.step.position[row];
    int p;
    if (a.order == WindowOrder::kOldestFirst) {
      p = end - a.window + 1 + slot;
    } else {
      // The largest position <= end that is `slot` modulo the window.
      int behind = (end - slot) % a.window;
      if (behind < 0) behind += a.window;
      p = end - behind;
    }
    const int start = a.step.window_start != nullptr ? max(a.step.window_start[row], 0) : 0;
    if (p < start || p > end) return {nullptr, false, false};
    const bool early =
        params.early.all_window || (params.early.window && p < a.step.position[a.step.first_row[row]]);
    return {record_of(a.window_cache, sequence, p), false, early};
  }
  slot -= a.window;
  if (slot < a.max_selected) {
    const int entry = a.main_cache.base != nullptr
                          ? __ldcg(a.selected + static_cast<int64_t>(row) * a.max_selected + slot)
                          : -1;
    if (entry < 0) return {nullptr, true, false};
    return {record_of(a.main_cache, sequence, entry), true, params.early.selected};
  }
  slot -= a.max_selected;
  const int source = a.step.first_row[row] + slot;
  if (a.extra == nullptr || source > a.step.last_row[row]) return {nullptr, false, false};
  return {a.extra + static_cast<int64_t>(source) * window_record_bytes(a.width), false, false};
}

__device__ __forceinline__ uint32_t load_word(const uint8_t* p, bool aligned) {
  if (aligned) return __ldcg(reinterpret_cast<const uint32_t*>(p));
  return __ldcg(p) | uint32_t{__ldcg(p + 1)} << 8 | uint32_t{__ldcg(p + 2)} << 16 |
         uint32_t{__ldcg(p + 3)} << 24;
}

// Sixteen channels of a record as loaded, before decoding. From L2: a line may hold a record that is read
// early and one that is not written yet.
struct RawChannels {
  uint4 codes;
  uint32_t scale;
};

__device__ __forceinline__ RawChannels load_channels(const Slot& slot, int width, int lane, bool aligned) {
  RawChannels raw = {make_uint4(0, 0, 0, 0), 0};
  if (slot.record == nullptr || lane * 16 >= width) return raw;
  if (slot.main) {
    const uint8_t* p = slot.record + lane * 8;
    if (aligned) {
      const uint2 w = __ldcg(reinterpret_cast<const uint2*>(p));
      raw.codes.x = w.x, raw.codes.y = w.y;
    } else {
      raw.codes.x = load_word(p, false), raw.codes.y = load_word(p + 4, false);
    }
    raw.scale = __ldcg(slot.record + width / 2 + lane);
  } else {
    const uint8_t* p = slot.record + lane * 16;
    if (aligned) {
      raw.codes = __ldcg(reinterpret_cast<const uint4*>(p));
    } else {
      raw.codes = make_uint4(load_word(p, false), load_word(p + 4, false), load_word(p + 8, false),
                             load_word(p + 12, false));
    }
    raw.scale = __ldcg(slot.record + width + lane / 2);
  }
  return raw;
}

__device__ __forceinline__ void decode_channels(const RawChannels& raw, bool main, uint16_t* to) {
  float v[16];
  float scale;
  if (main) {
    e2m1x8_to_float(raw.codes.x, v);
    e2m1x8_to_float(raw.codes.y, v + 8);
    scale = e4m3_to_float(raw.scale);
  } else {
    const uint32_t words[4] = {raw.codes.x, raw.codes.y, raw.codes.z, raw.codes.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 f = e4m3x2_to_float2(words[i / 2] >> (16 * (i & 1)));
      v[2 * i] = f.x, v[2 * i + 1] = f.y;
    }
    scale = ue8m0_to_float(raw.scale);
  }
  uint32_t packed[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) packed[i] = pack_bf16(v[2 * i] * scale, v[2 * i + 1] * scale);
  reinterpret_cast<uint4*>(to)[0] = make_uint4(packed[0], packed[1], packed[2], packed[3]);
  reinterpret_cast<uint4*>(to)[1] = make_uint4(packed[4], packed[5], packed[6], packed[7]);
}

// Two adjacent channels of a head's output, from the first of them on: divided, and rotated back where they
// rotate.
__device__ __forceinline__ uint32_t output_pair(float first, float second, float divisor, int channel,
                                                const SparseAttentionArgs& a, const float* angles) {
  const uint32_t out = pack_bf16(first / divisor, second / divisor);
  const int z = channel - (a.width - 2 * a.pairs);
  if (z < 0) return out;
  const float v = bf16_low(out), w = bf16_high(out);
  const float c = angles[z], n = -angles[z + 1];
  return pack_bf16(fmaf(v, c, -(w * n)), fmaf(w, c, v * n));
}

}  // namespace spark::engine::cuda
