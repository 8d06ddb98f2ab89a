// The indexer for few rows: scores and selection of a row in one launch, by a cluster of blocks that share
// its list.
//
// A block scores its part of the list (an eighth or a sixteenth) and keeps the keys that order the scores in
// shared memory; nothing goes through global memory. Selection: the blocks push histograms of the keys' high
// byte to one another and meet; everyone finds the byte in which the k-th largest key lies; the same for the
// low byte. From the histograms of both a block also knows how many selected entries the blocks before it
// have, so it writes its own without another meeting, ascending, ties to the lower entry. Scores are those of
// index.cu, to the bit.
#include <algorithm>

#include "engine/kernels/cuda/index_cluster.h"
#include "engine/kernels/cuda/index_score.cuh"

namespace spark::engine::cuda {
namespace {

__device__ __forceinline__ void store_word(uint32_t* local, int rank, uint32_t v) {
  store_cluster(reinterpret_cast<float*>(local), static_cast<uint32_t>(rank), __uint_as_float(v));
}

__device__ __forceinline__ int warp_count(int v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(~0u, v, offset);
  return v;
}

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxRanks = 16;
constexpr int kBins = 256;

struct ClusterShared {
  IndexQueries q[1];
  float weight[1][kIndexHeads];
  uint32_t own[2][kBins];  // this block's keys by high byte; by low byte among those of the border's high
  uint32_t all[2][kMaxRanks][kBins];  // the same of every block
  uint32_t total[kBins];
  uint32_t above[kWarps], equal[kWarps];
  uint32_t bin, need, before_above, before_equal;
  int listed;
  uint32_t finite[kMaxRanks];
};

// What a selection found: keys above `threshold` and the first `need` that equal it.
struct Border {
  uint32_t threshold;
  uint32_t need;
  uint32_t above_before;  // selected by the blocks before this one
  uint32_t equal_before;
};

// Finds in bins of counts over the cluster, largest bin first, the one that holds the `wanted`-th.
__device__ __forceinline__ void find_bin(ClusterShared& s, int pass, int ranks, uint32_t wanted) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kBins) {
    uint32_t sum = 0;
#pragma unroll 4
    for (int r = 0; r < ranks; ++r) sum += s.all[pass][r][thread];
    s.total[thread] = sum;
  }
  __syncthreads();
  if (thread < 32) {
    uint32_t bins[8], total = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) bins[i] = s.total[255 - thread * 8 - i], total += bins[i];
    uint32_t inclusive = total;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const uint32_t other = __shfl_up_sync(~0u, inclusive, offset);
      if (thread >= offset) inclusive += other;
    }
    uint32_t before = inclusive - total;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (before < wanted && before + bins[i] >= wanted) {
        s.bin = static_cast<uint32_t>(255 - thread * 8 - i);
        s.need = wanted - before;
      }
      before += bins[i];
    }
  }
  __syncthreads();
}

// Tells every block this block's counts, and meets. The blocks have read what the pass before left.
__device__ __forceinline__ void share_counts(ClusterShared& s, int pass, int rank, int ranks) {
  __syncthreads();
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kBins * ranks; i += kThreads) {
    store_word(&s.all[pass][rank][i % kBins], i / kBins, s.own[pass][i % kBins]);
  }
  cluster_sync();
}

// The border of the `wanted` largest of the cluster's keys, of which this block has keys[0 .. count).
__device__ Border find_border(ClusterShared& s, const uint16_t* keys, int count, uint32_t wanted, int rank,
                              int ranks) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kBins) s.own[0][thread] = 0, s.own[1][thread] = 0;
  __syncthreads();
#pragma unroll 1
  for (int i = thread; i < count; i += kThreads) atomicAdd(&s.own[0][keys[i] >> 8], 1u);
  share_counts(s, 0, rank, ranks);
  find_bin(s, 0, ranks, wanted);
  const uint32_t high = s.bin;
  const uint32_t remaining = s.need;
#pragma unroll 1
  for (int i = thread; i < count; i += kThreads) {
    if (keys[i] >> 8 == high) atomicAdd(&s.own[1][keys[i] & 255], 1u);
  }
  share_counts(s, 1, rank, ranks);
  find_bin(s, 1, ranks, remaining);
  if (thread == 32) s.before_above = 0, s.before_equal = 0;
  __syncthreads();
  const uint32_t low = s.bin;
  // Of the blocks before this one: keys in higher bins, and in the border's bin.
  uint32_t above = 0;
#pragma unroll 1
  for (int i = thread; i < rank * kBins; i += kThreads) {
    const uint32_t bin = static_cast<uint32_t>(i % kBins);
    if (bin > high) above += s.all[0][i / kBins][bin];
    if (bin > low) above += s.all[1][i / kBins][bin];
    if (bin == low) atomicAdd(&s.before_equal, s.all[1][i / kBins][bin]);
  }
  if (above != 0) atomicAdd(&s.before_above, above);
  __syncthreads();
  return {high << 8 | low, s.need, s.before_above, s.before_equal};
}

