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
constexpr int kChunk = 64;      // slots
constexpr int kHeads = 16;
constexpr int kMaxWidth = 512;
constexpr int kPad = 8;  // BF16 elements that keep ldmatrix rows in different banks
constexpr int kMaxChunksPerBlock = 2;
constexpr int kMaxRanks = 16;  // blocks of a cluster
constexpr float kInitialMax = -1e30f;
constexpr int kUnit = 64;  // partial outputs that travel together: eight heads, eight channels

struct AttentionParams {
  SparseAttentionArgs a;
  EarlyRecords early;
  int owned_units = 0;  // of a block, the last may have fewer
};

// What a slot shows.
struct Slot {
  const uint8_t* record;  // null: empty
  bool main;              // FP4 entry, else FP8 record
  bool early;             // complete when the kernel starts
};

__device__ __forceinline__ bool is_selected(const SparseAttentionArgs& a, int slot) {
  return slot >= a.window && slot < a.window + a.max_selected;
}

__device__ __forceinline__ Slot slot_at(const AttentionParams& params, int row, int slot) {
  const SparseAttentionArgs& a = params.a;
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
    if (p < start || p > end) return {nullptr, false, false};
    const bool early =
        params.early.all_window || (params.early.window && p < a.step.position[a.step.first_row[row]]);
    return {record_of(a.window_cache, sequence, p), false, early};
  }
  slot -= a.window;
  if (slot < a.max_selected) {
    const int entry = a.main_cache.base != nullptr
                          ? __ldcg(a.selected + static_cast<int64_t>(row) * a.max_selected + slot)
                          : -1;
    if (entry < 0) return {nullptr, true, false};
    return {record_of(a.main_cache, sequence, entry), true, params.early.selected};
  }
  slot -= a.max_selected;
  const int source = a.step.first_row[row] + slot;
  if (a.extra == nullptr || source > a.step.last_row[row]) return {nullptr, false, false};
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
  constexpr int kAtOnce = kPerWarp < 4 ? kPerWarp : kWarps == 16 ? 2 : 4;  // registers
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

// A whole chunk.
template <int kWarps, class S>
__device__ __forceinline__ void load_chunk(const AttentionParams& params, int row, int chunk, int slots,
                                           S& s) {
  constexpr int kPerWarp = kChunk / kWarps;
  const int lane = static_cast<int>(threadIdx.x & 31);
  Slot mine = {nullptr, false, false};
  const int slot = warp_slot<kWarps>(chunk);
  if (lane < kPerWarp && slot < slots) mine = slot_at(params, row, slot);
  load_slots<kWarps>(params.a, mine, (1u << kPerWarp) - 1, s);
  const uint32_t live = __ballot_sync(~0u, mine.record != nullptr);
  if (lane == 0) s.live[threadIdx.x / 32] = live;
}

