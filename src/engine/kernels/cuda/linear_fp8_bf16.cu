// FP8 weight, BF16 activations: the grouped output projection.
#include "engine/kernels/cuda/stream_gemm_launch.cuh"

namespace spark::engine::cuda {

void launch_stream_fp8_bf16(const Launch& on, const LinearLaunch& plan, const StreamGemmParams& params) {
  launch_stream_gemm<Fp8Bf16Format>(on, plan, params);
}

}  // namespace spark::engine::cuda
