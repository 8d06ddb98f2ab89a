// BF16 weight, BF16 activations, few rows, or more against resident weights: router, index weights, compressors.
#include "engine/kernels/cuda/direct_gemm.cuh"

namespace spark::engine::cuda {

void launch_direct_bf16(const Launch& on, const DirectLaunch& plan, const StreamGemmParams& params) {
  launch_direct_gemm<Bf16Format>(on, plan, params);
}

}  // namespace spark::engine::cuda