// Calls emit(place, i) for this block's selected i, places counting over the cluster.
template <class Emit>
__device__ void emit_selected(ClusterShared& s, const uint16_t* keys, int count, const Border& border,
                              const Emit& emit) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int piece = static_cast<int>(round_up(ceil_div(count, kWarps), 32));
  const int first = warp * piece;
  const int last = min(first + piece, count);
  uint32_t above = 0, equal = 0;
#pragma unroll 1
  for (int base = first; base < last; base += 32) {
    const uint32_t v = base + lane < last ? keys[base + lane] : 0u;
    above += __popc(__ballot_sync(~0u, base + lane < last && v > border.threshold));
    equal += __popc(__ballot_sync(~0u, base + lane < last && v == border.threshold));
  }
  if (lane == 0) s.above[warp] = above, s.equal[warp] = equal;
  __syncthreads();
  uint32_t above_before = border.above_before, equal_before = border.equal_before;
#pragma unroll 1
  for (int w = 0; w < warp; ++w) above_before += s.above[w], equal_before += s.equal[w];
#pragma unroll 1
  for (int base = first; base < last; base += 32) {
    const int i = base + lane;
    const uint32_t v = i < last ? keys[i] : 0u;
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
  __syncthreads();  // above and equal may be written again
}

// Blocks that a multiprocessor has registers for: two on SM90. On GB10 64 registers would spill.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr int kBlocks = 1;
#else
constexpr int kBlocks = 2;
#endif

__global__ void __launch_bounds__(kThreads, kBlocks)
    index_cluster_kernel(const __grid_constant__ IndexSelectArgs a, bool restricted, int per_block) {
  SPARK_DYNAMIC_SHARED(uint8_t, memory);
  ClusterShared& s = *reinterpret_cast<ClusterShared*>(memory);
  uint16_t* const keys = reinterpret_cast<uint16_t*>(memory + sizeof(ClusterShared));  // [per_block]
  uint16_t* const best = keys + per_block;                                             // of candidate blocks
  launch_dependents();
  const int rank = static_cast<int>(blockIdx.x);
  const int ranks = static_cast<int>(gridDim.x);
  const int row = static_cast<int>(blockIdx.y);
  const int sequence = a.step.sequence[row];
  if (sequence < 0) {  // the whole cluster leaves
    wait_for_inputs();
    return;
  }
  cluster_arrive();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31, warp = thread / 32;
  const int visible = visible_entries(a, row);
  int32_t* selected = a.selected + static_cast<int64_t>(row) * a.top_k;
  int32_t* candidates =
      a.candidate_blocks == nullptr ? nullptr : a.candidate_blocks + static_cast<int64_t>(row) * a.max_blocks;
  wait_for_inputs();

  load_queries<kWarps>(a, row, 1, s.q, s.weight);
  int list = visible;
  if (restricted) {
    // The list ends with the last candidate block; its last entries may not be visible yet.
    if (thread == 0) s.listed = 0;
    __syncthreads();
    int mine = 0;
#pragma unroll 1
    for (int i = thread; i < a.max_blocks; i += kThreads) {
      const int block = candidates[i];
      if (block >= 0) mine += max(0, min(a.block_size, visible - block * a.block_size));
    }
    mine = warp_count(mine);
    if (lane == 0 && mine != 0) atomicAdd(&s.listed, mine);
    __syncthreads();
    list = s.listed;
  }
  __syncthreads();
  const int first = min(rank * per_block, list);
  const int count = min(per_block, list - first);

  // The next keys are under way while these are scored: a key is found through two or three dependent reads.
  constexpr int kStride = kWarps * 16;
  const int t = lane & 3;
  RawKeys next;
  load_wide_keys(a, restricted, row, sequence, first + warp * 16, warp * 16 < count ? list : 0, visible,
                 next);
#pragma unroll 1
  for (int base = warp * 16; base < count; base += kStride) {
    const RawKeys raw = next;
    load_wide_keys(a, restricted, row, sequence, first + base + kStride, base + kStride < count ? list : 0,
                   visible, next);
    float sum[2];
    score_raw_keys(raw, s.q[0], s.weight[0], kMaxIndexBlocks, sum);
    const int i = base + (lane >> 2) + t * 8;
    if (t < 2 && i < count) {
      keys[i] = static_cast<uint16_t>(order_key(float_to_bf16(t == 0 ? sum[0] : sum[1])));
    }
  }
  __syncthreads();
  cluster_wait();  // the others have started

  const auto entry_of = [&](int i) {
    i += first;
    return restricted ? candidates[i / a.block_size] * a.block_size + i % a.block_size : i;
  };
  if (list <= a.top_k) {
#pragma unroll 1
    for (int i = thread; i < count; i += kThreads) selected[first + i] = entry_of(i);
#pragma unroll 1
    for (int i = list + rank * kThreads + thread; i < a.top_k; i += ranks * kThreads) selected[i] = -1;
  } else {
    const Border border = find_border(s, keys, count, static_cast<uint32_t>(a.top_k), rank, ranks);
    emit_selected(s, keys, count, border, [&](int at, int i) { selected[at] = entry_of(i); });
  }
  if (a.mode != CandidateMode::kProduce) return;

  // Candidate blocks: a block's share of the list is whole blocks of entries.
  const int first_block = first / a.block_size;
  const int count_blocks = count > 0 ? (count - 1) / a.block_size + 1 : 0;
  const int all_blocks = list > 0 ? (list - 1) / a.block_size + 1 : 0;
  int finite = 0;
#pragma unroll 1
  for (int b = thread; b < count_blocks; b += kThreads) {
    uint32_t largest = 0;
#pragma unroll 1
    for (int i = b * a.block_size; i < min((b + 1) * a.block_size, count); ++i)
      largest = max(largest, uint32_t{keys[i]});
    if (first_block + b == all_blocks - 1) largest = 0xFFFF;  // the newest block is always kept
    best[b] = static_cast<uint16_t>(largest);
    finite += largest > kLowestKey;
  }
  if (thread == 0) s.listed = 0;
  __syncthreads();
  finite = warp_count(finite);
  if (lane == 0 && finite != 0) atomicAdd(&s.listed, finite);
  __syncthreads();
  if (thread < ranks) store_word(&s.finite[rank], thread, static_cast<uint32_t>(s.listed));
  cluster_sync();
  int wanted = 0;
  for (int r = 0; r < ranks; ++r) wanted += static_cast<int>(s.finite[r]);
  wanted = min(a.max_blocks, wanted);  // blocks of minus infinity are dropped
  if (all_blocks <= wanted) {
#pragma unroll 1
    for (int b = thread; b < count_blocks; b += kThreads) candidates[first_block + b] = first_block + b;
    wanted = all_blocks;
  } else {
    const Border border = find_border(s, best, count_blocks, static_cast<uint32_t>(wanted), rank, ranks);
    emit_selected(s, best, count_blocks, border, [&](int at, int b) { candidates[at] = first_block + b; });
  }
#pragma unroll 1
  for (int i = wanted + rank * kThreads + thread; i < a.max_blocks; i += ranks * kThreads) candidates[i] = -1;
}

}  // namespace

