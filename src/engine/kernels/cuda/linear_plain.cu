// Products of shapes that the streaming kernels do not take: FP32 weights, BF16 of odd widths, groups that no
// row tile divides. FP32 FMA in a fixed order: lanes over columns, then a shuffle tree. Not fast, and nothing
// large comes here.
#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"

namespace spark::engine::cuda {
namespace {

constexpr int kWarps = 8;

struct F32Weight {
  const float* data;
  int64_t cols;
  __device__ float operator()(int64_t row, int64_t col) const { return data[row * cols + col]; }
};

struct Bf16Weight {
  const uint16_t* data;
  int64_t cols;
  __device__ float operator()(int64_t row, int64_t col) const {
    return bf16_to_float(data[row * cols + col]);
  }
};

struct Fp8Weight {
  const uint8_t* tiles;
  const uint8_t* scales;
  int64_t blocks;
  __device__ float operator()(int64_t row, int64_t col) const {
    return e4m3_to_float(tiles[fp8_tile_offset(row, col, blocks)]) *
           ue8m0_to_float(scales[(row / 32) * blocks + col / 32]);
  }
};

// One warp per output; it takes the rows of the step one after the other, the weights stay in L1. Output n
// sees the columns of group n / rows_per_group of x.
template <class WeightView>
__global__ void plain_kernel(WeightView weight, int64_t out, int64_t cols, const uint16_t* x,
                             int64_t x_stride, int64_t rows_per_group, int rows, uint16_t* y, float* y_f32,
                             int64_t y_stride) {
  launch_dependents();
  wait_for_inputs();
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (n >= out) return;
  const int64_t group = n / rows_per_group;
  for (int m = static_cast<int>(blockIdx.y); m < rows; m += static_cast<int>(gridDim.y)) {
    float sum = 0.0f;
    for (int64_t k = threadIdx.x & 31; k < cols; k += 32) {
      sum = fmaf(bf16_to_float(x[m * x_stride + group * cols + k]), weight(n, k), sum);
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

template <class WeightView>
void launch(const Launch& on, const WeightView& view, const PlainProduct& p) {
  launch_kernel(
      on, plain_kernel<WeightView>,
      dim3(static_cast<unsigned>(ceil_div(p.out, kWarps)), static_cast<unsigned>(std::min(p.rows, 64))),
      kWarps * 32, 0, 1, view, p.out, p.cols, p.x, p.x_stride, p.rows_per_group, p.rows, p.y, p.y_f32,
      p.y_stride);
}

}  // namespace

void launch_linear_plain(const Launch& on, const PreparedWeight& weight, const PlainProduct& product) {
  switch (weight.layout) {
    case Layout::kF32:
      return launch(on, F32Weight{reinterpret_cast<const float*>(weight.tiles), weight.cols}, product);
    case Layout::kPlainBf16:
      return launch(on, Bf16Weight{reinterpret_cast<const uint16_t*>(weight.tiles), weight.cols}, product);
    default:
      return launch(on, Fp8Weight{weight.tiles, weight.scales, weight.cols / 32}, product);
  }
}

}  // namespace spark::engine::cuda
