// What a slot of an attention list shows: where its record lies. attention_units.cuh reads and decodes it.
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
  return static_cast<uint32_t>(slot - a.window) < static_cast<uint32_t>(a.max_selected);
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

// The position that a slot of the window shows; negative: none.
__device__ __forceinline__ int window_position(const SparseAttentionArgs& a, const RowOfStep& row, int slot) {
  int p;
  if (a.order == WindowOrder::kOldestFirst) {
    p = row.end - a.window + 1 + slot;
  } else {
    // The largest position <= end that is `slot` modulo the window.
    int behind = (row.end - slot) % a.window;
    if (behind < 0) behind += a.window;
    p = row.end - behind;
  }
  return p < row.start || p > row.end ? -1 : p;
}

// The record of a slot behind window and selection: of a row of the step; null: none.
__device__ __forceinline__ const uint8_t* extra_record(const SparseAttentionArgs& a, const RowOfStep& row,
                                                       int slot) {
  const int source = row.first + slot - a.window - a.max_selected;
  if (a.extra == nullptr || source > row.last) return nullptr;
  return a.extra + static_cast<int64_t>(source) * window_record_bytes(a.width);
}

__device__ __forceinline__ Slot slot_at(const SparseAttentionArgs& a, const EarlyRecords& early,
                                        const RowOfStep& row, int slot, int entry) {
  if (slot < a.window) {
    const int p = window_position(a, row, slot);
    if (p < 0) return {nullptr, false, false};
    const bool complete = early.all_window || (early.window && p < a.step.position[row.first]);
    return {record_of(a.window_cache, row.sequence, p), false, complete};
  }
  slot -= a.window;
  if (slot < a.max_selected) {
    return chosen_slot(a, row.sequence, entry, early.selected);
  }
  return {extra_record(a, row, slot + a.window), false, false};
}

}  // namespace spark::engine::cuda
