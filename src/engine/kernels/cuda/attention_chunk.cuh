// A chunk of 64 slots in sparse attention: scores, weights, values, by sixteen warps and 16 heads. The order
// of every sum is here, so that it is the same however chunks are divided among blocks.
#pragma once

#include "engine/kernels/cuda/attention_units.cuh"

namespace spark::engine::cuda {

constexpr int kAttentionWarps = 16;
constexpr int kChunk = 64;  // slots
constexpr int kHeads = 16;  // a warp each between scores and values
constexpr int kMaxWidth = 512;
constexpr int kMaxChunks = 16;  // of a list
constexpr int kClasses = 4;     // chunks i, i + 4, i + 8, .. are summed up together
constexpr float kInitialMax = -1e30f;
constexpr int kPartStride = kChunk + 8;  // of scores of a fourth of the channels
constexpr int kWeightStride = kChunk + 8;

// A warp takes sixteen slots (two tiles of the matrix instruction) and a fourth of the channels for the
// scores; lane 4g + t slot g of a tile and the 32 channels from `channel` on.
struct ScorePlace {
  int fourth, slots, g, channel;
};
__device__ __forceinline__ ScorePlace score_place() {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x / 32);
  return {warp >> 2, (warp & 3) * 16, lane >> 2, (warp >> 2) * 128 + (lane & 3) * 32};
}

// Where unit `unit` of a slot lies in a decoded chunk: so that neither the lanes that write or read their own
// units, nor the rows that ldmatrix takes, share banks.
__device__ __forceinline__ int unit_at(int slot, int unit) {
  return slot * kMaxWidth + (unit ^ (slot & 7) ^ (unit >> 2 & 2)) * kUnitChannels;
}
constexpr int kTile = 8 * kMaxWidth;  // eight slots behind
// The same of unit `unit + j`, j < 4, where `unit` is a multiple of four.
__device__ __forceinline__ int unit_beside(int at, int j) {
  return at ^ j * kUnitChannels;
}

// They come through shared memory, laid out like slots: a lane's own channels of eight heads lie in as many
// lines.
__device__ __forceinline__ void copy_queries(const SparseAttentionArgs& a, int row, int head0, int width,
                                             uint16_t* to) {
  constexpr int kUnits = kMaxWidth / kUnitChannels;
  for (int i = static_cast<int>(threadIdx.x); i < kHeads * kUnits; i += kAttentionWarps * 32) {
    const int head = i / kUnits, unit = i % kUnits;
    const bool valid = head0 + head < a.heads && unit * kUnitChannels < width;
    const int64_t from =
        valid ? (static_cast<int64_t>(row) * a.heads + head0 + head) * width + unit * kUnitChannels : 0;
    copy_async_16(&to[unit_at(head, unit)], a.q + from, valid);
  }
}
// A unit of the lane's fragments of the queries, of heads g and g + 8: in the order of the records' units.
__device__ __forceinline__ void read_query(const uint16_t* from, const ScorePlace& at, int unit,
                                           uint32_t (&q)[2][4]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int first = unit_at(at.g + 8 * h, at.channel / kUnitChannels);
    const uint4 v = *reinterpret_cast<const uint4*>(from + unit_beside(first, unit));
    q[h][0] = __byte_perm(v.x, v.z, 0x5410), q[h][1] = __byte_perm(v.x, v.z, 0x7632);
    q[h][2] = __byte_perm(v.y, v.w, 0x5410), q[h][3] = __byte_perm(v.y, v.w, 0x7632);
  }
}

__device__ __forceinline__ void multiply_unit(float (&d)[4], const uint32_t (&q)[2][4], const uint4& k) {
  mma_bf16(d, q[0][0], q[1][0], q[0][1], q[1][1], k.x, k.y);
  mma_bf16(d, q[0][2], q[1][2], q[0][3], q[1][3], k.z, k.w);
}

__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
__device__ __forceinline__ uint4 main_unit_of(const RawChannels& raw, const UnitScales& scales, int u) {
  return main_unit(word_of(raw.low, u), scales.pair[u / 2]);
}
__device__ __forceinline__ uint4 window_unit_of(const RawChannels& raw, const UnitScales& scales, int u) {
  const uint4& from = u < 2 ? raw.low : raw.high;
  return window_unit(word_of(from, 2 * (u % 2)), word_of(from, 2 * (u % 2) + 1), scales.pair[0]);
}

