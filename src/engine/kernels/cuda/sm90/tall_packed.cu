// Packed 12-bit BF16 weight, BF16 activations: vocabulary head, Markov head.
#include "engine/kernels/cuda/sm90/tall_gemm.cuh"

namespace spark::engine::cuda {

void launch_tall_packed(const Launch& on, const TallLaunch& plan, const StreamGemmParams& params) {
  launch_tall_gemm<PackedFormat>(on, plan, params);
}

}  // namespace spark::engine::cuda
