// Routed experts of the rows of a prompt (experts_prefill_*.cu): what their three kernels share.
//
// An item is up to kPrefillItemRows rows of one expert. A word of the weights is decoded once an item and
// multiplied with all of its rows, eight at a time, so weights are read once for them all and not once for
// every two. The sums are the streaming kernel's (experts_stream.cu), bit for bit: in its lanes a row's
// blocks 0 and 1 of every 128 columns are one sum and blocks 2 and 3 another, which here are two sets of
// sums.
#pragma once

#include "engine/kernels/cuda/experts_parts.cuh"
#include "engine/kernels/cuda/fp4_step.cuh"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/sm90/store_codes.cuh"

namespace spark::engine::cuda {

constexpr int kItemEights = kPrefillItemRows / 8;
constexpr int kItemWarps = 12;
constexpr int kItemThreads = 32 * kItemWarps;
constexpr int kWarpTiles = 2;  // 16-row tiles of the weights, of a warp

// Sums of a warp: [first or second 64 of every 128 columns][tile][eight rows].
using ItemSums = float[2][kWarpTiles][kItemEights][4];

// A row's 32-blocks as FP16 in shared memory: the eight columns of a lane are 16 bytes, a block 64, and rows
// lie so that eight lanes of two rows meet all banks.
__host__ __device__ constexpr int item_row_bytes(int blocks) {
  return static_cast<int>(round_up(blocks * 64, 128)) + 64;
}

// As row_scales (fp4_step.cuh) has them: 0 counts as 0.
__device__ __forceinline__ float item_scale(uint32_t byte) {
  return __uint_as_float(byte << 23);
}

// One stage of 64 columns into the warp's sums: `tiles[i]` is the lane's words of tile i, `words[i]` its
// row's scales; `rows`: the lane's place in the block's first row, `scales`: of rows 2t and 2t + 1 of the
// first block, whose blocks lie kPrefillItemRows apart. The first kEights eights of rows: no branch stands
// between their products, which wait for each other's results only.
template <int kEights>
__device__ __forceinline__ void multiply_item(float (&sum)[kWarpTiles][kItemEights][4],
                                              const uint8_t* (&tiles)[kWarpTiles],
                                              const uint32_t* (&words)[kWarpTiles], const uint8_t* rows,
                                              int row_bytes, const float* scales) {
  uint4 w[kWarpTiles];
  RowScales s[kWarpTiles];
#pragma unroll
  for (int i = 0; i < kWarpTiles; ++i) {
    w[i] = *reinterpret_cast<const uint4*>(tiles[i]);
    s[i] = row_scales(*words[i]);
  }
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    uint32_t low[kWarpTiles][4], high[kWarpTiles][4];
#pragma unroll
    for (int i = 0; i < kWarpTiles; ++i) {
      fp4_word_to_half2(block == 0 ? w[i].x : w[i].z, low[i]);
      fp4_word_to_half2(block == 0 ? w[i].y : w[i].w, high[i]);
    }
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      const uint4 b = *reinterpret_cast<const uint4*>(rows + n * 8 * row_bytes + block * 64);
      const float2 x = *reinterpret_cast<const float2*>(scales + block * kPrefillItemRows + n * 8);
#pragma unroll
      for (int i = 0; i < kWarpTiles; ++i) {
        float d[4] = {};
        mma_f16(d, low[i][0], high[i][0], low[i][1], high[i][1], b.x, b.y);
        mma_f16(d, low[i][2], high[i][2], low[i][3], high[i][3], b.z, b.w);
        const float g = block == 0 ? s[i].x0 : s[i].x1;
        const float g8 = block == 0 ? s[i].y0 : s[i].y1;
        sum[i][n][0] = fmaf(d[0], g * x.x, sum[i][n][0]);
        sum[i][n][1] = fmaf(d[1], g * x.y, sum[i][n][1]);
        sum[i][n][2] = fmaf(d[2], g8 * x.x, sum[i][n][2]);
        sum[i][n][3] = fmaf(d[3], g8 * x.y, sum[i][n][3]);
      }
    }
  }
}

// The same for a number of eights that the whole warp has in common.
__device__ __forceinline__ void multiply_item(float (&sum)[kWarpTiles][kItemEights][4],
                                              const uint8_t* (&tiles)[kWarpTiles],
                                              const uint32_t* (&words)[kWarpTiles], const uint8_t* rows,
                                              int row_bytes, const float* scales, int eights) {
  static_assert(kItemEights == 4);
  switch (eights) {
    case 1:
      return multiply_item<1>(sum, tiles, words, rows, row_bytes, scales);
    case 2:
      return multiply_item<2>(sum, tiles, words, rows, row_bytes, scales);
    case 3:
      return multiply_item<3>(sum, tiles, words, rows, row_bytes, scales);
    default:
      return multiply_item<4>(sum, tiles, words, rows, row_bytes, scales);
  }
}

}  // namespace spark::engine::cuda
