// FP8 weight, FP8 activations, few rows, or more against resident weights.
#include "engine/kernels/cuda/direct_gemm.cuh"

namespace spark::engine::cuda {

void launch_direct_fp8(const Launch& on, const DirectLaunch& plan, const StreamGemmParams& params) {
  launch_direct_gemm<Fp8Format>(on, plan, params);
}

}  // namespace spark::engine::cuda
