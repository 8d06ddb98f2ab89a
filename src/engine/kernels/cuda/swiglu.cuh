// The experts' activation.
#pragma once

#include "engine/kernels/cuda/device.cuh"

namespace spark::engine::cuda {

// silu(min(a, limit)) * clamp(b), FP32, of BF16-rounded inputs. A NaN stays one: clamped to the limit, a
// broken activation would not be seen.
__device__ __forceinline__ float clamped_swiglu(float a, float b, float limit) {
  b = min_or_nan(max_or_nan(b, -limit), limit);
  a = min_or_nan(a, limit);
  return a / (1.0f + expf(-a)) * b;
}

}  // namespace spark::engine::cuda
