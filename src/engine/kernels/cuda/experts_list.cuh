// The work list of few rows, made by every block of the streaming kernel for itself. Items come in the order
// of their first assignments (row, slot), so the first of them are known from a few ids, without a sort.
#pragma once

#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/plan/expert_schedule.h"

namespace spark::engine::cuda {

// What every warp knows of an item.
struct alignas(16) StreamItem {
  uint16_t expert;
  uint16_t rows;
  uint16_t place[kExpertRows];  // of its assignments: row * top_k + rank among the row's experts
  uint8_t row[kExpertRows];     // of the launch; the first one's where there is none

  // Without an index, which would move the item into memory.
  __device__ __forceinline__ int place_of(int r) const { return r != 0 ? place[1] : place[0]; }
};
static_assert(sizeof(StreamItem) == 16 && kExpertRows == 2);

// In shared memory.
struct StreamList {
  StreamItem* items;  // [rows * top_k]
  float* weights;     // [rows * top_k][kExpertRows]
  int32_t* count;     // of the items
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

constexpr int kMaxListed = 512;         // assignments
constexpr int kMaxListedExperts = 512;  // a power of two
constexpr int kMaxListedRows = 32;      // one bit each

// Memory for the making of a list; it may be used for something else afterwards.
struct ListScratch {
  int32_t experts[kMaxListed];  // of the assignments, -1: none
  float weights[kMaxListed];
  uint32_t rows[kMaxListedExperts];  // that chose the expert; zero at first
};

// An assignment whose expert is read later, when it has been chosen. What needs no wait comes first: where
// the number lies, and whether the row lives. That read has no condition then, so that it waits for no other
// one.
struct Assignment {
  int place;         // the last one's where there is no such assignment
  int32_t sequence;  // of its row; negative: none

  __device__ __forceinline__ Assignment(const ListInputs& in, int i) {
    const int last = in.rows * in.top_k - 1;
    place = min(i, last);
    sequence = in.sequence[in.by_top_k.quotient(static_cast<uint32_t>(place))];
    if (i > last) sequence = -1;
  }
  // The expert, -1: none, of the number that was read.
  __device__ __forceinline__ int expert(const ListInputs& in, int32_t chosen) const {
    return sequence >= 0 && chosen < in.experts ? chosen : -1;
  }
};

// The first assignment of item `item` where the first 32 assignments tell, else -1: `expert` is of assignment
// `lane`. Whole warps must call.
__device__ __forceinline__ int assignment_of_item(int expert, uint32_t item) {
  const uint32_t below = (1u << (threadIdx.x & 31)) - 1;
  uint32_t same = __ballot_sync(~0u, expert >= 0);
#pragma unroll
  for (int bit = 1; bit < kMaxListedExperts; bit *= 2) {
    const bool mine = (expert & bit) != 0;
    const uint32_t all = __ballot_sync(~0u, mine);
    same &= mine ? all : ~all;
  }
  const bool leads = expert >= 0 && __popc(same & below) % kExpertRows == 0;
  const uint32_t leaders = __ballot_sync(~0u, leads);
  const uint32_t owner = __ballot_sync(~0u, leads && static_cast<uint32_t>(__popc(leaders & below)) == item);
  return __ffs(owner) - 1;
}

// Makes the list. Thread i brings assignment i; whole blocks must call, with as many threads as there may be
// assignments.
__device__ __forceinline__ void list_experts(const ListInputs& in, int expert, float weight,
                                             const StreamList& list, ListScratch& scratch) {
  const int i = static_cast<int>(threadIdx.x), lane = i & 31, first = i - lane;
  const int count = in.rows * in.top_k;
  if (i < count) {
    scratch.experts[i] = expert;
    scratch.weights[i] = weight;
    const uint32_t row = in.by_top_k.quotient(static_cast<uint32_t>(i));
    if (expert >= 0) atomicOr(scratch.rows + expert, 1u << row);
  }
  __syncthreads();
  if (first < count) {
    // An item begins with every second row of an expert.
    int item = 0, row = 0;
    uint32_t rows = 0, leaders = 0;  // of this thread's assignment
    bool leads = false;
    for (int j0 = 0; j0 <= first; j0 += 32) {
      item += __popc(leaders);
      const int j = j0 + lane;
      const int other = j < count ? scratch.experts[j] : -1;
      rows = other >= 0 ? scratch.rows[other] : 0u;
      row = static_cast<int>(in.by_top_k.quotient(static_cast<uint32_t>(j)));
      leads = other >= 0 && __popc(rows & ((1u << row) - 1)) % kExpertRows == 0;
      leaders = __ballot_sync(~0u, leads);
    }
    if (i == first && first + 32 >= count) *list.count = item + __popc(leaders);
    item += __popc(leaders & ((1u << lane) - 1));
    if (leads) {
      const uint32_t later = rows & ~((2u << row) - 1);
      const int rows_here = later != 0 ? 2 : 1;
      const int second = later != 0 ? __ffs(later) - 1 : row;
      int rank = 0, second_rank = 0;
      float second_weight = 0.0f;
      for (int k = 0; k < in.top_k; ++k) {
        rank += scratch.experts[row * in.top_k + k] < expert;
        const int other = scratch.experts[second * in.top_k + k];
        second_rank += other < expert;
        if (other == expert) second_weight = scratch.weights[second * in.top_k + k];
      }
      list.items[item] = {.expert = static_cast<uint16_t>(expert),
                          .rows = static_cast<uint16_t>(rows_here),
                          .place = {static_cast<uint16_t>(row * in.top_k + rank),
                                    static_cast<uint16_t>(second * in.top_k + second_rank)},
                          .row = {static_cast<uint8_t>(row), static_cast<uint8_t>(second)}};
      list.weights[item * kExpertRows] = weight;
      list.weights[item * kExpertRows + 1] = second_weight;
    }
  }
  __syncthreads();
}

// The same from the workspace, where launch_expert_plan left it; no read waits for another one. `scratch`
// holds `count` words, the most items that there may be.
__device__ __forceinline__ void read_list(const ExpertWorkspace& work, const StreamList& list,
                                          int32_t* scratch, int count) {
  const int threads = static_cast<int>(blockDim.x);
  const int items = *work.item_count;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) {
    scratch[i] = work.destination[i];
    const ExpertItem item = work.items[i];
    const uint2 rows = reinterpret_cast<const uint2*>(work.item_row)[i];
    const bool two = item.count > 1;
    list.items[i] = {
        .expert = static_cast<uint16_t>(item.expert),
        .rows = static_cast<uint16_t>(item.count),
        .place = {static_cast<uint16_t>(item.first), static_cast<uint16_t>(item.first + (two ? 1 : 0))},
        .row = {static_cast<uint8_t>(rows.x), static_cast<uint8_t>(two ? rows.y : rows.x)}};
    reinterpret_cast<float2*>(list.weights)[i] = reinterpret_cast<const float2*>(work.item_weight)[i];
  }
  __syncthreads();
  // What lies behind the last item is of other launches.
  for (int i = static_cast<int>(threadIdx.x); i < items; i += threads) {
    uint16_t(&place)[kExpertRows] = list.items[i].place;
    for (int r = 0; r < kExpertRows; ++r) place[r] = static_cast<uint16_t>(scratch[place[r]]);
  }
  if (threadIdx.x == 0) *list.count = items;
  __syncthreads();
}

}  // namespace spark::engine::cuda
