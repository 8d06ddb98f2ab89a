// The indexer: scores of FP4 queries against FP4 keys, then exact selection.
//
// Scores: the keys of a sequence are decoded once for up to eight of its rows. Selection: one block per row
// finds the k-th largest 16-bit key with two 8-bit histograms and writes what lies above it, and as many of
// the ties as fit, in ascending order of position. (For up to 128 rows index_cluster.cu does both in one
// launch.)
#include "engine/kernels/cuda/index_cluster.h"
#include "engine/kernels/cuda/index_score.cuh"

namespace spark::engine::cuda {
namespace {

// ---- scores
// ---------------------------------------------------------------------------------------------------------

constexpr int kScoreThreads = 256;
constexpr int kScoreWarps = 8;
constexpr int kGroupRows = 8;          // rows of a sequence that share a pass over the keys
constexpr int kEntriesPerBlock = 128;  // a tile of 16 for every warp

struct ScoreParams {
  IndexSelectArgs a;
  IndexWorkspace work;
  bool restricted;
  int shared_keys;  // of the selection: keys that its shared memory holds
};

struct ScoreShared {
  IndexQueries q[kGroupRows];
  float weight[kGroupRows][kIndexHeads];
};

__global__ void __launch_bounds__(kScoreThreads) score_kernel(const __grid_constant__ ScoreParams p) {
  SPARK_DYNAMIC_SHARED(uint8_t, memory);
  ScoreShared& s = *reinterpret_cast<ScoreShared*>(memory);
  const IndexSelectArgs& a = p.a;
  launch_dependents();
  wait_for_inputs();
  const int row0 = p.work.row_begin + static_cast<int>(blockIdx.y);
  const int sequence = a.step.sequence[row0];
  if (sequence < 0) return;
  // Restricted rows have lists of their own; otherwise rows of a sequence go together.
  int rows = 1;
  if (!p.restricted) {
    const int offset = row0 - max(a.step.first_row[row0], p.work.row_begin);
    if (offset % kGroupRows != 0) return;
    rows = min(kGroupRows, min(a.step.last_row[row0], p.work.row_end - 1) - row0 + 1);
  }
  const int visible = visible_entries(a, row0 + rows - 1);
  const int list = p.restricted ? a.max_blocks * a.block_size : visible;
  const int first = static_cast<int>(blockIdx.x) * kEntriesPerBlock;
  if (first >= list) return;

  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int g = lane >> 2, t = lane & 3;
  const int blocks = a.width / 32;
#pragma unroll 4
  for (int i = warp; i < rows * 4 * blocks; i += kScoreWarps) {
    const int r = i / (4 * blocks), operand = i % (4 * blocks);
    store_query(s.q[r], blocks, operand, load_query(a, row0 + r, blocks, operand));
  }
  for (int i = static_cast<int>(threadIdx.x); i < rows * kIndexHeads; i += kScoreThreads) {
    s.weight[i / kIndexHeads][i % kIndexHeads] = head_factor(a, row0 + i / kIndexHeads, i % kIndexHeads);
  }
  __syncthreads();

  for (int base = first + warp * 16; base < min(first + kEntriesPerBlock, list); base += kScoreWarps * 16) {
    RawKeys raw;
    load_keys(a, p.restricted, row0, sequence, base, list, visible, raw);
    uint32_t k[kMaxIndexBlocks][8];
    decode_keys(raw, k);
    for (int r = 0; r < rows; ++r) {
      float sum[2];
      score_keys(k, s.q[r], s.weight[r], a.width / 32, sum);
      if (t < 2) {
        const int i = base + g + t * 8;
        if (i < list) {
          p.work.scores[static_cast<int64_t>(row0 - p.work.row_begin + r) * p.work.stride + i] =
              float_to_bf16(t == 0 ? sum[0] : sum[1]);
        }
      }
    }
  }
}

// ---- selection
// ------------------------------------------------------------------------------------------------------

constexpr int kSelectThreads = 1024;
constexpr int kSelectWarps = kSelectThreads / 32;
struct SelectShared {
  uint32_t histogram[kSelectWarps / 4][256];
  uint32_t above[kSelectWarps], equal[kSelectWarps];
  uint32_t threshold, need, bin;
};

// Finds T and the number of ties so that keys > T and the first `need` keys == T are the k largest of
// `count`.
template <class Key>
__device__ void find_threshold(SelectShared& s, int count, int k, const Key& key) {
  const int thread = static_cast<int>(threadIdx.x);
  uint32_t high = 0;
  uint32_t remaining = static_cast<uint32_t>(k);
  for (int pass = 0; pass < 2; ++pass) {
    for (int i = thread; i < kSelectWarps / 4 * 256; i += kSelectThreads) (&s.histogram[0][0])[i] = 0;
    __syncthreads();
    uint32_t* mine = s.histogram[thread / 128];
    // Scores repeat: lanes with the same bin add once.
    for (int i = thread; i < static_cast<int>(round_up(count, 32)); i += kSelectThreads) {
      const uint32_t v = i < count ? key(i) : 0u;
      const bool counts = i < count && (pass == 0 || v >> 8 == high);
      const uint32_t bin = counts ? (pass == 0 ? v >> 8 : v & 255u) : 256u;
      const uint32_t same = __match_any_sync(~0u, bin);
      if (counts && (threadIdx.x & 31) == static_cast<unsigned>(__ffs(static_cast<int>(same)) - 1)) {
        atomicAdd(&mine[bin], static_cast<uint32_t>(__popc(same)));
      }
    }
    __syncthreads();
    // Warp 0: lane l sums bins 255 - 8l .. 248 - 8l, then a scan from the top finds the bin of the k-th key.
    if (thread < 256) {
      uint32_t total = 0;
      for (int c = 0; c < kSelectWarps / 4; ++c) total += s.histogram[c][thread];
      s.histogram[0][thread] = total;
    }
    __syncthreads();
    if (thread < 32) {
      uint32_t bins[8], total = 0;
      for (int i = 0; i < 8; ++i) bins[i] = s.histogram[0][255 - thread * 8 - i], total += bins[i];
      uint32_t inclusive = total;
      for (int offset = 1; offset < 32; offset *= 2) {
        const uint32_t other = __shfl_up_sync(~0u, inclusive, offset);
        if (thread >= offset) inclusive += other;
      }
      uint32_t before = inclusive - total;
      for (int i = 0; i < 8; ++i) {
        if (before < remaining && before + bins[i] >= remaining) {
          s.bin = static_cast<uint32_t>(255 - thread * 8 - i);
          s.need = remaining - before;
        }
        before += bins[i];
      }
    }
    __syncthreads();
    remaining = s.need;
    if (pass == 0) {
      high = s.bin;
    } else {
      s.threshold = high << 8 | s.bin;
    }
    __syncthreads();
  }
}

// Calls emit(place, i) for the selected i in ascending order, place counting from 0; returns their number.
template <class Key, class Emit>
__device__ int select_ascending(SelectShared& s, int count, int k, const Key& key, const Emit& emit) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (count <= k) {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kSelectThreads) emit(i, i);
    return count;
  }
  find_threshold(s, count, k, key);
  const uint32_t threshold = s.threshold;
  const uint32_t need = s.need;
  const int piece = static_cast<int>(round_up(ceil_div(count, kSelectWarps), 32));
  const int first = warp * piece;
  const int last = min(first + piece, count);
  uint32_t above = 0, equal = 0;
  for (int i = first + lane; i < last; i += 32) {
    const uint32_t v = key(i);
    above += v > threshold;
    equal += v == threshold;
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    above += __shfl_xor_sync(~0u, above, offset);
    equal += __shfl_xor_sync(~0u, equal, offset);
  }
  if (lane == 0) s.above[warp] = above, s.equal[warp] = equal;
  __syncthreads();
  uint32_t above_before = 0, equal_before = 0;
  for (int w = 0; w < warp; ++w) above_before += s.above[w], equal_before += s.equal[w];
  for (int base = first; base < last; base += 32) {
    const int i = base + lane;
    const uint32_t v = i < last ? key(i) : 0;
    const uint32_t above_mask = __ballot_sync(~0u, i < last && v > threshold);
    const uint32_t equal_mask = __ballot_sync(~0u, i < last && v == threshold);
    const uint32_t below = (1u << lane) - 1;
    const uint32_t a = above_before + __popc(above_mask & below);
    const uint32_t e = equal_before + __popc(equal_mask & below);
    if (i < last && (v > threshold || (v == threshold && e < need)))
      emit(static_cast<int>(a + min(e, need)), i);
    above_before += __popc(above_mask);
    equal_before += __popc(equal_mask);
  }
  return k;
}

