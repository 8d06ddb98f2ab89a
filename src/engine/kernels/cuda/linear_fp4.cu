// FP4 weight outside an expert bank: one warp per row tile and eight rows of the step. For completeness; the
// model has its FP4 weights in experts.
#include "engine/kernels/cuda/fp4_step.cuh"
#include "engine/kernels/cuda/launch.h"

namespace spark::engine::cuda {
namespace {

__global__ void __launch_bounds__(32)
    linear_fp4_kernel(const uint8_t* stages, const uint8_t* codes, const uint8_t* scales, int rows,
                      int64_t out, int blocks, uint16_t* y, float* y_f32, int64_t y_stride) {
  launch_dependents();
  wait_for_inputs();
  const int lane = static_cast<int>(threadIdx.x);
  const int g = lane >> 2, t = lane & 3;
  const int row0 = static_cast<int>(blockIdx.y) * 8;
  const int double_blocks = (blocks + 1) / 2;
  float sum[4] = {};
  for (int tile = 0; tile < double_blocks; ++tile) {
    const int which = static_cast<int>(blockIdx.x & 1);
    const uint8_t* stage =
        stages + (static_cast<size_t>(blockIdx.x / 2) * double_blocks + tile) * fp4_stage_bytes(1);
    const uint4 w = reinterpret_cast<const uint4*>(stage + which * kTileBytes)[lane];
    const uint32_t w_scales =
        reinterpret_cast<const uint32_t*>(stage + 2 * kTileBytes + which * kFp4ScaleTileBytes)[g];
    uint2 x[2] = {};
    float x_scale[2][2] = {};
    for (int b = 0; b < 2; ++b) {
      const int block = tile * 2 + b;
      if (block >= blocks) continue;
      if (row0 + g < rows) {
        x[b] = *reinterpret_cast<const uint2*>(codes + (static_cast<size_t>(row0 + g) * blocks + block) * 32 +
                                               t * 8);
      }
      for (int c = 0; c < 2; ++c) {
        const int m = row0 + 2 * t + c;
        if (m < rows) x_scale[b][c] = ue8m0_to_float(scales[static_cast<size_t>(m) * blocks + block]);
      }
    }
    uint32_t b[8];
    fp4_activations(make_uint4(x[0].x, x[0].y, x[1].x, x[1].y), b);
    fp4_tile_step(sum, w, w_scales, b, {x_scale[0][0], x_scale[1][0], x_scale[0][1], x_scale[1][1]});
  }
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const int m = row0 + 2 * t + (q & 1);
    const int64_t n = static_cast<int64_t>(blockIdx.x) * kTileRows + g + (q >> 1) * 8;
    if (m >= rows || n >= out) continue;
    const float v = sum[q] * kFp4EmbedScale;
    if (y_f32 != nullptr) {
      y_f32[m * y_stride + n] = v;
    } else {
      y[m * y_stride + n] = float_to_bf16(v);
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

}  // namespace spark::engine::cuda
