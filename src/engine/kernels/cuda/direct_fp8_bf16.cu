// FP8 weight, BF16 activations in groups, few rows, or more against resident weights.
#include "engine/kernels/cuda/direct_gemm.cuh"

namespace spark::engine::cuda {

void launch_direct_fp8_bf16(const Launch& on, const DirectLaunch& plan, const StreamGemmParams& params) {
  launch_direct_gemm<Fp8Bf16Format>(on, plan, params);
}

}  // namespace spark::engine::cuda
