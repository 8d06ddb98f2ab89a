// FP8 weight, FP8 activations, by the block-scaled matrix instruction: the operands are the codes as they lie
// in the tile, so nothing is decoded and one instruction does the work of two and of their conversions.
#include "engine/kernels/cuda/sm121/block_scaled_mma.cuh"
#include "engine/kernels/cuda/sm121/launch.h"
#include "engine/kernels/cuda/stream_gemm_launch.cuh"

namespace spark::engine::cuda::sm121 {
namespace {

struct BlockScaledFp8Format : Fp8Format {
  static constexpr bool kBlockScaled = true;
  using Scale = uint8_t;
  static __device__ __forceinline__ uint8_t scale(uint32_t byte) { return static_cast<uint8_t>(byte); }

  // A block of 16 weight rows and eight activation rows; all weight rows of a tile have the same scale.
  static __device__ __forceinline__ void multiply(float (&sum)[4], const Word& w, const uint2& x,
                                                  uint32_t weight_scale, uint32_t x_scale) {
    float d[4];
    mma_block_scaled_e4m3<0, 0>(d, fp8_operand(w.x, w.y, w.z, w.w), x, weight_scale, x_scale);
#pragma unroll
    for (int q = 0; q < 4; ++q) sum[q] += d[q];
  }
};

}  // namespace

void launch_stream_fp8(const Launch& on, const LinearLaunch& plan, const StreamGemmParams& params) {
  launch_stream_gemm<BlockScaledFp8Format>(on, plan, params);
}

}  // namespace spark::engine::cuda::sm121
