// The indexer: scores of FP4 queries against FP4 keys, then exact selection.
//
// Scores: a warp takes 16 keys at a time, decoded once to BF16 (exact) as the A operand, and multiplies them
// with the 32 query heads of up to eight rows of the sequence. Head 8t + 2j + i is column 2t + i of tile j,
// so that lane t of a quad owns eight heads in a row and the sum over ascending heads is a chain over the
// four lanes. Selection: one block per row finds the k-th largest 16-bit key with two 8-bit histograms and
// writes what lies above it, and as many of the ties as fit, in ascending order of position.
#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/paged.cuh"

namespace spark::engine::cuda {
namespace {

// ---- scores
// ---------------------------------------------------------------------------------------------------------

constexpr int kScoreThreads = 256;
constexpr int kScoreWarps = 8;
constexpr int kHeads = 32;  // padded
constexpr int kMaxWidth = 128;
constexpr int kMaxBlocks = kMaxWidth / 32;
constexpr int kGroupRows = 8;          // rows of a sequence that share a pass over the keys
constexpr int kEntriesPerBlock = 128;  // a tile of 16 for every warp

struct ScoreParams {
  IndexSelectArgs a;
  IndexWorkspace work;
  bool restricted;
  int shared_keys;  // of the selection: keys that its shared memory holds
};

struct ScoreShared {
  // [row][tile j][32-block][lane]: eight BF16 of the lane's column, as mma B operands.
  uint4 q[kGroupRows][4][kMaxBlocks][32];
  float weight[kGroupRows][kHeads];
};

__device__ __forceinline__ int visible_entries(const IndexSelectArgs& a, int row) {
  return (a.step.position[row] + 1) / a.ratio;
}

__device__ __forceinline__ uint32_t load_unaligned(const uint8_t* p, bool aligned) {
  if (aligned) return __ldg(reinterpret_cast<const uint32_t*>(p));
  return p[0] | uint32_t{p[1]} << 8 | uint32_t{p[2]} << 16 | uint32_t{p[3]} << 24;
}

// Eight E2M1 codes times a power of two as BF16 pairs (exact).
__device__ __forceinline__ uint4 fp4_to_bf16(uint32_t codes, float scale) {
  float v[8];
  e2m1x8_to_float(codes, v);
  return make_uint4(pack_bf16(v[0] * scale, v[1] * scale), pack_bf16(v[2] * scale, v[3] * scale),
                    pack_bf16(v[4] * scale, v[5] * scale), pack_bf16(v[6] * scale, v[7] * scale));
}

// The entry at place i of a row's list: itself, or the i-th entry of its candidate blocks (-1: none).
__device__ __forceinline__ int entry_at(const IndexSelectArgs& a, bool restricted, int row, int i,
                                        int visible) {
  if (restricted) {
    const int slot = i / a.block_size;
    if (slot >= a.max_blocks) return -1;
    const int block = a.candidate_blocks[static_cast<int64_t>(row) * a.max_blocks + slot];
    if (block < 0) return -1;
    i = block * a.block_size + i % a.block_size;
  }
  return i < visible ? i : -1;
}

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
    const int block = i % blocks;
    const int j = i / blocks % 4;
    const int r = i / (blocks * 4);
    const int head = 8 * (g / 2) + 2 * j + (g & 1);
    uint4 q = make_uint4(0, 0, 0, 0);
    if (head < a.heads) {
      const int64_t vector = static_cast<int64_t>(row0 + r) * a.heads + head;
      const uint32_t codes = load_unaligned(a.q_packed + vector * (a.width / 2) + block * 16 + t * 4, true);
      q = fp4_to_bf16(codes, ue8m0_to_float(__ldg(a.q_scales + vector * blocks + block)));
    }
    s.q[r][j][block][lane] = q;
  }
  for (int i = static_cast<int>(threadIdx.x); i < rows * kHeads; i += kScoreThreads) {
    const int r = i / kHeads, head = i % kHeads;
    s.weight[r][head] =
        head < a.heads
            ? round_to_bf16(bf16_to_float(a.head_weight[static_cast<int64_t>(row0 + r) * a.heads + head]) *
                            a.weight_factor)
            : 0.0f;
  }
  __syncthreads();

  const bool aligned = (a.key_cache.record_bytes & 3) == 0;
  for (int base = first + warp * 16; base < min(first + kEntriesPerBlock, list); base += kScoreWarps * 16) {
    // Keys of entries base + g and base + g + 8 as A operands; missing ones are zero.
    uint32_t k[kMaxBlocks][8];
    int entry[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = base + g + half * 8;
      entry[half] = i < list ? entry_at(a, p.restricted, row0, i, visible) : -1;
      const uint8_t* record = entry[half] >= 0 ? record_of(a.key_cache, sequence, entry[half]) : nullptr;
#pragma unroll
      for (int block = 0; block < kMaxBlocks; ++block) {
        uint4 v = make_uint4(0, 0, 0, 0);
        if (record != nullptr && block < blocks) {
          v = fp4_to_bf16(load_unaligned(record + block * 16 + t * 4, aligned),
                          ue8m0_to_float(record[a.width / 2 + block]));
        }
        // v = pairs (0,1), (2,3) of the first k16 step, then of the second.
        k[block][0 + half] = v.x, k[block][2 + half] = v.y;
        k[block][4 + half] = v.z, k[block][6 + half] = v.w;
      }
    }
    for (int r = 0; r < rows; ++r) {
      float sum[2] = {0.0f, 0.0f};
      float product[4][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float d[4] = {};
#pragma unroll
        for (int block = 0; block < kMaxBlocks; ++block) {
          if (block >= blocks) continue;
          const uint4 q = s.q[r][j][block][lane];
          mma_bf16(d, k[block][0], k[block][1], k[block][2], k[block][3], q.x, q.y);
          mma_bf16(d, k[block][4], k[block][5], k[block][6], k[block][7], q.z, q.w);
        }
        const float2 w = *reinterpret_cast<const float2*>(&s.weight[r][8 * t + 2 * j]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          product[j][i] = round_to_bf16(fmaxf(round_to_bf16(d[i]), 0.0f) * ((i & 1) == 0 ? w.x : w.y));
        }
      }
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        float v0 = sum[0], v1 = sum[1];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          v0 += product[j][0];
          v0 += product[j][1];
          v1 += product[j][2];
          v1 += product[j][3];
        }
        sum[0] = __shfl_sync(~0u, v0, (lane & ~3) | step);
        sum[1] = __shfl_sync(~0u, v1, (lane & ~3) | step);
      }
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
constexpr uint32_t kLowestKey = 0x007F;  // minus infinity

// BF16 bits to a number that orders like the value; both zeros are equal and a NaN comes last.
__device__ __forceinline__ uint32_t order_key(uint32_t bits) {
  if ((bits & 0x7FFFu) > 0x7F80u) return 0;
  if ((bits & 0x7FFFu) == 0) bits = 0;
  return (bits & 0x8000u) != 0 ? (~bits & 0xFFFFu) : (bits | 0x8000u);
}

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

void launch_index_scores(const Launch& on, const IndexSelectArgs& args, const IndexWorkspace& work,
                         bool restricted) {
  if (args.heads > kHeads || args.width > kMaxWidth || args.width % 32 != 0) {
    throw Error(
        "indexer with " + std::to_string(args.heads) + " heads of width " + std::to_string(args.width),
        "CUDA backend", "at most 32 heads of a multiple of 32 up to 128 channels");
  }
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
