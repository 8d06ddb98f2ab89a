// The indexer's scores, as its kernels share them: queries and keys as operands of the matrix instruction,
// and the sum over heads in the contract's order.
//
// A warp takes 16 keys at a time, decoded once to BF16 (exact) as the A operand, and multiplies them with the
// 32 query heads of a row. Head 8t + 2j + i is column 2t + i of tile j, so that lane t of a quad owns eight
// heads in a row and the sum over ascending heads is a chain over the four lanes.
#pragma once

#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/paged.cuh"

namespace spark::engine::cuda {

constexpr int kIndexHeads = 32;  // padded
constexpr int kMaxIndexWidth = 128;
constexpr int kMaxIndexBlocks = kMaxIndexWidth / 32;

// Queries of a row as B operands: [tile j][32-block][lane], eight BF16 of the lane's column.
using IndexQueries = uint4[4][kMaxIndexBlocks][32];

__device__ __forceinline__ int visible_entries(const IndexSelectArgs& a, int row) {
  return (a.step.position[row] + 1) / a.ratio;
}

__device__ __forceinline__ uint32_t load_unaligned(const uint8_t* p, bool aligned) {
  if (aligned) return __ldcg(reinterpret_cast<const uint32_t*>(p));
  return p[0] | uint32_t{p[1]} << 8 | uint32_t{p[2]} << 16 | uint32_t{p[3]} << 24;
}

// A UE8M0 byte as a pair of BF16 (2^-127 for byte 0).
__device__ __forceinline__ uint32_t scale_pair(uint32_t byte) {
  return max_u16x2(byte * 0x00800080u, 0x00400040u);
}

// Eight E2M1 codes times a power of two as BF16 pairs (exact): codes 0 and 4, 1 and 5, 2 and 6, 3 and 7.
// Their nibbles are 16 bits apart, so a shift and a mask place both; the magnitude's bits in a BF16's
// exponent are its value times 2^-126. Queries and keys pair alike, and a block's sum is exact, so the order
// of slots is free.
__device__ __forceinline__ uint4 fp4_to_bf16(uint32_t codes, uint32_t scale) {
  uint32_t pair[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t magnitude = (i < 2 ? codes << (6 - 4 * i) : codes >> (4 * i - 6)) & 0x01C001C0u;
    pair[i] = magnitude | ((codes << (12 - 4 * i)) & 0x80008000u);
    pair[i] = multiply_bf16x2(multiply_bf16x2(pair[i], 0x7E807E80u), scale);
  }
  return make_uint4(pair[0], pair[1], pair[2], pair[3]);
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

// The factor of a head's products, rounded to BF16.
__device__ __forceinline__ float head_factor(const IndexSelectArgs& a, int row, int head) {
  if (head >= a.heads) return 0.0f;
  return round_to_bf16(bf16_to_float(a.head_weight[static_cast<int64_t>(row) * a.heads + head]) *
                       a.weight_factor);
}

// The i-th of a row's 4 x blocks warps of operands as it lies in memory: this lane's word and its scale.
struct RawQuery {
  uint32_t codes, scale;
};
__device__ __forceinline__ RawQuery load_query(const IndexSelectArgs& a, int row, int blocks, int i) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int g = lane >> 2, t = lane & 3;
  const int block = i % blocks;
  const int head = 8 * (g / 2) + 2 * (i / blocks) + (g & 1);
  if (head >= a.heads) return {0, 0};
  const int64_t vector = static_cast<int64_t>(row) * a.heads + head;
  return {__ldcg(reinterpret_cast<const uint32_t*>(a.q_packed + vector * (blocks * 16) + block * 16 + t * 4)),
          __ldcg(a.q_scales + vector * blocks + block)};
}
__device__ __forceinline__ void store_query(IndexQueries& to, int blocks, int i, const RawQuery& q) {
  to[i / blocks][i % blocks][threadIdx.x & 31] = fp4_to_bf16(q.codes, scale_pair(q.scale));
}

// Keys of 16 places of a row's list as they lie in the cache: this lane's words and scales of places base + g
// and base
// + g + 8; zero where there is none.
struct RawKeys {
  uint32_t codes[2][kMaxIndexBlocks];
  uint32_t scales[2];  // a byte a block
};

__device__ __forceinline__ void load_keys(const IndexSelectArgs& a, bool restricted, int row, int sequence,
                                          int base, int end, int visible, RawKeys& raw) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int g = lane >> 2, t = lane & 3;
  const int blocks = a.width / 32;
  const bool aligned = (a.key_cache.record_bytes & 3) == 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = base + g + half * 8;
    const int entry = i < end ? entry_at(a, restricted, row, i, visible) : -1;
    const uint8_t* record = entry >= 0 ? record_of(a.key_cache, sequence, entry) : nullptr;
    raw.scales[half] = 0;
#pragma unroll
    for (int block = 0; block < kMaxIndexBlocks; ++block) {
      raw.codes[half][block] = 0;
      if (record == nullptr || block >= blocks) continue;
      raw.codes[half][block] = load_unaligned(record + block * 16 + t * 4, aligned);
      if (!aligned || blocks != 4) {
        raw.scales[half] |= uint32_t{__ldcg(record + a.width / 2 + block)} << (8 * block);
      }
    }
    if (record != nullptr && aligned && blocks == 4) {
      raw.scales[half] = load_unaligned(record + a.width / 2, true);
    }
  }
}