template <int kWarps, int kChunks>
__global__ void __launch_bounds__(kWarps * 32, kChunks == 1 ? 2 : 1)
    sparse_attention_kernel(const __grid_constant__ AttentionParams params) {
  constexpr int kThreads = kWarps * 32;
  constexpr int kPerWarp = kChunk / kWarps;
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
  if (a.step.sequence[row] < 0) {  // the whole cluster leaves
    wait_for_inputs();
    return;
  }
  cluster_arrive();  // the others must have started before something is written into their memory

  const int extra = a.extra == nullptr ? 0 : a.step.last_row[row] - a.step.first_row[row] + 1;
  const int slots = a.window + a.max_selected + extra;
  const int chunks = (slots + kChunk - 1) / kChunk;
  const int per_block = (chunks + ranks - 1) / ranks;
  const int chunk0 = min(rank * per_block, chunks);
  const int mine = min(per_block, chunks - chunk0);
  if (threadIdx.x < kHeads && head0 + static_cast<int>(threadIdx.x) < a.heads) {
    s.sink[threadIdx.x] = __ldg(a.sink + head0 + threadIdx.x);
  }

  // The first chunk's records as far as they are complete.
  Slot found = {nullptr, false, false};
  const int slot = warp_slot<kWarps>(chunk0);
  const bool wanted = mine > 0 && lane < kPerWarp && slot < slots;
  const bool later = is_selected(a, slot) && !params.early.selected;
  if (wanted && !later) found = slot_at(params, row, slot);
  const uint32_t early = __ballot_sync(~0u, found.early && found.record != nullptr);
  if (early != 0) load_slots<kWarps>(a, found, early, s);

  wait_for_inputs();
  launch_dependents();

  // Queries.
  for (int i = static_cast<int>(threadIdx.x); i < kHeads * a.width / 8; i += kThreads) {
    const int head = i / (a.width / 8);
    const int channel = i % (a.width / 8) * 8;
    const bool valid = head0 + head < a.heads;
    const uint16_t* from =
        a.q + (static_cast<int64_t>(row) * a.heads + (valid ? head0 + head : 0)) * a.width + channel;
    copy_async_16(&s.q[head][channel], from, valid);
  }
  copy_async_commit();
  for (int i = static_cast<int>(threadIdx.x); i < 2 * a.pairs; i += kThreads) {
    s.angles[i] = a.cos_sin[static_cast<int64_t>(row) * 2 * a.pairs + i];
  }
  if (wanted && later) found = slot_at(params, row, slot);
  if (mine > 0) {
    load_slots<kWarps>(a, found, ((1u << kPerWarp) - 1) & ~early, s);
    const uint32_t live = __ballot_sync(~0u, found.record != nullptr);
    if (lane == 0) s.live[warp] = live;
  }
  copy_async_wait<0>();

  // Scores of all chunks of this block. Warp w of the first eight takes slots 8w .. 8w + 7.
  for (int c = 0; c < mine; ++c) {
    if constexpr (kChunks > 1) {
      if (c > 0) {
        __syncthreads();  // the previous chunk has been read
        load_chunk<kWarps>(params, row, chunk0 + c, slots, s);
      }
    }
    __syncthreads();
    // Sixteen warps: two share eight slots, each takes every other 32 channels. The sum is ((0 + 1) + (2 +
    // 3)) either way.
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
        for (int i = 0; i < 4; ++i) s.z[c][g + (i >> 1) * 8][group * 8 + 2 * t + (i & 1)] = d[0][i] + d[1][i];
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

  // Weighted values. Warp w takes the 8-channel columns w, w + 8, ...
  constexpr int kColumns = kMaxWidth / 8 / kWarps;
  float acc[kColumns][4] = {};
  for (int c = mine - 1; c >= 0; --c) {
    // The last chunk is still in shared memory; earlier ones are loaded again (they lie in L2).
    if constexpr (kChunks > 1) {
      if (c != mine - 1) {
        __syncthreads();
        load_chunk<kWarps>(params, row, chunk0 + c, slots, s);
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

  // Every block finishes its share of units; the blocks push their parts there, blocks without a chunk zeros.
  float* received = reinterpret_cast<float*>(kChunks == 1 ? &s.q[0][0] : &s.kv[0][0]);  // [rank][unit][8][8]
  if constexpr (kChunks > 1) cluster_sync();  // nobody reads its kv any more
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    const int tile = warp + j * kWarps;
    if (tile * 8 >= a.width) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int unit = tile * 2 + half;
      const int owner = unit / params.owned_units;
      float* to = received + (rank * params.owned_units + unit - owner * params.owned_units) * kUnit;
      store_cluster(reinterpret_cast<float2*>(to + g * 8 + t * 2), static_cast<uint32_t>(owner),
                    make_float2(acc[j][half * 2], acc[j][half * 2 + 1]));
    }
  }
  if (static_cast<int>(threadIdx.x) < ranks * kHeads) {
    const int head = static_cast<int>(threadIdx.x) % kHeads;
    store_cluster(&s.rank_sum[rank][head], threadIdx.x / kHeads, s.block_sum[head]);
  }
  cluster_sync();

  const int first_unit = rank * params.owned_units;
  const int units = min(params.owned_units, a.width / 4 - first_unit);
  for (int i = static_cast<int>(threadIdx.x); i < units * (kUnit / 4); i += kThreads) {
    const int unit = first_unit + i / (kUnit / 4);
    const int within = i % (kUnit / 4) * 4;  // float of the unit
    const int head = (unit & 1) * 8 + within / 8;
    const int channel = unit / 2 * 8 + within % 8;
    if (head0 + head >= a.heads) continue;
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    float divisor = 0.0f;
#pragma unroll 5
    for (int r = 0; r < ranks; ++r) {
      const float4 v = *reinterpret_cast<const float4*>(
          received + (r * params.owned_units + i / (kUnit / 4)) * kUnit + within);
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
      divisor += s.rank_sum[r][head];
    }
    divisor += expf(s.sink[head] - s.last_max[head]);
    uint32_t out[2] = {0, 0};
    if (s.last_max[head] > kInitialMax) {
      out[0] = pack_bf16(sum.x / divisor, sum.y / divisor);
      out[1] = pack_bf16(sum.z / divisor, sum.w / divisor);
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const int z = channel + 2 * pair - (a.width - 2 * a.pairs);
        if (z < 0) continue;
        const float v = bf16_low(out[pair]), w = bf16_high(out[pair]);
        const float c = s.angles[z], n = -s.angles[z + 1];
        out[pair] = pack_bf16(v * c - w * n, v * n + w * c);
      }
    }
    *reinterpret_cast<uint2*>(a.o + (static_cast<int64_t>(row) * a.heads + head0 + head) * a.width +
                              channel) = make_uint2(out[0], out[1]);
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
  const AttentionParams params = {args, early, static_cast<int>(ceil_div(units, ranks))};
  // A block with one chunk has room for the others' parts beside its own records; GB10 has two chunks a
  // block.
  const size_t received = static_cast<size_t>(ranks * params.owned_units * kUnit) * sizeof(float);
  const size_t one = std::max(sizeof(Shared<1>), offsetof(Shared<1>, q) + received);
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
