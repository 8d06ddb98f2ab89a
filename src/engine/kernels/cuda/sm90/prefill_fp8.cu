// FP8 weight, FP8 activations; the rows of a prompt.
#include "engine/kernels/cuda/sm90/prefill_gemm.cuh"

namespace spark::engine::cuda {

void launch_prefill_fp8(const Launch& on, const StreamGemmParams& params) {
  launch_prefill_gemm<Fp8Format>(on, params);
}

}  // namespace spark::engine::cuda