// The same as A operands.
__device__ __forceinline__ void decode_keys(const RawKeys& raw, uint32_t (&k)[kMaxIndexBlocks][8]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int block = 0; block < kMaxIndexBlocks; ++block) {
      const uint4 v = fp4_to_bf16(raw.codes[half][block], scale_pair(raw.scales[half] >> (8 * block) & 255u));
      // v = two pairs of the first k16 step, then of the second.
      k[block][0 + half] = v.x, k[block][2 + half] = v.y;
      k[block][4 + half] = v.z, k[block][6 + half] = v.w;
    }
  }
}

// From the products of a row's heads with keys g and g + 8 (d[j]: heads 8t + 2j, 8t + 2j + 1) to its scores.
__device__ __forceinline__ void sum_heads(const float (&d)[4][4], const float* weight, float (&sum)[2]) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int t = lane & 3;
  float product[4][4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float2 w = *reinterpret_cast<const float2*>(weight + 8 * t + 2 * j);
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      float a = d[j][i], b = d[j][i + 1];
      round_two_to_bf16(a, b);
      a = fmaxf(a, 0.0f) * w.x, b = fmaxf(b, 0.0f) * w.y;
      round_two_to_bf16(a, b);
      product[j][i] = a, product[j][i + 1] = b;
    }
  }
  sum[0] = sum[1] = 0.0f;
#pragma unroll 1
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
}

// The scores of decoded keys for a row: sum[0] of key g, sum[1] of key g + 8, in every lane of the quad.
__device__ __forceinline__ void score_keys(const uint32_t (&k)[kMaxIndexBlocks][8],
                                           const IndexQueries& queries, const float* weight, int blocks,
                                           float (&sum)[2]) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  float d[4][4] = {};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int block = 0; block < kMaxIndexBlocks; ++block) {
      if (block >= blocks) continue;
      const uint4 q = queries[j][block][lane];
      mma_bf16(d[j], k[block][0], k[block][1], k[block][2], k[block][3], q.x, q.y);
      mma_bf16(d[j], k[block][4], k[block][5], k[block][6], k[block][7], q.z, q.w);
    }
  }
  sum_heads(d, weight, sum);
}

constexpr uint32_t kLowestKey = 0x007F;  // minus infinity

// BF16 bits to a number that orders like the value; both zeros are equal and a NaN comes last.
__device__ __forceinline__ uint32_t order_key(uint32_t bits) {
  if ((bits & 0x7FFFu) > 0x7F80u) return 0;
  if ((bits & 0x7FFFu) == 0) bits = 0;
  return (bits & 0x8000u) != 0 ? (~bits & 0xFFFFu) : (bits | 0x8000u);
}

}  // namespace spark::engine::cuda
