// The exact selection of the largest of a cluster's 16-bit keys, of which every block has a share.
//
// Blocks push histograms of the keys' high byte to one another; everyone finds the byte in which the k-th
// largest key lies; the same for the low byte. From the histograms of both a block also knows how many
// selected keys the blocks before it have, so it writes its own without another meeting, ascending, ties to
// the lower place.
#pragma once

#include "engine/kernels/cuda/index_score.cuh"

namespace spark::engine::cuda {

constexpr int kMaxRanks = 16;
constexpr int kBins = 256;
constexpr int kSelectionPasses = 2;

// The counts of all blocks in one pass.
using Counts = uint16_t[kMaxRanks][kBins];
constexpr uint32_t kCountBytes = kBins * sizeof(uint16_t);  // of one block

// For so many selections, one after another.
template <int kSelections>
struct SelectionShared {
  uint64_t counted[kSelections * kSelectionPasses];  // barriers: everyone's counts of a pass are there
  uint32_t
      own[kSelections * kSelectionPasses * kBins];  // keys by high byte; by low byte in the border's high
  uint32_t total[kBins];
  uint32_t warp_sums[32];  // of a warp's keys: at the border, and above it << 16
  uint32_t rank_above[kMaxRanks], rank_equal[kMaxRanks];
};

struct Selection {
  const uint16_t* keys;
  int count;
  int wanted;
};

// What a selection found: keys above `threshold` and the first `need` that equal it.
struct Border {
  uint32_t threshold;
  uint32_t need;
};

// Tells every block this block's counts, and waits for theirs.
template <class Shared>
__device__ __forceinline__ void share_counts(Shared& s, Counts* all, int pass, int rank, int ranks) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x / 32);
  __syncthreads();
#pragma unroll 1
  for (int to = warp; to < ranks; to += static_cast<int>(blockDim.x) / 32) {
    const uint4 low = *reinterpret_cast<const uint4*>(&s.own[pass * kBins + lane * 8]);
    const uint4 high = *reinterpret_cast<const uint4*>(&s.own[pass * kBins + lane * 8 + 4]);
    store_cluster_async(
        reinterpret_cast<float4*>(&all[pass][rank][lane * 8]), &s.counted[pass], static_cast<uint32_t>(to),
        make_float4(__uint_as_float(low.x | low.y << 16), __uint_as_float(low.z | low.w << 16),
                    __uint_as_float(high.x | high.y << 16), __uint_as_float(high.z | high.w << 16)));
  }
  barrier_wait(&s.counted[pass], 0);
}

// Finds in counts over the cluster, largest bin first, the one that holds the `wanted`-th: {bin, place in
// it}.
template <class Shared>
__device__ __forceinline__ uint2 find_bin(Shared& s, const Counts& all, int ranks, uint32_t wanted) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  if (thread < kBins / 2) {
    uint2 sum = make_uint2(0, 0);
#pragma unroll 8
    for (int r = 0; r < ranks; ++r) {
      const uint32_t two = *reinterpret_cast<const uint32_t*>(&all[r][2 * thread]);
      sum.x += two & 0xFFFFu, sum.y += two >> 16;
    }
    *reinterpret_cast<uint2*>(&s.total[2 * thread]) = sum;
  }
  __syncthreads();
  // Lane l has bins 255 - 8l down to 248 - 8l.
  uint32_t bins[8], total = 0;
  *reinterpret_cast<uint4*>(&bins[0]) = *reinterpret_cast<const uint4*>(&s.total[248 - lane * 8]);
  *reinterpret_cast<uint4*>(&bins[4]) = *reinterpret_cast<const uint4*>(&s.total[252 - lane * 8]);
#pragma unroll
  for (int i = 0; i < 8; ++i) total += bins[i];
  uint32_t inclusive = total;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, inclusive, offset);
    if (lane >= offset) inclusive += other;
  }
  uint32_t before = inclusive - total;
  const int owner = __ffs(static_cast<int>(__ballot_sync(~0u, before < wanted && inclusive >= wanted))) - 1;
  uint32_t bin = 0, need = 0;
#pragma unroll
  for (int i = 7; i >= 0; --i) {
    if (before < wanted && before + bins[i] >= wanted) {
      bin = static_cast<uint32_t>(248 - lane * 8 + i);
      need = wanted - before;
    }
    before += bins[i];
  }
  return make_uint2(__shfl_sync(~0u, bin, owner), __shfl_sync(~0u, need, owner));
}

