// Sparse attention over one shared latent (K = V). A cluster of blocks takes one row and 16 heads; each block
// owns consecutive 64-slot chunks of the row's list.
//
// The contract rounds e = exp(z - m') to BF16 relative to the *running* maximum m' of the list. The blocks
// therefore first compute all scores, exchange the chunk maxima through distributed shared memory (a running
// maximum is the maximum of the chunks so far), and only then form e, so the rounding is the sequential one.
// What differs from the sequential recurrence is only that a chunk's sums are multiplied once by exp(m' -
// m_last) instead of by a product of factors, and the order of FP32 additions.
//
// Most records were written by earlier steps: what is known to be complete (EarlyRecords) is read and decoded
// before the wait, while the queries are made. Blocks push what others need into their shared memory and
// meet; no block reads another's.
#include <cstddef>

#include "engine/kernels/cuda/attention_records.cuh"
#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"

namespace spark::engine::cuda {
namespace {

// Sixteen warps a block halve the time of a few rows; with more, eight, so that two blocks share a
// multiprocessor. No sum depends on it: warps divide slots, heads and channels, never a sum.
constexpr int kMostWarps = 16;
constexpr int kScoreWarps = 8;  // the first of them, eight slots each
constexpr int kFewBlocks = 6;   // (row, 16 heads) with sixteen warps
constexpr int kChunk = 64;      // slots
constexpr int kHeads = 16;
constexpr int kMaxWidth = 512;
constexpr int kPad = 8;  // BF16 elements that keep ldmatrix rows in different banks
constexpr int kMaxChunksPerBlock = 2;
constexpr int kMaxRanks = 16;  // blocks of a cluster
constexpr float kInitialMax = -1e30f;
constexpr int kPartStride = kChunk + 8;  // of scores of a fourth of the channels
constexpr int kUnit = 64;                // partial outputs that travel together: eight heads, eight channels

struct AttentionParams {
  SparseAttentionArgs a;
  EarlyRecords early;
  int owned_units = 0;    // of a block, the last may have fewer
  uint32_t per_unit = 0;  // its reciprocal: 2^16 / owned_units, rounded up
};

// kChunks: of a block, at most.
template <int kChunks>
struct Shared {
  uint16_t kv[kChunk][kMaxWidth + kPad];
  float z[kChunks][kHeads][kChunk];
  uint32_t live[kMostWarps];  // a bit per slot that the warp loaded
  uint16_t e[kHeads][kChunk + kPad];
  float chunk_max[kChunks][kHeads];
  float block_sum[kHeads];  // of e, times exp(m' - m_last)
  float running[kChunks][kHeads];
  float last_max[kHeads];
  float sink[kHeads];
  float angles[kMaxWidth];
  // Written by the blocks of the cluster: maxima over their chunks, and their sums.
  float rank_max[kMaxRanks][kHeads];
  float rank_sum[kMaxRanks][kHeads];
  uint16_t q[kHeads][kMaxWidth + kPad];  // last: partial outputs take its place and as much room as they need
};
// With two chunks partial outputs take the place of kv. Rounding owned_units up costs a block's rest: 14
// blocks of 10.
constexpr int kMostReceived = 140 * kUnit;
static_assert(sizeof(float) * kMostReceived <= sizeof(uint16_t) * kChunk * (kMaxWidth + kPad));

// The slots of a chunk that this warp loads: lane i holds slot i of them.
template <int kWarps>
__device__ __forceinline__ int warp_slot(int chunk) {
  return chunk * kChunk + static_cast<int>(threadIdx.x / 32) * (kChunk / kWarps) +
         static_cast<int>(threadIdx.x & 31);
}

// Loads and decodes the warp's slots whose bit is set; empty ones become zero.
template <int kWarps, class S>
__device__ __forceinline__ void load_slots(const SparseAttentionArgs& a, const Slot& mine, uint32_t which,
                                           S& s) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x / 32);
  constexpr int kPerWarp = kChunk / kWarps;
  const bool aligned_window =
      (a.window_cache.record_bytes & 15) == 0 && (window_record_bytes(a.width) & 15) == 0;
  const bool aligned_main = (a.main_cache.record_bytes & 7) == 0;
  constexpr int kAtOnce = kPerWarp < 4 ? kPerWarp : 4;
#pragma unroll 1
  for (int first = 0; first < kPerWarp; first += kAtOnce) {
    RawChannels raw[kAtOnce];
    bool main[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const uint64_t pointer = __shfl_sync(~0u, reinterpret_cast<uint64_t>(mine.record), first + i);
      main[i] = __shfl_sync(~0u, static_cast<int>(mine.main), first + i) != 0;
      if ((which >> (first + i) & 1) == 0) continue;
      raw[i] = load_channels({reinterpret_cast<const uint8_t*>(pointer), main[i], false}, a.width, lane,
                             main[i] ? aligned_main : aligned_window);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if ((which >> (first + i) & 1) == 0 || lane * 16 >= a.width) continue;
      decode_channels(raw[i], main[i], &s.kv[warp * kPerWarp + first + i][lane * 16]);
    }
  }
}

