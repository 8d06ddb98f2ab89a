// FP8 weight, FP8 activations.
#include "engine/kernels/cuda/stream_gemm_launch.cuh"

namespace spark::engine::cuda {

void launch_stream_fp8(const Launch& on, const LinearLaunch& plan, const StreamGemmParams& params) {
  launch_stream_gemm<Fp8Format>(on, plan, params);
}

}  // namespace spark::engine::cuda