// The border of the cluster's keys, of which this block has sel.keys[0 .. count). The high bytes are counted.
// Leaves in rank_above and rank_equal what each block has above and at the border; a barrier comes later.
template <int kWarps, class Shared>
__device__ __forceinline__ Border find_border(Shared& s, Counts* all, const Selection& sel,
                                              bool drop_infinite, int first_pass, int rank, int ranks) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31, warp = thread / 32;
  share_counts(s, all, first_pass, rank, ranks);
  const uint2 high = find_bin(s, all[first_pass], ranks, static_cast<uint32_t>(sel.wanted));
#pragma unroll 1
  for (int i = thread; i < sel.count; i += kWarps * 32) {
    if (sel.keys[i] >> 8 == high.x) atomicAdd(&s.own[(first_pass + 1) * kBins + (sel.keys[i] & 255)], 1u);
  }
  share_counts(s, all, first_pass + 1, rank, ranks);
  uint2 low = find_bin(s, all[first_pass + 1], ranks, high.y);
  if (drop_infinite && high.x == 0 && low.x <= kLowestKey) low = make_uint2(kLowestKey, 0);
    // A warp a block: its keys in higher bins, and in the border's bin.
#pragma unroll 1
  for (int r = warp; r < ranks; r += kWarps) {
    uint32_t above = 0;
#pragma unroll
    for (int pass = 0; pass < 2; ++pass) {
      const uint32_t border = pass == 0 ? high.x : low.x;
      const uint4 eight = *reinterpret_cast<const uint4*>(&all[first_pass + pass][r][lane * 8]);
      const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t bin = static_cast<uint32_t>(lane) * 8 + 2 * i;
        above += bin > border ? words[i] & 0xFFFFu : 0;
        above += bin + 1 > border ? words[i] >> 16 : 0;
      }
    }
    above = warp_total(above);
    if (lane == 0) {
      s.rank_above[r] = above;
      s.rank_equal[r] = all[first_pass + 1][r][low.x];
    }
  }
  return {high.x << 8 | low.x, low.y};
}

// Calls emit(place, i) for this block's selected i, places counting over the cluster. Returns how many the
// cluster has.
template <int kWarps, class Shared, class Emit>
__device__ __forceinline__ int emit_selected(Shared& s, const Selection& sel, const Border& border, int rank,
                                             int ranks, const Emit& emit) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int piece = ((sel.count + kWarps - 1) / kWarps + 31) & ~31;
  const int first = warp * piece;
  const int last = min(first + piece, sel.count);
  uint32_t mine = 0;
#pragma unroll 1
  for (int i = first + lane; i < last; i += 32) {
    mine += sel.keys[i] > border.threshold ? 1u << 16 : sel.keys[i] == border.threshold ? 1u : 0u;
  }
  mine = warp_total(mine);
  if (lane == 0) s.warp_sums[warp] = mine;
  __syncthreads();
  // Before this warp: the warps before in this block, and the blocks before.
  const uint32_t rank_above = lane < ranks ? s.rank_above[lane] : 0;
  const uint32_t before = warp_total(lane < warp ? s.warp_sums[lane] : 0);
  uint32_t above_before = (before >> 16) + warp_total(lane < rank ? rank_above : 0);
  uint32_t equal_before = (before & 0xFFFFu) + warp_total(lane < rank ? s.rank_equal[lane] : 0);
#pragma unroll 1
  for (int base = first; base < last; base += 32) {
    const int i = base + lane;
    const uint32_t v = i < last ? sel.keys[i] : 0u;
    const uint32_t above_mask = __ballot_sync(~0u, i < last && v > border.threshold);
    const uint32_t equal_mask = __ballot_sync(~0u, i < last && v == border.threshold);
    const uint32_t below = (1u << lane) - 1;
    const uint32_t a = above_before + __popc(above_mask & below);
    const uint32_t e = equal_before + __popc(equal_mask & below);
    if (i < last && (v > border.threshold || (v == border.threshold && e < border.need)))
      emit(static_cast<int>(a + min(e, border.need)), i);
    above_before += __popc(above_mask);
    equal_before += __popc(equal_mask);
  }
  return static_cast<int>(warp_total(rank_above) + border.need);
}

}  // namespace spark::engine::cuda
