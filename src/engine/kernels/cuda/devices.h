// Which devices this build has code for, and what of them the kernels use.
#pragma once

#include "engine/kernels/cuda/cuda_backend.h"
#include "engine/kernels/cuda/plan/linear_plan.h"

namespace spark::engine::cuda {

// Makes the device the thread's and reads its properties; throws Error when it is of another kind.
void choose_device(int device, CudaDeviceInfo& info, DeviceLimits& limits);

}  // namespace spark::engine::cuda
