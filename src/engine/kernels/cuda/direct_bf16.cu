// BF16 weight and activations, weights that fit in shared memory: router, index weights, compressors.
#include "engine/kernels/cuda/direct_gemm.cuh"

namespace spark::engine::cuda {

void launch_direct_bf16(const Launch& on, const DirectLaunch& plan, const StreamGemmParams& params) {
  launch_direct_gemm<Bf16Format>(on, plan, params);
}

}  // namespace spark::engine::cuda