// Decodes the lane's units of a tile of eight slots that are of one kind.
template <class Use>
__device__ __forceinline__ void decode_tile(const RawChannels& raw, bool main, bool live, Use&& use) {
  if (main) {
    const UnitScales scales = main_scales(raw, live);
#pragma unroll
    for (int u = 0; u < kLaneUnits; ++u) use(u, main_unit_of(raw, scales, u));
  } else {
    const UnitScales scales = window_scales(raw, live);
#pragma unroll
    for (int u = 0; u < kLaneUnits; ++u) use(u, window_unit_of(raw, scales, u));
  }
}

// Decodes the lane's units of tiles of eight slots and hands them to `use`. A tile may hold records of both
// kinds; whole warps take the same way, and one kind is the straight one. Lanes beyond the width have zeros.
template <int kTiles, class Use>
__device__ __forceinline__ void decode_tiles(const RawChannels* raw, const bool* main, const bool* live,
                                             Use&& use) {
  const auto from_main = [&](int tile, const UnitScales& scales, int u) {
    return main_unit_of(raw[tile], scales, u);
  };
  const auto from_window = [&](int tile, const UnitScales& scales, int u) {
    return window_unit_of(raw[tile], scales, u);
  };
  const auto all = [&](auto scales_of, auto unit_of) {
    UnitScales scales[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) scales[tile] = scales_of(tile);
#pragma unroll
    for (int u = 0; u < kLaneUnits; ++u) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        use(tile, u, unit_of(tile, scales[tile], u));
      }
    }
  };
  bool every = true, any = false;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) every = every && main[tile], any = any || main[tile];
  const bool mains = __ballot_sync(~0u, every) == ~0u, windows = __ballot_sync(~0u, any) == 0;
  if (mains) {
    all([&](int tile) { return main_scales(raw[tile], live[tile]); }, from_main);
  } else if (windows) {
    all([&](int tile) { return window_scales(raw[tile], live[tile]); }, from_window);
  } else {
    all(
        [&](int tile) {
          return main[tile] ? main_scales(raw[tile], live[tile]) : window_scales(raw[tile], live[tile]);
        },
        [&](int tile, const UnitScales& scales, int u) {
          const uint4 m = from_main(tile, scales, u), w = from_window(tile, scales, u);
          return main[tile] ? m : w;
        });
  }
}

// Partial scores of a tile: head g and g + 8 of slots 2t, 2t + 1.
__device__ __forceinline__ void store_parts(float (*part)[kPartStride], int slot0, const float (&d)[4]) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int g = lane >> 2, slot = slot0 + 2 * (lane & 3);
  *reinterpret_cast<float2*>(&part[g][slot]) = make_float2(d[0], d[1]);
  *reinterpret_cast<float2*>(&part[g + 8][slot]) = make_float2(d[2], d[3]);
}

// Scores of two slots side by side, for head `warp`.
struct ChunkScores {
  float low = -INFINITY, high = -INFINITY;
};
// Of the slots 2 lane and 2 lane + 1; `live`: their bits.
__device__ __forceinline__ ChunkScores add_parts(const float (*parts)[kHeads][kPartStride], uint32_t live,
                                                 float scale) {
  const int slot = static_cast<int>(threadIdx.x & 31) * 2;
  const int warp = static_cast<int>(threadIdx.x / 32);
  float2 of[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) of[i] = *reinterpret_cast<const float2*>(&parts[i][warp][slot]);
  ChunkScores z;
  if ((live & 1) != 0) z.low = ((of[0].x + of[1].x) + (of[2].x + of[3].x)) * scale;
  if ((live & 2) != 0) z.high = ((of[0].y + of[1].y) + (of[2].y + of[3].y)) * scale;
  return z;
}

// The largest of a warp's values; a NaN may be the largest, and then the row is NaN.
__device__ __forceinline__ float warp_max(float v) {
  const uint32_t bits = __float_as_uint(v);
  const uint32_t key = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  const uint32_t most = __reduce_max_sync(~0u, key);
  return __uint_as_float((most & 0x80000000u) != 0 ? most & 0x7FFFFFFFu : ~most);
}

