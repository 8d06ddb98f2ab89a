// Chooses the instantiation of the streaming product for a plan.
#pragma once

#include "engine/kernels/cuda/stream_gemm.cuh"

namespace spark::engine::cuda {

template <class Format>
void launch_stream_gemm(const Launch& on, const LinearLaunch& plan, const StreamGemmParams& params) {
  const auto with = [&](auto kernel) {
    launch_kernel(on, kernel, dim3(static_cast<unsigned>(plan.grid), params.second_tiles != nullptr ? 2 : 1), kLinearThreads, plan.shared_bytes,
                  plan.cluster, params);
  };
  switch (plan.n_tiles) {
    case 1:
      if constexpr (Format::kCodes) {
        if (plan.row_tiles == 2) return with(stream_gemm_kernel<Format, 1, 2>);
      }
      return with(stream_gemm_kernel<Format, 1, 1>);
    case 2:
      if constexpr (Format::kCodes) {
        if (plan.row_tiles == 2) return with(stream_gemm_kernel<Format, 2, 2>);
      }
      return with(stream_gemm_kernel<Format, 2, 1>);
    case 3:
      return with(stream_gemm_kernel<Format, 3, 2>);
    case 6:
      return with(stream_gemm_kernel<Format, 6, 2>);
    default:
      return with(stream_gemm_kernel<Format, 12, 1>);
  }
}

}  // namespace spark::engine::cuda
