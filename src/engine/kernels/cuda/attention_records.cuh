// What a slot of an attention list shows: where its record lies, and how it is read and decoded.
#pragma once

#include "engine/kernels/attention.h"
#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/paged.cuh"

namespace spark::engine::cuda {

// What a slot shows.
struct Slot {
  const uint8_t* record;  // null: empty
  bool main;              // FP4 entry, else FP8 record
  bool early;             // complete when the kernel starts
};

__device__ __forceinline__ bool is_selected(const SparseAttentionArgs& a, int slot) {
  return slot >= a.window && slot < a.window + a.max_selected;
}

// What the step says of a row, read at once.
struct RowOfStep {
  int index, sequence, first, last;
  int start, end;  // of its window
};

__device__ __forceinline__ RowOfStep row_of_step(const SparseAttentionArgs& a, int row) {
  return {row,
          a.step.sequence[row],
          a.step.first_row[row],
          a.step.last_row[row],
          a.step.window_start != nullptr ? max(a.step.window_start[row], 0) : 0,
          a.window_end != nullptr ? a.window_end[row] : a.step.position[row]};
}

// The entry that a slot of the selection names; negative: none.
__device__ __forceinline__ int selected_entry(const SparseAttentionArgs& a, int row, int slot) {
  if (a.main_cache.base == nullptr) return -1;
  return __ldcg(a.selected + static_cast<int64_t>(row) * a.max_selected + slot - a.window);
}

__device__ __forceinline__ Slot chosen_slot(const SparseAttentionArgs& a, int sequence, int entry,
                                            bool early) {
  if (entry < 0) return {nullptr, true, false};
  return {record_of(a.main_cache, sequence, entry), true, early};
}

__device__ __forceinline__ Slot slot_at(const SparseAttentionArgs& a, const EarlyRecords& early,
                                        const RowOfStep& row, int slot, int entry) {
  if (slot < a.window) {
    int p;
    if (a.order == WindowOrder::kOldestFirst) {
      p = row.end - a.window + 1 + slot;
    } else {
      // The largest position <= end that is `slot` modulo the window.
      int behind = (row.end - slot) % a.window;
      if (behind < 0) behind += a.window;
      p = row.end - behind;
    }
    if (p < row.start || p > row.end) return {nullptr, false, false};
    const bool complete = early.all_window || (early.window && p < a.step.position[row.first]);
    return {record_of(a.window_cache, row.sequence, p), false, complete};
  }
  slot -= a.window;
  if (slot < a.max_selected) {
    return chosen_slot(a, row.sequence, entry, early.selected);
  }
  slot -= a.max_selected;
  const int source = row.first + slot;
  if (a.extra == nullptr || source > row.last) return {nullptr, false, false};
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

}  // namespace spark::engine::cuda