// Scores of slots `lane` and `lane + 32` of the chunk, for head `warp`.
struct ChunkScores {
  float low = -INFINITY, high = -INFINITY;
};

// Sixteen warps and one chunk. Four warps share sixteen slots, each takes every fourth sixteen channels: so a
// fragment of the queries serves two tiles. The sum is ((0 + 1) + (2 + 3)). Whole blocks must call.
template <class S>
__device__ __forceinline__ ChunkScores own_head_scores(const SparseAttentionArgs& a, int warp, bool any,
                                                       S& s) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int g = lane >> 2, t = lane & 3;
  auto* const parts =
      reinterpret_cast<float(*)[kHeads][kPartStride]>(reinterpret_cast<uint8_t*>(&s.q[0][0]) + sizeof(s.q));
  __syncthreads();
  if (!any) return {};
  {
    const int fourth = warp >> 2, slots = (warp & 3) * 16;
    float d[2][4] = {};
    const uint16_t* q_row = &s.q[lane & 15][fourth * 16 + (lane >> 4) * 8];
    const uint16_t* kv_row = &s.kv[slots + (lane >> 4) * 8 + (lane & 7)][fourth * 16 + ((lane >> 3) & 1) * 8];
#pragma unroll 4
    for (int k = 0; k < a.width - fourth * 16; k += 64) {
      uint32_t q[4], b[4];
      ldmatrix_x4(q, q_row + k);
      ldmatrix_x4(b, kv_row + k);
      mma_bf16(d[0], q[0], q[1], q[2], q[3], b[0], b[1]);
      mma_bf16(d[1], q[0], q[1], q[2], q[3], b[2], b[3]);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int slot = slots + n * 8 + 2 * t;
      *reinterpret_cast<float2*>(&parts[fourth][g][slot]) = make_float2(d[n][0], d[n][1]);
      *reinterpret_cast<float2*>(&parts[fourth][g + 8][slot]) = make_float2(d[n][2], d[n][3]);
    }
  }
  __syncthreads();
  constexpr int kLoadedPerWarp = kChunk / kMostWarps;
  const auto score = [&](int slot) {
    const float z =
        ((parts[0][warp][slot] + parts[1][warp][slot]) + (parts[2][warp][slot] + parts[3][warp][slot])) *
        a.scale;
    return (s.live[slot / kLoadedPerWarp] >> slot % kLoadedPerWarp & 1) != 0 ? z : -INFINITY;
  };
  return {score(lane), score(lane + 32)};
}

// The values of chunk `c`, weighted by s.e, for the warp's columns.
template <int kWarps, class S, int kColumns>
__device__ __forceinline__ void add_values(const SparseAttentionArgs& a, int c, int warp, S& s,
                                           float (&acc)[kColumns][4]) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int g = lane >> 2;
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

