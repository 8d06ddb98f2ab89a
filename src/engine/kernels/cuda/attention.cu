// Sparse attention over one shared latent (K = V). A cluster of blocks takes one row and 16 heads; each block
// owns consecutive 64-slot chunks of the row's list.
//
// The contract rounds e = exp(z - m') to BF16 relative to the *running* maximum m' of the list. The blocks
// therefore first compute all scores, exchange the chunk maxima through distributed shared memory (a running
// maximum is the maximum of the chunks so far), and only then form e, so the rounding is the sequential one.
// What differs from the sequential recurrence is only that a chunk's sums are multiplied once by exp(m' -
// m_last) instead of by a product of factors, and the order of FP32 additions.
#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/paged.cuh"

namespace spark::engine::cuda {
namespace {

// Sixteen warps a block halve the time of a few rows; with more, eight, so that two blocks share a
// multiprocessor. No sum depends on it: warps divide slots, heads and channels, never a sum.
constexpr int kMostWarps = 16;
constexpr int kScoreWarps = 8;  // the first of them, eight slots each
constexpr int kFewBlocks = 6;   // (row, 16 heads) with sixteen warps
constexpr int kChunk = 64;  // slots
constexpr int kHeads = 16;
constexpr int kMaxWidth = 512;
constexpr int kPad = 8;                // BF16 elements that keep ldmatrix rows in different banks
constexpr int kMaxChunksPerBlock = 2;  // what fits into the 99 KiB of a GB10 block
constexpr int kMaxRanks = 16;          // blocks of a cluster
constexpr float kInitialMax = -1e30f;

struct AttentionParams {
  SparseAttentionArgs a;
};

// What a slot shows.
struct Slot {
  const uint8_t* record;  // null: empty
  bool main;              // FP4 entry, else FP8 record
};

__device__ __forceinline__ Slot slot_at(const SparseAttentionArgs& a, int row, int slot) {
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
    if (p < start || p > end) return {nullptr, false};
    return {record_of(a.window_cache, sequence, p), false};
  }
  slot -= a.window;
  if (slot < a.max_selected) {
    const int entry =
        a.main_cache.base != nullptr ? a.selected[static_cast<int64_t>(row) * a.max_selected + slot] : -1;
    if (entry < 0) return {nullptr, true};
    return {record_of(a.main_cache, sequence, entry), true};
  }
  slot -= a.max_selected;
  const int source = a.step.first_row[row] + slot;
  if (a.extra == nullptr || source > a.step.last_row[row]) return {nullptr, false};
  return {a.extra + static_cast<int64_t>(source) * window_record_bytes(a.width), false};
}

__device__ __forceinline__ uint32_t load_word(const uint8_t* p, bool aligned) {
  if (aligned) return __ldg(reinterpret_cast<const uint32_t*>(p));
  return p[0] | uint32_t{p[1]} << 8 | uint32_t{p[2]} << 16 | uint32_t{p[3]} << 24;
}

// Sixteen channels of a record as loaded, before decoding.
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
      const uint2 w = __ldg(reinterpret_cast<const uint2*>(p));
      raw.codes.x = w.x, raw.codes.y = w.y;
    } else {
      raw.codes.x = load_word(p, false), raw.codes.y = load_word(p + 4, false);
    }
    raw.scale = slot.record[width / 2 + lane];
  } else {
    const uint8_t* p = slot.record + lane * 16;
    if (aligned) {
      raw.codes = __ldg(reinterpret_cast<const uint4*>(p));
    } else {
      raw.codes = make_uint4(load_word(p, false), load_word(p + 4, false), load_word(p + 8, false),
                             load_word(p + 12, false));
    }
    raw.scale = slot.record[width + lane / 2];
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

struct Shared {
  uint16_t kv[kChunk][kMaxWidth + kPad];
  uint16_t q[kHeads][kMaxWidth + kPad];
  float z[kMaxChunksPerBlock][kHeads][kChunk];
  uint32_t live[kMostWarps];  // a bit per slot that the warp loaded
  uint16_t e[kHeads][kChunk + kPad];
  float chunk_max[kMaxChunksPerBlock][kHeads];
  float block_max[kHeads];  // over this block's chunks
  float block_sum[kHeads];  // of e, times exp(m' - m_last)
  float running[kMaxChunksPerBlock][kHeads];
  float last_max[kHeads];
  float divisor[kHeads];
};
// Partial outputs take the place of kv: FP32 [16][512].
static_assert(sizeof(float) * kHeads * kMaxWidth <= sizeof(uint16_t) * kChunk * (kMaxWidth + kPad));

// Loads and decodes one chunk into shared memory.
template <int kWarps>
__device__ __forceinline__ void load_chunk(const SparseAttentionArgs& a, int row, int chunk, int slots,
                                           Shared& s) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x / 32);
  constexpr int kPerWarp = kChunk / kWarps;
  Slot mine = {nullptr, false};
  const int slot = chunk * kChunk + warp * kPerWarp + lane;
  if (lane < kPerWarp && slot < slots) mine = slot_at(a, row, slot);
  const bool aligned_window =
      (a.window_cache.record_bytes & 15) == 0 && (window_record_bytes(a.width) & 15) == 0;
  const bool aligned_main = (a.main_cache.record_bytes & 7) == 0;
  RawChannels raw[kPerWarp];
  bool main[kPerWarp];
  uint32_t mask = 0;
