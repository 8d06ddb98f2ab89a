// FP8 weight, FP8 activations, at most eight rows: the shared expert's last product with the sum of the
// experts.
#include "engine/kernels/cuda/direct_gemm.cuh"

namespace spark::engine::cuda {

void launch_direct_combine(const Launch& on, const DirectLaunch& plan, const StreamGemmParams& params) {
  launch_direct_gemm<Fp8Format, true>(on, plan, params);
}

}  // namespace spark::engine::cuda
