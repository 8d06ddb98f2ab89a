// One 16x64 FP4 tile against up to eight rows of E4M3 activations, by the block-scaled matrix instruction.
#pragma once

#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/plan/block_scaled.h"
#include "engine/kernels/cuda/sm121/block_scaled_mma.cuh"

namespace spark::engine::cuda::sm121 {

// Adds the tile's two 32-blocks, the first one first. `w`: the lane's words (block 0 rows g and g + 8, block
// 1 rows g and g + 8). `w_scales`: row block_scaled_row(lane)'s two scales in the low bytes. x0, x1: row g's
// eight codes of either block; `x_scales`: its two scales in the low bytes.
__device__ __forceinline__ void fp4_tile_step(float (&sum)[4], const uint4& w, uint32_t w_scales,
                                              const uint2& x0, const uint2& x1, uint32_t x_scales) {
  float d[4], e[4];
  mma_block_scaled_e2m1<0, 0>(d, fp4_operand(w.x, w.y), x0, w_scales, x_scales);
  mma_block_scaled_e2m1<1, 1>(e, fp4_operand(w.z, w.w), x1, w_scales, x_scales);
#pragma unroll
  for (int q = 0; q < 4; ++q) sum[q] += d[q];
#pragma unroll
  for (int q = 0; q < 4; ++q) sum[q] += e[q];
}

}  // namespace spark::engine::cuda::sm121
