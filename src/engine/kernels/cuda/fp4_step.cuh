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

}  // namespace spark::engine::cuda
