// BF16 weight, BF16 activations: router, index weights, compressors; the rows of a prompt.
#include "engine/kernels/cuda/sm90/prefill_gemm.cuh"

namespace spark::engine::cuda {

void launch_prefill_bf16(const Launch& on, const StreamGemmParams& params) {
  launch_prefill_gemm<Bf16Format>(on, params);
}

}  // namespace spark::engine::cuda