// A whole chunk.
template <int kWarps, class S>
__device__ __forceinline__ void load_chunk(const AttentionParams& params, const RowOfStep& row, int chunk,
                                           int slots, S& s) {
  constexpr int kPerWarp = kChunk / kWarps;
  const int lane = static_cast<int>(threadIdx.x & 31);
  Slot mine = {nullptr, false, false};
  const int slot = warp_slot<kWarps>(chunk);
  if (lane < kPerWarp && slot < slots) {
    const int entry = is_selected(params.a, slot) ? selected_entry(params.a, row.index, slot) : -1;
    mine = slot_at(params.a, params.early, row, slot, entry);
  }
  load_slots<kWarps>(params.a, mine, (1u << kPerWarp) - 1, s);
  const uint32_t live = __ballot_sync(~0u, mine.record != nullptr);
  if (lane == 0) s.live[threadIdx.x / 32] = live;
}

template <int kWarps, int kChunks>
__global__ void __launch_bounds__(kWarps * 32, kChunks == 1 ? 2 : 1)
    sparse_attention_kernel(const __grid_constant__ AttentionParams params) {
  constexpr int kThreads = kWarps * 32;
  constexpr int kPerWarp = kChunk / kWarps;
  constexpr bool kOwnHead = kWarps == kHeads && kChunks == 1;  // a warp a head
  SPARK_DYNAMIC_SHARED(uint8_t, memory);
  Shared<kChunks>& s = *reinterpret_cast<Shared<kChunks>*>(memory);
  const SparseAttentionArgs& a = params.a;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int g = lane >> 2, t = lane & 3;
  const int rank = static_cast<int>(blockIdx.x);
  const int ranks = static_cast<int>(gridDim.x);
  const int head0 = static_cast<int>(blockIdx.y) * kHeads;
  const int row = static_cast<int>(blockIdx.z);
  const RowOfStep step_row = row_of_step(a, row);
  const int extra = a.extra == nullptr ? 0 : step_row.last - step_row.first + 1;
  const int slots = a.window + a.max_selected + extra;
  const int chunks = (slots + kChunk - 1) / kChunk;
  const int per_block = (chunks + ranks - 1) / ranks;
  const int chunk0 = min(rank * per_block, chunks);
  const int mine = min(per_block, chunks - chunk0);
  // The lane's slot of the first chunk.
  const int slot = warp_slot<kWarps>(chunk0);
  const bool wanted = mine > 0 && lane < kPerWarp && slot < slots;
  const bool chosen = wanted && is_selected(a, slot);
  const bool later = chosen && !params.early.selected;
  const int entry = chosen && !later ? selected_entry(a, row, slot) : -1;
  if (step_row.sequence < 0) {  // the whole cluster leaves
    wait_for_inputs();
    return;
  }
  cluster_arrive();  // the others must have started before something is written into their memory

  if (threadIdx.x < kHeads && head0 + static_cast<int>(threadIdx.x) < a.heads) {
    s.sink[threadIdx.x] = __ldg(a.sink + head0 + threadIdx.x);
  }

  // The first chunk's records as far as they are complete.
  Slot found = {nullptr, false, false};
  if (wanted && !later) found = slot_at(a, params.early, step_row, slot, entry);
  const uint32_t early = __ballot_sync(~0u, found.early && found.record != nullptr);
  if (early != 0) load_slots<kWarps>(a, found, early, s);

  wait_for_inputs();
  launch_dependents();

  // Queries.
  for (int head = warp; head < kHeads; head += kWarps) {
    const bool valid = head0 + head < a.heads;
    const uint16_t* from = a.q + (static_cast<int64_t>(row) * a.heads + (valid ? head0 + head : 0)) * a.width;
    for (int channel = lane * 8; channel < a.width; channel += 256)
      copy_async_16(&s.q[head][channel], from + channel, valid);
  }
  copy_async_commit();
  for (int i = static_cast<int>(threadIdx.x); i < 2 * a.pairs; i += kThreads) {
    s.angles[i] = a.cos_sin[static_cast<int64_t>(row) * 2 * a.pairs + i];
  }
  if (later) found = chosen_slot(a, step_row.sequence, selected_entry(a, row, slot), false);
  if (mine > 0) {
    load_slots<kWarps>(a, found, ((1u << kPerWarp) - 1) & ~early, s);
    const uint32_t live = __ballot_sync(~0u, found.record != nullptr);
    if (lane == 0) s.live[warp] = live;
  }
  copy_async_wait<0>();

  // Weighted values of the warp's 8-channel columns w, w + kWarps, ...
  constexpr int kColumns = kMaxWidth / 8 / kWarps;
  float acc[kColumns][4] = {};
  if constexpr (kOwnHead) {
    const ChunkScores z = own_head_scores(a, warp, mine > 0, s);
    float largest = fmaxf(z.low, z.high);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, offset));
    cluster_wait();
    if (lane < ranks) store_cluster(&s.rank_max[rank][warp], static_cast<uint32_t>(lane), largest);
    cluster_sync();
    float last = lane < ranks ? fmaxf(s.rank_max[lane][warp], kInitialMax) : kInitialMax;
    float running = lane < rank ? last : kInitialMax;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      last = fmaxf(last, __shfl_xor_sync(~0u, last, offset));
      running = fmaxf(running, __shfl_xor_sync(~0u, running, offset));
    }
    running = fmaxf(running, largest);
    if (lane == 0) s.running[0][warp] = running, s.last_max[warp] = last;
    const float e0 = expf(z.low - running);
    const float e1 = expf(z.high - running);
    s.e[warp][lane] = float_to_bf16(e0);
    s.e[warp][lane + 32] = float_to_bf16(e1);
    __syncthreads();
    if (mine > 0) add_values<kWarps>(a, 0, warp, s, acc);
    const float sum = warp_sum(e0 + e1) * expf(running - last);
    if (lane < ranks)
      store_cluster(&s.rank_sum[rank][warp], static_cast<uint32_t>(lane), mine > 0 ? sum : 0.0f);
  } else {
    // Scores of all chunks of this block. Warp w of the first eight takes slots 8w .. 8w + 7.
    for (int c = 0; c < mine; ++c) {
      if constexpr (kChunks > 1) {
        if (c > 0) {
          __syncthreads();  // the previous chunk has been read
          load_chunk<kWarps>(params, step_row, chunk0 + c, slots, s);
        }
      }
      __syncthreads();
      // Sixteen warps: two share eight slots, each takes every other 32 channels. The sum is ((0 + 1) + (2 +
      // 3)) always.
      constexpr int kLoadedPerWarp = kChunk / kWarps;
      constexpr int kHalves = kWarps / kScoreWarps;
      const int group = warp % kScoreWarps;
      uint32_t live = 0;
#pragma unroll
      for (int i = 0; i < 8 / kLoadedPerWarp; ++i) {
        live |= s.live[group * (8 / kLoadedPerWarp) + i] << (i * kLoadedPerWarp);
      }
      float d[4 / kHalves][4] = {};
      const uint16_t* q_row = &s.q[lane & 15][(lane >> 4) * 8];
      const uint16_t* kv_row = &s.kv[group * 8 + (lane & 7)][(lane >> 3) * 8];
      constexpr int kStep = 64;
#pragma unroll 4
      for (int k = 0; k < a.width; k += kStep) {
#pragma unroll
        for (int which = 0; which < 2 / kHalves; ++which) {
          const int at = k + 32 * (kHalves == 2 ? warp / kScoreWarps : which);
          if (at >= a.width) continue;
          uint32_t b[4], q0[4], q1[4];
          ldmatrix_x4(b, kv_row + at);
          ldmatrix_x4(q0, q_row + at);
          ldmatrix_x4(q1, q_row + at + 16);
          mma_bf16(d[2 * which], q0[0], q0[1], q0[2], q0[3], b[0], b[1]);
          mma_bf16(d[2 * which + 1], q1[0], q1[1], q1[2], q1[3], b[2], b[3]);
        }
      }
      float other[4] = {};
      if constexpr (kHalves == 1) {
#pragma unroll
        for (int i = 0; i < 4; ++i) other[i] = d[2][i] + d[3][i];
      } else {
        // The second warp's half goes through the place of the result.
        if (warp >= kScoreWarps) {
#pragma unroll
          for (int i = 0; i < 4; ++i)
            s.z[c][g + (i >> 1) * 8][group * 8 + 2 * t + (i & 1)] = d[0][i] + d[1][i];
        }
        __syncthreads();
        if (warp >= kScoreWarps) continue;
#pragma unroll
        for (int i = 0; i < 4; ++i) other[i] = s.z[c][g + (i >> 1) * 8][group * 8 + 2 * t + (i & 1)];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int slot = 2 * t + (i & 1);
        const float z = ((d[0][i] + d[1][i]) + other[i]) * a.scale;
        s.z[c][g + (i >> 1) * 8][group * 8 + slot] = (live >> slot & 1) != 0 ? z : -INFINITY;
      }
    }
    __syncthreads();

    // Maxima of the chunks: warp w takes head w, and tells every block.
    cluster_wait();
    for (int head = warp; head < kHeads; head += kWarps) {
      float largest = -INFINITY;
      for (int c = 0; c < mine; ++c) {
        float m = fmaxf(s.z[c][head][lane], s.z[c][head][lane + 32]);
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, offset));
        if (lane == 0) s.chunk_max[c][head] = m;
        largest = fmaxf(largest, m);
      }
      if (lane < ranks) store_cluster(&s.rank_max[rank][head], static_cast<uint32_t>(lane), largest);
    }
    cluster_sync();
    if (threadIdx.x < kHeads) {
      const int head = static_cast<int>(threadIdx.x);
      float running = kInitialMax;
      float last = kInitialMax;
#pragma unroll
      for (int r = 0; r < kMaxRanks; ++r) {
        const float m = r < ranks ? s.rank_max[r][head] : kInitialMax;
        if (r < rank) running = fmaxf(running, m);
        last = fmaxf(last, m);
      }
      for (int c = 0; c < mine; ++c) {
        running = fmaxf(running, s.chunk_max[c][head]);
        s.running[c][head] = running;
      }
      s.last_max[head] = last;
      s.block_sum[head] = 0.0f;
    }
    __syncthreads();

    for (int c = mine - 1; c >= 0; --c) {
      // The last chunk is still in shared memory; earlier ones are loaded again (they lie in L2).
      if constexpr (kChunks > 1) {
        if (c != mine - 1) {
          __syncthreads();
          load_chunk<kWarps>(params, step_row, chunk0 + c, slots, s);
        }
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
      add_values<kWarps>(a, c, warp, s, acc);
    }
    if (static_cast<int>(threadIdx.x) < ranks * kHeads) {
      const int head = static_cast<int>(threadIdx.x) % kHeads;
      store_cluster(&s.rank_sum[rank][head], threadIdx.x / kHeads, s.block_sum[head]);
    }
  }

  // Every block finishes its share of units; the blocks push their parts there, blocks without a chunk zeros.
  float* received = reinterpret_cast<float*>(kChunks == 1 ? &s.q[0][0] : &s.kv[0][0]);  // [rank][unit][8][8]
  if constexpr (kChunks > 1) cluster_sync();  // nobody reads its kv any more
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    const int tile = warp + j * kWarps;
    if (tile * 8 >= a.width) continue;
    // Two lanes side by side hold four channels of heads g and g + 8: each takes one of the two.
    const bool odd = (t & 1) != 0;
    const float r0 = __shfl_xor_sync(~0u, odd ? acc[j][0] : acc[j][2], 1);
    const float r1 = __shfl_xor_sync(~0u, odd ? acc[j][1] : acc[j][3], 1);
    const int unit = tile * 2 + (t & 1);
    const int owner = static_cast<int>(static_cast<uint32_t>(unit) * params.per_unit >> 16);
    float* to = received + (rank * params.owned_units + unit - owner * params.owned_units) * kUnit;
    store_cluster(
        reinterpret_cast<float4*>(to + g * 8 + (t >> 1) * 4), static_cast<uint32_t>(owner),
        odd ? make_float4(r0, r1, acc[j][2], acc[j][3]) : make_float4(acc[j][0], acc[j][1], r0, r1));
  }
  cluster_sync();

  const int first_unit = rank * params.owned_units;
  const int units = min(params.owned_units, a.width / 4 - first_unit);
  // Two channels a thread where there are threads for that, else four.
  constexpr int kPairs = kWarps == kMostWarps ? 1 : 2;
  constexpr int kPieces = kUnit / (2 * kPairs);
  for (int i = static_cast<int>(threadIdx.x); i < units * kPieces; i += kThreads) {
    const int unit = first_unit + i / kPieces;
    const int within = i % kPieces * (2 * kPairs);  // float of the unit
    const int head = (unit & 1) * 8 + within / 8;
    const int channel = unit / 2 * 8 + within % 8;
    if (head0 + head >= a.heads) continue;
    float2 sum[kPairs] = {};
    float divisor = 0.0f;
#pragma unroll 5
    for (int r = 0; r < ranks; ++r) {
      const float2* v =
          reinterpret_cast<const float2*>(received + (r * params.owned_units + i / kPieces) * kUnit + within);
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) sum[pair].x += v[pair].x, sum[pair].y += v[pair].y;
      divisor += s.rank_sum[r][head];
    }
    divisor += expf(s.sink[head] - s.last_max[head]);
    uint32_t out[kPairs] = {};
    if (s.last_max[head] > kInitialMax) {
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        out[pair] = pack_bf16(sum[pair].x / divisor, sum[pair].y / divisor);
        const int z = channel + 2 * pair - (a.width - 2 * a.pairs);
        if (z < 0) continue;
        const float v = bf16_low(out[pair]), w = bf16_high(out[pair]);
        const float c = s.angles[z], n = -s.angles[z + 1];
        out[pair] = pack_bf16(v * c - w * n, v * n + w * c);
      }
    }
    uint16_t* to = a.o + (static_cast<int64_t>(row) * a.heads + head0 + head) * a.width + channel;
    if constexpr (kPairs == 1) {
      *reinterpret_cast<uint32_t*>(to) = out[0];
    } else {
      *reinterpret_cast<uint2*>(to) = make_uint2(out[0], out[kPairs - 1]);
    }
  }
}

}  // namespace

