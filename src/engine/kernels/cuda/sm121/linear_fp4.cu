// FP4 weight outside an expert bank: one warp per row tile and eight rows of the step. For completeness; the
// model has its FP4 weights in experts.
#include "engine/kernels/cuda/sm121/fp4_step.cuh"
#include "engine/kernels/cuda/sm121/launch.h"

namespace spark::engine::cuda::sm121 {
namespace {

__global__ void __launch_bounds__(32)
    linear_fp4_kernel(const uint8_t* stages, const uint8_t* codes, const uint8_t* scales, int rows,
                      int64_t out, int blocks, uint16_t* y, float* y_f32, int64_t y_stride) {
  launch_dependents();
  wait_for_inputs();
  const int lane = static_cast<int>(threadIdx.x);
  const int g = lane >> 2, t = lane & 3;
  const int row0 = static_cast<int>(blockIdx.y) * 8;
  const int which = static_cast<int>(blockIdx.x & 1);
  const int double_blocks = (blocks + 1) / 2;
  const bool row_valid = row0 + g < rows;
  const size_t first_block = static_cast<size_t>(row_valid ? row0 + g : 0) * blocks;
  float sum[4] = {};
  for (int tile = 0; tile < double_blocks; ++tile) {
    const uint8_t* stage =
        stages + (static_cast<size_t>(blockIdx.x / 2) * double_blocks + tile) * fp4_stage_bytes(1);
    const uint4 w = reinterpret_cast<const uint4*>(stage + which * kTileBytes)[lane];
    const uint32_t w_scales = *reinterpret_cast<const uint16_t*>(
        stage + 2 * kTileBytes + which * kFp4ScaleTileBytes + fp4_lane_scales(lane));
    uint2 x[2] = {};
    uint32_t x_scales = 0;
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const int block = tile * 2 + b;
      if (!row_valid || block >= blocks) continue;
      x[b] = *reinterpret_cast<const uint2*>(codes + (first_block + block) * 32 + t * 8);
      x_scales |= uint32_t{scales[first_block + block]} << (8 * b);
    }
    fp4_tile_step(sum, w, w_scales, x[0], x[1], x_scales);
  }
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const int m = row0 + 2 * t + (q & 1);
    const int64_t n = static_cast<int64_t>(blockIdx.x) * kTileRows + g + (q >> 1) * 8;
    if (m >= rows || n >= out) continue;
    if (y_f32 != nullptr) {
      y_f32[m * y_stride + n] = sum[q];
    } else {
      y[m * y_stride + n] = float_to_bf16(sum[q]);
    }
  }
}

}  // namespace

void launch_linear_fp4(const Launch& on, const LinearArgs& args, const PreparedWeight& weight) {
  launch_kernel(on, linear_fp4_kernel,
                dim3(static_cast<unsigned>(ceil_div(weight.rows, kTileRows)),
                     static_cast<unsigned>(ceil_div(args.rows, 8))),
                32, 0, 1, weight.tiles, args.x_q.codes, args.x_q.scales, args.rows, weight.rows,
                static_cast<int>(weight.cols / 32), args.y, args.y_f32, args.y_stride);
}

}  // namespace spark::engine::cuda::sm121
