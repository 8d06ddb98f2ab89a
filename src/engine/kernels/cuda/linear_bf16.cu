// BF16 weight, BF16 activations: router, index weights, compressors.
#include "engine/kernels/cuda/stream_gemm_launch.cuh"

namespace spark::engine::cuda {

void launch_stream_bf16(const Launch& on, const LinearLaunch& plan, const StreamGemmParams& params) {
  launch_stream_gemm<Bf16Format>(on, plan, params);
}

}  // namespace spark::engine::cuda
