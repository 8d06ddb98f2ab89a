// FP8 weight, BF16 activations, nine rows and more: the grouped output projection.
#include "engine/kernels/cuda/sm90/wide_gemm.cuh"

namespace spark::engine::cuda {

void launch_wide_fp8_bf16(const Launch& on, const WideLaunch& plan, const StreamGemmParams& params) {
  launch_wide_gemm<Fp8Bf16Format>(on, plan, params);
}

}  // namespace spark::engine::cuda
