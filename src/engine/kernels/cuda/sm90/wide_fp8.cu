// FP8 weight, FP8 activations, nine rows and more.
#include "engine/kernels/cuda/sm90/wide_gemm.cuh"

namespace spark::engine::cuda {

void launch_wide_fp8(const Launch& on, const WideLaunch& plan, const StreamGemmParams& params) {
  launch_wide_gemm<Fp8Format>(on, plan, params);
}

}  // namespace spark::engine::cuda
