// One 16x64 FP4 tile against eight columns of E4M3 activations.
#pragma once

#include "engine/kernels/cuda/device.cuh"

namespace spark::engine::cuda {

// Four UE8M0 scales from one word: of rows g (x0, x1: two blocks) and g + 8 (y0, y1) of a tile. Byte 0 counts
// as 0 and 255 as infinity: a scale of 2^-127 adds nothing, one of NaN must stay visible.
struct RowScales {
  float x0, x1, y0, y1;
};
__device__ __forceinline__ RowScales row_scales(uint32_t word) {
  // The lowest bit of byte 1 lands in the sign of x0; the absolute value is a modifier and costs nothing.
  return {fabsf(__uint_as_float(word << 23)), __uint_as_float((word << 15) & 0x7F800000u),
          __uint_as_float((word << 7) & 0x7F800000u), __uint_as_float((word >> 1) & 0x7F800000u)};
}

// The lane's eight E4M3 codes of either 32-block as B operands of the tile's four steps.
__device__ __forceinline__ void fp4_activations(const uint4& x, uint32_t (&b)[8]) {
  b[0] = e4m3x2_to_half2(x.x), b[1] = e4m3x2_to_half2(x.x >> 16);
  b[2] = e4m3x2_to_half2(x.y), b[3] = e4m3x2_to_half2(x.y >> 16);
  b[4] = e4m3x2_to_half2(x.z), b[5] = e4m3x2_to_half2(x.z >> 16);
  b[6] = e4m3x2_to_half2(x.w), b[7] = e4m3x2_to_half2(x.w >> 16);
}

// Two blocks, each summed, scaled and added. `x` holds the scales of column 2t (x0, x1: two blocks) and of
// column 2t + 1 (y0, y1). The sums come out multiplied by 1 / kFp4EmbedScale.
__device__ __forceinline__ void fp4_tile_step(float (&sum)[4], const uint4& w, uint32_t scale_word,
                                              const uint32_t (&b)[8], const RowScales& x) {
  const RowScales s = row_scales(scale_word);
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    uint32_t low[4], high[4];  // rows g and g + 8
    fp4_word_to_half2(block == 0 ? w.x : w.z, low);
    fp4_word_to_half2(block == 0 ? w.y : w.w, high);
    float d[4] = {};
    mma_f16(d, low[0], high[0], low[1], high[1], b[4 * block], b[4 * block + 1]);
    mma_f16(d, low[2], high[2], low[3], high[3], b[4 * block + 2], b[4 * block + 3]);
    const float g = block == 0 ? s.x0 : s.x1;
    const float g8 = block == 0 ? s.y0 : s.y1;
    const float x0 = block == 0 ? x.x0 : x.x1;
    const float x1 = block == 0 ? x.y0 : x.y1;
    sum[0] = fmaf(d[0], g * x0, sum[0]);
    sum[1] = fmaf(d[1], g * x1, sum[1]);
    sum[2] = fmaf(d[2], g8 * x0, sum[2]);
    sum[3] = fmaf(d[3], g8 * x1, sum[3]);
  }
}

// ---- two rows by four blocks ---------------------------------------------------------------------------
//
// A decode step gives an expert one or two rows, and the matrix instruction has eight columns. Column 4r + j
// holds row r's part of block j of four (zero elsewhere), so the four blocks of a 128-column stage are summed
// by the same accumulators into columns of their own, and scales are applied once per stage instead of once
// per block. Lane 4g + t then holds rows g and g + 8 of blocks 2(t & 1) and 2(t & 1) + 1 of row t >> 1.

// The lane's four half2 of its own block (g & 3) of row g >> 2.
__device__ __forceinline__ void fp4_stage_activations(const uint2& codes, uint32_t (&v)[4]) {
  v[0] = e4m3x2_to_half2(codes.x), v[1] = e4m3x2_to_half2(codes.x >> 16);
  v[2] = e4m3x2_to_half2(codes.y), v[3] = e4m3x2_to_half2(codes.y >> 16);
}

// One 16x32 block: `mine` is 1 in the lanes whose column it is and 0 elsewhere. (A product, because the unit
// for logic is the busiest one here.)
__device__ __forceinline__ void fp4_block_step(float (&d)[4], uint32_t row_g, uint32_t row_g8,
                                               const uint32_t (&b)[4]) {
  uint32_t low[4], high[4];
  fp4_word_to_half2(row_g, low);
  fp4_word_to_half2(row_g8, high);
  mma_f16(d, low[0], high[0], low[1], high[1], b[0], b[1]);
  mma_f16(d, low[2], high[2], low[3], high[3], b[2], b[3]);
}

// The sums of a stage, scaled, into the sums of rows g and g + 8; x0 and x1 are the scales of the lane's two
// blocks of its row.
__device__ __forceinline__ void fp4_stage_sum(float (&sum)[2], const float (&d)[4], uint32_t scale_word, float x0,
                                              float x1) {
  const RowScales s = row_scales(scale_word);
  sum[0] = fmaf(d[0], s.x0 * x0, sum[0]);
  sum[0] = fmaf(d[1], s.x1 * x1, sum[0]);
  sum[1] = fmaf(d[2], s.y0 * x0, sum[1]);
  sum[1] = fmaf(d[3], s.y1 * x1, sum[1]);
}

}  // namespace spark::engine::cuda