__global__ void __launch_bounds__(kSelectThreads) select_kernel(const __grid_constant__ ScoreParams p) {
  __shared__ SelectShared s;
  const IndexSelectArgs& a = p.a;
  launch_dependents();
  wait_for_inputs();
  const int place = static_cast<int>(blockIdx.x);
  const int row = p.work.row_begin + place;
  if (a.step.sequence[row] < 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int visible = visible_entries(a, row);
  const uint16_t* scores = p.work.scores + static_cast<int64_t>(place) * p.work.stride;
  int32_t* selected = a.selected + static_cast<int64_t>(row) * a.top_k;
  int32_t* candidates =
      a.candidate_blocks == nullptr ? nullptr : a.candidate_blocks + static_cast<int64_t>(row) * a.max_blocks;

  int list = visible;
  if (p.restricted) {
    // The list ends with the last candidate block; its last entries may not be visible yet.
    __shared__ int kept;
    if (thread == 0) kept = 0;
    __syncthreads();
    for (int i = thread; i < a.max_blocks; i += kSelectThreads) {
      if (candidates[i] < 0) continue;
      const int first = candidates[i] * a.block_size;
      atomicAdd(&kept, max(0, min(a.block_size, visible - first)));
    }
    __syncthreads();
    list = kept;
  }
  // The keys of the row are looked at several times: keep as many as fit in shared memory.
  SPARK_DYNAMIC_SHARED(uint16_t, keys);
  const int kept_keys = min(list, p.shared_keys);
  for (int first = thread; first < kept_keys; first += 8 * kSelectThreads) {
    uint32_t v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j)
      v[j] = first + j * kSelectThreads < kept_keys ? scores[first + j * kSelectThreads] : 0u;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (first + j * kSelectThreads < kept_keys) {
        keys[first + j * kSelectThreads] = static_cast<uint16_t>(order_key(v[j]));
      }
    }
  }
  __syncthreads();
  const auto key = [&](int i) { return i < kept_keys ? uint32_t{keys[i]} : order_key(scores[i]); };
  const auto emit = [&](int at, int i) {
    selected[at] = p.restricted ? candidates[i / a.block_size] * a.block_size + i % a.block_size : i;
  };
  const int chosen = select_ascending(s, list, a.top_k, key, emit);
  for (int i = chosen + thread; i < a.top_k; i += kSelectThreads) selected[i] = -1;

  if (a.mode != CandidateMode::kProduce) return;
  __syncthreads();
  const int count = visible > 0 ? (visible - 1) / a.block_size + 1 : 0;
  uint16_t* best = p.work.block_best + static_cast<int64_t>(place) * p.work.block_stride;
  __shared__ int finite;
  if (thread == 0) finite = 0;
  __syncthreads();
  int mine = 0;
  for (int b = thread; b < count; b += kSelectThreads) {
    uint32_t largest = 0;
    for (int i = b * a.block_size; i < min((b + 1) * a.block_size, visible); ++i)
      largest = max(largest, key(i));
    if (b == count - 1) largest = 0xFFFF;  // the newest block is always kept
    best[b] = static_cast<uint16_t>(largest);
    mine += largest > kLowestKey;
  }
  if (mine != 0) atomicAdd(&finite, mine);
  __syncthreads();
  const int wanted = min(a.max_blocks, finite);  // blocks of minus infinity are dropped
  const int kept_blocks = select_ascending(
      s, count, wanted, [&](int b) { return uint32_t{best[b]}; }, [&](int at, int b) { candidates[at] = b; });
  for (int i = kept_blocks + thread; i < a.max_blocks; i += kSelectThreads) candidates[i] = -1;
}

}  // namespace

