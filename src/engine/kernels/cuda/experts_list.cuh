// The work list of few rows, made by every block of the streaming kernel for itself.
#pragma once

#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/plan/expert_schedule.h"

namespace spark::engine::cuda {

// What every warp knows of an item.
struct alignas(8) StreamItem {
  uint16_t expert;
  uint16_t rows;
  uint16_t first;            // in the sorted assignments
  uint8_t row[kExpertRows];  // of the launch; the first one's where there is none
};
static_assert(sizeof(StreamItem) == 8);

// In shared memory.
struct StreamList {
  StreamItem* items;      // [rows * top_k]
  int32_t* destinations;  // [rows * top_k]: of the sorted assignments
  float* weights;         // [rows * top_k][kExpertRows]
};

struct ListInputs {
  const int32_t* ids;
  const int32_t* sequence;
  const float* weights;
  int rows;
  int top_k;
  SmallDivisor by_top_k;
  int experts;
};

constexpr int kMaxListed = 512;  // assignments

// Sorts the assignments by expert and forms items of them: a warp compares one assignment with 32 others at a
// time. Returns the number of items; `scratch` holds kMaxListed * 4 words. Whole blocks must call.
__device__ __forceinline__ int list_experts(const ListInputs& in, const StreamList& list, int32_t* scratch) {
  int32_t* const chosen = scratch;
  int32_t* const leads = scratch + kMaxListed;  // the expert, where an item begins
  uint32_t* const places = reinterpret_cast<uint32_t*>(scratch + 2 * kMaxListed);
  float* const weights = reinterpret_cast<float*>(scratch + 3 * kMaxListed);
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5), warps = static_cast<int>(blockDim.x >> 5);
  const int count = in.rows * in.top_k;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const int expert = in.ids[i], sequence = in.sequence[in.by_top_k.quotient(static_cast<uint32_t>(i))];
    weights[i] = in.weights[i];
    chosen[i] = sequence >= 0 && expert < in.experts ? expert : -1;
  }
  __syncthreads();
  for (int i = warp; i < count; i += warps) {
    const int expert = chosen[i];
    // Assignments of lower experts, of this one, and of this one with a lower number.
    int lower = 0, same = 0, before = 0;
    for (int j0 = 0; j0 < count; j0 += 32) {
      const int j = j0 + lane;
      const int other = j < count ? chosen[j] : -1;
      const uint32_t equal = __ballot_sync(~0u, other >= 0 && other == expert);
      lower += __popc(__ballot_sync(~0u, other >= 0 && other < expert));
      same += __popc(equal);
      before += __popc(equal & __ballot_sync(~0u, j < i));
    }
    if (lane == 0) {
      leads[i] = expert >= 0 && before % kExpertRows == 0 ? expert : -1;
      places[i] = static_cast<uint32_t>(lower) << 20 | static_cast<uint32_t>(same) << 10 |
                  static_cast<uint32_t>(before);
    }
  }
  __syncthreads();
  int items = 0;
  for (int j0 = 0; j0 < count; j0 += 32)
    items += __popc(__ballot_sync(~0u, j0 + lane < count && leads[j0 + lane] >= 0));
  for (int i = warp; i < count; i += warps) {
    const int expert = chosen[i];
    if (expert < 0) continue;
    int item = 0;
    for (int j0 = 0; j0 < count; j0 += 32) {
      const int lead = j0 + lane < count ? leads[j0 + lane] : -1;
      item += __popc(__ballot_sync(~0u, lead >= 0 && lead < expert));
    }
    const auto row = static_cast<int>(in.by_top_k.quotient(static_cast<uint32_t>(i)));
    const int rank = __popc(__ballot_sync(~0u, lane < in.top_k && chosen[row * in.top_k + lane] < expert));
    if (lane != 0) continue;
    const int lower = static_cast<int>(places[i] >> 20), same = static_cast<int>(places[i] >> 10 & 1023u),
              before = static_cast<int>(places[i] & 1023u);
    item += before / kExpertRows;
    const int slot = before % kExpertRows;
    StreamItem& to = list.items[item];
    if (slot == 0) {
      const int rows = min(kExpertRows, same - before);
      to.expert = static_cast<uint16_t>(expert);
      to.rows = static_cast<uint16_t>(rows);
      to.first = static_cast<uint16_t>(lower + before);
      for (int r = rows; r < kExpertRows; ++r) to.row[r] = static_cast<uint8_t>(row);
    }
    to.row[slot] = static_cast<uint8_t>(row);
    list.weights[item * kExpertRows + slot] = weights[i];
    list.destinations[lower + before] = row * in.top_k + rank;
  }
  __syncthreads();
  return items;
}

// The same from the workspace, where launch_expert_plan left it.
__device__ __forceinline__ int read_list(const ExpertWorkspace& work, const StreamList& list, int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const ExpertItem item = work.items[i];
    const int2 rows = reinterpret_cast<const int2*>(work.item_row)[i];
    list.items[i] = {static_cast<uint16_t>(item.expert),
                     static_cast<uint16_t>(item.count),
                     static_cast<uint16_t>(item.first),
                     {static_cast<uint8_t>(rows.x), static_cast<uint8_t>(rows.y < 0 ? rows.x : rows.y)}};
    list.destinations[i] = work.destination[i];
    for (int r = 0; r < kExpertRows; ++r)
      list.weights[i * kExpertRows + r] = work.item_weight[i * kExpertRows + r];
  }
  const int items = *work.item_count;
  __syncthreads();
  return items;
}

}  // namespace spark::engine::cuda
