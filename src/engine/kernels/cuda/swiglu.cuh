// The experts' activation.
#pragma once

#include "engine/kernels/cuda/device.cuh"

namespace spark::engine::cuda {

// silu(min(a, limit)) * clamp(b), FP32, of BF16-rounded inputs.
__device__ __forceinline__ float clamped_swiglu(float a, float b, float limit) {
  b = fminf(fmaxf(b, -limit), limit);
  a = fminf(a, limit);
  return a / (1.0f + expf(-a)) * b;
}

}  // namespace spark::engine::cuda