// The sum over aligned groups of lanes, those side by side first: so that a quarter of a chunk's slots has a
// sum of its own.
template <int kLanes>
__device__ __forceinline__ float add_lanes(float v) {
#pragma unroll
  for (int offset = 1; offset < kLanes; offset *= 2) v += __shfl_xor_sync(~0u, v, offset);
  return v;
}

// Weights of a chunk for head `warp`, rounded for the products; returns their sum before rounding.
__device__ __forceinline__ float store_weights(const ChunkScores& z, float running,
                                               uint16_t (*e)[kWeightStride]) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const float low = expf(z.low - running);
  const float high = expf(z.high - running);
  *reinterpret_cast<uint32_t*>(&e[warp][2 * lane]) = pack_bf16(low, high);
  return add_lanes<32>(low + high);
}

// The weights of all heads as operands, sixteen slots each.
__device__ __forceinline__ void load_weights(const uint16_t (*e)[kWeightStride], uint32_t (&weight)[4][4]) {
  const int lane = static_cast<int>(threadIdx.x & 31);
#pragma unroll
  for (int k = 0; k < 4; ++k) ldmatrix_x4(weight[k], &e[lane & 15][k * 16 + (lane >> 4) * 8]);
}
// d += weights * a unit of values; `from`: the unit of slot `lane`, slots lie kWidth apart.
template <int kWidth>
__device__ __forceinline__ void multiply_values(float (&d)[4], const uint32_t (&weight)[4][4],
                                                const uint16_t* from) {
#pragma unroll
  for (int k = 0; k < 4; k += 2) {
    uint32_t v[4];
    ldmatrix_x4_trans(v, from + k * 16 * kWidth);
    mma_bf16(d, weight[k][0], weight[k][1], weight[k][2], weight[k][3], v[0], v[1]);
    mma_bf16(d, weight[k + 1][0], weight[k + 1][1], weight[k + 1][2], weight[k + 1][3], v[2], v[3]);
  }
}

// Sums of a class of chunks: the units 4 warp .. 4 warp + 3 of every head.
struct ValueSums {
  float unit[kLaneUnits][4] = {};
};

// sums = sums * factor + weights * values. (factor: of heads g and g + 8.)
__device__ __forceinline__ void add_values(const uint16_t* kv, const uint16_t (*e)[kWeightStride], float f0,
                                           float f1, int width, ValueSums& sums) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int first = static_cast<int>(threadIdx.x / 32) * kLaneUnits;
  if (first * kUnitChannels >= width) return;
  const int at = unit_at(lane, first);
  uint32_t weight[4][4];
  load_weights(e, weight);
#pragma unroll
  for (int j = 0; j < kLaneUnits; ++j) {
    float d[4] = {};
    multiply_values<kMaxWidth>(d, weight, kv + unit_beside(at, j));
#pragma unroll
    for (int i = 0; i < 4; ++i) sums.unit[j][i] = fmaf(sums.unit[j][i], i < 2 ? f0 : f1, d[i]);
  }
}

// Two classes, each by its factor.
__device__ __forceinline__ float join_classes(float a, float by_a, float b, float by_b) {
  return fmaf(b, by_b, a * by_a);
}

// All four, of two channels.
__device__ __forceinline__ float2 join_four(const float2 (&sum)[kClasses], const float (&by)[kClasses]) {
  return make_float2(
      join_classes(sum[0].x, by[0], sum[2].x, by[2]) + join_classes(sum[1].x, by[1], sum[3].x, by[3]),
      join_classes(sum[0].y, by[0], sum[2].y, by[2]) + join_classes(sum[1].y, by[1], sum[3].y, by[3]));
}

// A pair of channels, rotated by the negative of an angle.
__device__ __forceinline__ uint32_t rotated_back(uint32_t pair, float cosine, float sine) {
  const float v = bf16_low(pair), w = bf16_high(pair);
  const float n = -sine;
  return pack_bf16(v * cosine - w * n, v * n + w * cosine);
}

}  // namespace spark::engine::cuda