void require_index_shape(const IndexSelectArgs& args) {
  if (args.heads <= kIndexHeads && args.width <= kMaxIndexWidth && args.width % 32 == 0) return;
  throw Error("indexer with " + std::to_string(args.heads) + " heads of width " + std::to_string(args.width),
              "CUDA backend", "at most 32 heads of a multiple of 32 up to 128 channels");
}

void launch_index_scores(const Launch& on, const IndexSelectArgs& args, const IndexWorkspace& work,
                         bool restricted) {
  require_index_shape(args);
  const int64_t list = restricted ? std::min<int64_t>(int64_t{args.max_blocks} * args.block_size,
                                                      round_up(args.max_entries, args.block_size))
                                  : args.max_entries;
  launch_kernel(on, score_kernel,
                dim3(static_cast<unsigned>(ceil_div(list, kEntriesPerBlock)),
                     static_cast<unsigned>(work.row_end - work.row_begin)),
                kScoreThreads, sizeof(ScoreShared), 1, ScoreParams{args, work, restricted, 0});
}

void launch_index_select(const Launch& on, const IndexSelectArgs& args, const IndexWorkspace& work) {
  const bool restricted = args.mode == CandidateMode::kRestrict;
  // Rows of up to 32,768 keys keep them all.
  const int64_t most = restricted ? int64_t{args.max_blocks} * args.block_size : args.max_entries;
  const int shared_keys = static_cast<int>(std::min<int64_t>(std::max<int64_t>(most, 8), 32768));
  launch_kernel(on, select_kernel, dim3(static_cast<unsigned>(work.row_end - work.row_begin)), kSelectThreads,
                static_cast<size_t>(shared_keys) * sizeof(uint16_t), 1,
                ScoreParams{args, work, restricted, shared_keys});
}

}  // namespace spark::engine::cuda
