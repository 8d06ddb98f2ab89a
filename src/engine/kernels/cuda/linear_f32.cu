// FP32 weight with BF16 activations, FP32 FMA in a fixed order: lanes over columns, then a shuffle tree. The mHC
// coefficients have a kernel of their own; this one serves small or rare projections.
#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"

namespace spark::engine::cuda {
namespace {

constexpr int kWarps = 8;

// One warp per output; it takes the rows of the step one after the other, the weights stay in L1.
__global__ void linear_f32_kernel(const float* weight, int64_t out, int64_t cols, const uint16_t* x, int rows,
                                  uint16_t* y, float* y_f32, int64_t y_stride) {
  launch_dependents();
  wait_for_inputs();
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (n >= out) return;
  for (int m = static_cast<int>(blockIdx.y); m < rows; m += static_cast<int>(gridDim.y)) {
    float sum = 0.0f;
    for (int64_t k = threadIdx.x & 31; k < cols; k += 32) {
      sum = fmaf(bf16_to_float(x[m * cols + k]), weight[n * cols + k], sum);
    }
    sum = warp_sum(sum);
    if ((threadIdx.x & 31) != 0) continue;
    if (y_f32 != nullptr) {
      y_f32[m * y_stride + n] = sum;
    } else {
      y[m * y_stride + n] = float_to_bf16(sum);
    }
  }
}

}  // namespace

void launch_linear_f32(const Launch& on, const LinearArgs& args, const PreparedWeight& weight) {
  launch_kernel(on, linear_f32_kernel,
                dim3(static_cast<unsigned>(ceil_div(weight.rows, kWarps)), static_cast<unsigned>(std::min(args.rows, 64))),
                kWarps * 32, 0, 1, reinterpret_cast<const float*>(weight.tiles), weight.rows, weight.cols, args.x,
                args.rows, args.y, args.y_f32, args.y_stride);
}

}  // namespace spark::engine::cuda