#pragma unroll
  for (int i = 0; i < kPerWarp; ++i) {
    const uint64_t pointer = __shfl_sync(~0u, reinterpret_cast<uint64_t>(mine.record), i);
    main[i] = __shfl_sync(~0u, static_cast<int>(mine.main), i) != 0;
    if (pointer != 0) mask |= 1u << i;
    raw[i] = load_channels({reinterpret_cast<const uint8_t*>(pointer), main[i]}, a.width, lane,
                           main[i] ? aligned_main : aligned_window);
  }
  if (lane * 16 < a.width) {
#pragma unroll
    for (int i = 0; i < kPerWarp; ++i)
      decode_channels(raw[i], main[i], &s.kv[warp * kPerWarp + i][lane * 16]);
  }
  if (lane == 0) s.live[warp] = mask;
}

template <int kWarps>
__global__ void __launch_bounds__(kWarps * 32)
    sparse_attention_kernel(const __grid_constant__ AttentionParams params) {
  constexpr int kThreads = kWarps * 32;
  SPARK_DYNAMIC_SHARED(uint8_t, memory);
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const SparseAttentionArgs& a = params.a;
  launch_dependents();
  wait_for_inputs();
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int g = lane >> 2, t = lane & 3;
  const int rank = static_cast<int>(blockIdx.x);
  const int ranks = static_cast<int>(gridDim.x);
  const int head0 = static_cast<int>(blockIdx.y) * kHeads;
  const int row = static_cast<int>(blockIdx.z);
  if (a.step.sequence[row] < 0) return;  // the whole cluster leaves

  const int extra = a.extra == nullptr ? 0 : a.step.last_row[row] - a.step.first_row[row] + 1;
  const int slots = a.window + a.max_selected + extra;
  const int chunks = (slots + kChunk - 1) / kChunk;
  const int per_block = (chunks + ranks - 1) / ranks;
  const int chunk0 = min(rank * per_block, chunks);
  const int mine = min(per_block, chunks - chunk0);

  // Queries.
  for (int i = static_cast<int>(threadIdx.x); i < kHeads * a.width / 8; i += kThreads) {
    const int head = i / (a.width / 8);
    const int channel = i % (a.width / 8) * 8;
    const bool valid = head0 + head < a.heads;
    const uint16_t* from =
        a.q + (static_cast<int64_t>(row) * a.heads + (valid ? head0 + head : 0)) * a.width + channel;
    copy_async_16(&s.q[head][channel], from, valid);
  }

  // Scores of all chunks of this block. Warp w of the first eight takes slots 8w .. 8w + 7.
  for (int c = 0; c < mine; ++c) {
    if (c > 0) __syncthreads();  // the previous chunk has been read
    load_chunk<kWarps>(a, row, chunk0 + c, slots, s);
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
    if (warp >= kScoreWarps) continue;
    constexpr int kLoadedPerWarp = kChunk / kWarps;
    uint32_t live = 0;
#pragma unroll
    for (int i = 0; i < 8 / kLoadedPerWarp; ++i) {
      live |= s.live[warp * (8 / kLoadedPerWarp) + i] << (i * kLoadedPerWarp);
    }
    float d[4][4] = {};
    const uint16_t* q_row = &s.q[lane & 15][(lane >> 4) * 8];
    const uint16_t* kv_row = &s.kv[warp * 8 + (lane & 7)][(lane >> 3) * 8];
#pragma unroll 4
    for (int k = 0; k < a.width; k += 32) {
      uint32_t b[4], q0[4], q1[4];
      ldmatrix_x4(b, kv_row + k);
      ldmatrix_x4(q0, q_row + k);
      ldmatrix_x4(q1, q_row + k + 16);
      const int which = (k / 32) & 1;
      if (which == 0) {
        mma_bf16(d[0], q0[0], q0[1], q0[2], q0[3], b[0], b[1]);
        mma_bf16(d[1], q1[0], q1[1], q1[2], q1[3], b[2], b[3]);
      } else {
        mma_bf16(d[2], q0[0], q0[1], q0[2], q0[3], b[0], b[1]);
        mma_bf16(d[3], q1[0], q1[1], q1[2], q1[3], b[2], b[3]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int slot = 2 * t + (i & 1);
      const float z = ((d[0][i] + d[1][i]) + (d[2][i] + d[3][i])) * a.scale;
      s.z[c][g + (i >> 1) * 8][warp * 8 + slot] = (live >> slot & 1) != 0 ? z : -INFINITY;
    }
  }
  __syncthreads();

  // Maxima of the chunks: warp w takes head w.
  for (int head = warp; head < kHeads; head += kWarps) {
    float largest = -INFINITY;
    for (int c = 0; c < mine; ++c) {
      float m = fmaxf(s.z[c][head][lane], s.z[c][head][lane + 32]);
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, offset));
      if (lane == 0) s.chunk_max[c][head] = m;
      largest = fmaxf(largest, m);
    }
    if (lane == 0) s.block_max[head] = largest;
  }
  cluster_sync();
  if (threadIdx.x < kHeads) {
    const int head = static_cast<int>(threadIdx.x);
    float running = kInitialMax;
    float last = kInitialMax;
    float of_rank[kMaxRanks];
#pragma unroll
    for (int r = 0; r < kMaxRanks; ++r) {
      of_rank[r] = r < ranks ? load_cluster(&s.block_max[head], static_cast<uint32_t>(r)) : kInitialMax;
    }
#pragma unroll
    for (int r = 0; r < kMaxRanks; ++r) {
      if (r < rank) running = fmaxf(running, of_rank[r]);
      last = fmaxf(last, of_rank[r]);
    }
    for (int c = 0; c < mine; ++c) {
      running = fmaxf(running, s.chunk_max[c][head]);
      s.running[c][head] = running;
    }
    s.last_max[head] = last;
    s.block_sum[head] = 0.0f;
  }
  __syncthreads();

  // Weighted values. Warp w takes the 8-channel columns w, w + 8, ...
  constexpr int kColumns = kMaxWidth / 8 / kWarps;
  float acc[kColumns][4] = {};
  for (int c = mine - 1; c >= 0; --c) {
    // The last chunk is still in shared memory; earlier ones are loaded again (they lie in L2).
    if (c != mine - 1) {
      __syncthreads();
      load_chunk<kWarps>(a, row, chunk0 + c, slots, s);
    }
    for (int head = warp; head < kHeads; head += kWarps) {
      const float m = s.running[c][head];
      const float e0 = expf(s.z[c][head][lane] - m);
      const float e1 = expf(s.z[c][head][lane + 32] - m);
      s.e[head][lane] = float_to_bf16(e0);
      s.e[head][lane + 32] = float_to_bf16(e1);
      const float sum = warp_sum(e0 + e1);
      if (lane == 0) s.block_sum[head] += sum * expf(m - s.last_max[head]);
    }
    __syncthreads();
    const float f0 = expf(s.running[c][g] - s.last_max[g]);
    const float f1 = expf(s.running[c][g + 8] - s.last_max[g + 8]);
    uint32_t e[4][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) ldmatrix_x4(e[k], &s.e[lane & 15][k * 16 + (lane >> 4) * 8]);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const int column = (warp + j * kWarps) * 8;
      if (column >= a.width) continue;
      float d[4] = {};
#pragma unroll
      for (int k = 0; k < 4; k += 2) {
        uint32_t v[4];
        ldmatrix_x4_trans(v, &s.kv[k * 16 + lane][column]);
        mma_bf16(d, e[k][0], e[k][1], e[k][2], e[k][3], v[0], v[1]);
        mma_bf16(d, e[k + 1][0], e[k + 1][1], e[k + 1][2], e[k + 1][3], v[2], v[3]);
      }
      acc[j][0] += d[0] * f0;
      acc[j][1] += d[1] * f0;
      acc[j][2] += d[2] * f1;
      acc[j][3] += d[3] * f1;
    }
  }
  __syncthreads();
  float* partial = reinterpret_cast<float*>(&s.kv[0][0]);  // [16][width]
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    const int column = (warp + j * kWarps) * 8 + t * 2;
    if (column >= a.width) continue;
    *reinterpret_cast<float2*>(partial + g * a.width + column) = make_float2(acc[j][0], acc[j][1]);
    *reinterpret_cast<float2*>(partial + (g + 8) * a.width + column) = make_float2(acc[j][2], acc[j][3]);
  }
  cluster_sync();

  // Every block finishes its share of (head, four channels); blocks without a chunk hold zeros.
  if (threadIdx.x < kHeads) {
    const int head = static_cast<int>(threadIdx.x);
    float of_rank[kMaxRanks];
#pragma unroll
    for (int r = 0; r < kMaxRanks; ++r) {
      of_rank[r] = r < ranks ? load_cluster(&s.block_sum[head], static_cast<uint32_t>(r)) : 0.0f;
    }
    float sum = 0.0f;
#pragma unroll
    for (int r = 0; r < kMaxRanks; ++r) sum += of_rank[r];
    if (head0 + head < a.heads) s.divisor[head] = sum + expf(a.sink[head0 + head] - s.last_max[head]);
  }
  __syncthreads();
  const int fours = a.width / 4;
  for (int i = rank * kThreads + static_cast<int>(threadIdx.x); i < kHeads * fours; i += ranks * kThreads) {
    const int head = i / fours;
    const int channel = i % fours * 4;
    if (head0 + head >= a.heads) break;
    float4 of_rank[kMaxRanks];
#pragma unroll
    for (int r = 0; r < kMaxRanks; ++r) {
      of_rank[r] = r < ranks
                       ? load_cluster(reinterpret_cast<const float4*>(partial + head * a.width + channel),
                                      static_cast<uint32_t>(r))
                       : float4{0.0f, 0.0f, 0.0f, 0.0f};
    }
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int r = 0; r < kMaxRanks; ++r) {
      sum.x += of_rank[r].x, sum.y += of_rank[r].y, sum.z += of_rank[r].z, sum.w += of_rank[r].w;
    }
    uint32_t out[2] = {0, 0};
    if (s.last_max[head] > kInitialMax) {
      const float divisor = s.divisor[head];
      out[0] = pack_bf16(sum.x / divisor, sum.y / divisor);
      out[1] = pack_bf16(sum.z / divisor, sum.w / divisor);
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const int z = channel + 2 * pair - (a.width - 2 * a.pairs);
        if (z < 0) continue;
        const float* angle = a.cos_sin + (static_cast<int64_t>(row) * a.pairs + z / 2) * 2;
        const float v = bf16_low(out[pair]), w = bf16_high(out[pair]);
        const float c = angle[0], n = -angle[1];
        out[pair] = pack_bf16(v * c - w * n, v * n + w * c);
      }
    }
    *reinterpret_cast<uint2*>(a.o + (static_cast<int64_t>(row) * a.heads + head0 + head) * a.width +
                              channel) = make_uint2(out[0], out[1]);
  }
  cluster_sync();  // others may still read this block's sums
}

}  // namespace

