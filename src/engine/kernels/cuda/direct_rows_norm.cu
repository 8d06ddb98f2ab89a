// FP8 weight, at most eight BF16 rows that are normalised on the way.
#include "engine/kernels/cuda/direct_rows_gemm.cuh"

namespace spark::engine::cuda {

void launch_direct_rows_norm(const Launch& on, const DirectLaunch& plan, const DirectRowsParams& params) {
  launch_direct_rows_gemm<true>(on, plan, params);
}

}  // namespace spark::engine::cuda
