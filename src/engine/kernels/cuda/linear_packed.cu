// Packed 12-bit BF16 weight, BF16 activations: vocabulary head, Markov head.
#include "engine/kernels/cuda/stream_gemm_launch.cuh"

namespace spark::engine::cuda {

void launch_stream_packed(const Launch& on, const LinearLaunch& plan, const StreamGemmParams& params) {
  launch_stream_gemm<PackedFormat>(on, plan, params);
}

}  // namespace spark::engine::cuda
