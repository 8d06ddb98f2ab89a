// FP8 weight, BF16 activations: the grouped output projection; the rows of a prompt.
#include "engine/kernels/cuda/sm90/prefill_gemm.cuh"

namespace spark::engine::cuda {

void launch_prefill_fp8_bf16(const Launch& on, const StreamGemmParams& params) {
  launch_prefill_gemm<Fp8Bf16Format>(on, params);
}

}  // namespace spark::engine::cuda