namespace {

struct Shape {
  int ranks;
  int per_block;   // places of the list, whole candidate blocks
  int max_blocks;  // candidate blocks of a block's share
  size_t shared_bytes;
};

Shape shape_of(const DeviceLimits& device, const IndexSelectArgs& args) {
  const bool restricted = args.mode == CandidateMode::kRestrict;
  const int64_t list =
      std::max<int64_t>(1, restricted ? int64_t{args.max_blocks} * args.block_size : args.max_entries);
  const int64_t unit = args.mode == CandidateMode::kNone ? 1 : args.block_size;
  Shape s = {};
  s.ranks = static_cast<int>(std::min<int64_t>(device.max_attention_cluster, ceil_div(list, kWarps * 16)));
  s.per_block = static_cast<int>(std::min<int64_t>(round_up(ceil_div(list, s.ranks), unit), 1 << 24));
  s.max_blocks = args.mode == CandidateMode::kProduce ? static_cast<int>(ceil_div(s.per_block, unit)) : 0;
  s.shared_bytes = sizeof(ClusterShared) + static_cast<size_t>(s.per_block + s.max_blocks) * sizeof(uint16_t);
  return s;
}

}  // namespace

bool index_cluster_fits(const DeviceLimits& device, const IndexSelectArgs& args) {
  return args.scores == nullptr && args.step.rows <= kDirectRows && args.width == kMaxIndexWidth &&
         args.key_cache.record_bytes % 4 == 0 &&
         shape_of(device, args).shared_bytes + 1024 <= device.shared_bytes;
}

void launch_index_cluster(const Launch& on, const IndexSelectArgs& args) {
  require_index_shape(args);
  const Shape s = shape_of(on.device, args);
  launch_kernel(on, index_cluster_kernel,
                dim3(static_cast<unsigned>(s.ranks), static_cast<unsigned>(args.step.rows)), kThreads,
                s.shared_bytes, s.ranks, args, args.mode == CandidateMode::kRestrict, s.per_block);
}

}  // namespace spark::engine::cuda