void launch_sparse_attention(const Launch& on, const SparseAttentionArgs& args) {
  if (args.width > kMaxWidth || args.width % 32 != 0) {
    throw Error("attention heads of width " + std::to_string(args.width), "CUDA backend",
                "head widths are multiples of 32 up to 512");
  }
  const int slots = args.window + args.max_selected + (args.extra != nullptr ? kChunk : 0);
  const int chunks = static_cast<int>(ceil_div(slots, kChunk));
  const int per_block = static_cast<int>(ceil_div(chunks, on.device.max_attention_cluster));
  const int ranks = static_cast<int>(ceil_div(chunks, per_block));
  if (per_block > kMaxChunksPerBlock) {
    throw Error("attention list of " + std::to_string(slots) + " slots", "CUDA backend",
                "at most two chunks of 64 slots per block of a cluster");
  }
  const int head_groups = static_cast<int>(ceil_div(args.heads, kHeads));
  const dim3 grid(static_cast<unsigned>(ranks), static_cast<unsigned>(head_groups),
                  static_cast<unsigned>(args.step.rows));
  if (args.step.rows * head_groups <= kFewBlocks) {
    launch_kernel(on, sparse_attention_kernel<16>, grid, 16 * 32, sizeof(Shared), ranks, AttentionParams{args});
  } else {
    launch_kernel(on, sparse_attention_kernel<8>, grid, 8 * 32, sizeof(Shared), ranks, AttentionParams{args});
  }
}

}  // namespace spark::engine::cuda
