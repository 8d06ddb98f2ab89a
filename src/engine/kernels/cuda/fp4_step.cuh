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
  return {__uint_as_float((word << 23) & 0x7F800000u), __uint_as_float((word << 15) & 0x7F800000u),
          __uint_as_float((word << 7) & 0x7F800000u), __uint_as_float((word >> 1) & 0x7F800000u)};
}

// Two blocks, each summed, scaled and added. x holds the lane's eight codes of either block,
// x_scale[block][column] those of columns 2t and 2t + 1. The sums come out multiplied by 1 / kFp4EmbedScale.
__device__ __forceinline__ void fp4_tile_step(float (&sum)[4], const uint4& w, uint32_t scale_word,
                                              const uint4& x, const float (&x_scale)[2][2]) {
  const RowScales s = row_scales(scale_word);
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    uint32_t low[4], high[4];  // rows g and g + 8
    fp4_word_to_half2(block == 0 ? w.x : w.z, low);
    fp4_word_to_half2(block == 0 ? w.y : w.w, high);
    const uint32_t c0 = block == 0 ? x.x : x.z;
    const uint32_t c1 = block == 0 ? x.y : x.w;
    float d[4] = {};
    mma_f16(d, low[0], high[0], low[1], high[1], e4m3x2_to_half2(c0), e4m3x2_to_half2(c0 >> 16));
    mma_f16(d, low[2], high[2], low[3], high[3], e4m3x2_to_half2(c1), e4m3x2_to_half2(c1 >> 16));
    const float g = block == 0 ? s.x0 : s.x1;
    const float g8 = block == 0 ? s.y0 : s.y1;
    sum[0] = fmaf(d[0], g * x_scale[block][0], sum[0]);
    sum[1] = fmaf(d[1], g * x_scale[block][1], sum[1]);
    sum[2] = fmaf(d[2], g8 * x_scale[block][0], sum[2]);
    sum[3] = fmaf(d[3], g8 * x_scale[block][1], sum[3]);
  }
}

}  // namespace spark::engine::cuda