void launch_sparse_attention(const Launch& on, const SparseAttentionArgs& args, const EarlyRecords& early) {
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
  const int units = args.width / 4;
  const int owned = static_cast<int>(ceil_div(units, ranks));
  const AttentionParams params = {args, early, owned, static_cast<uint32_t>(ceil_div(1 << 16, owned))};
  // A block with one chunk has room for the others' parts beside its own records; GB10 has two chunks a
  // block.
  const size_t received = static_cast<size_t>(ranks * params.owned_units * kUnit) * sizeof(float);
  const size_t parts = sizeof(Shared<1>::q) + sizeof(float) * 4 * kHeads * kPartStride;
  const size_t one = std::max(sizeof(Shared<1>), offsetof(Shared<1>, q) + std::max(received, parts));
  const auto with = [&](auto kernel, int warps, size_t bytes) {
    launch_kernel(on, kernel, grid, warps * 32, bytes, ranks, params);
  };
  const bool few = args.step.rows * head_groups <= kFewBlocks;
  if (per_block == 1 && one <= on.device.shared_bytes) {
    return few ? with(sparse_attention_kernel<16, 1>, 16, one) : with(sparse_attention_kernel<8, 1>, 8, one);
  }
  const size_t two = sizeof(Shared<kMaxChunksPerBlock>);
  if (few) return with(sparse_attention_kernel<16, kMaxChunksPerBlock>, 16, two);
  return with(sparse_attention_kernel<8, kMaxChunksPerBlock>, 8, two);
}

}  // namespace spark::engine::cuda
