#include "engine/kernels/cuda/devices.h"

#include <cuda_runtime.h>

#include "common/log.h"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/sm121/self_test.h"

namespace spark::engine {
namespace cuda {
namespace {

bool supported(const cudaDeviceProp& properties) {
  return (properties.major == 9 && properties.minor == 0) ||
         (properties.major == 12 && properties.minor == 1);
}

}  // namespace

void choose_device(int device, CudaDeviceInfo& info, DeviceLimits& limits) {
  check(cudaSetDevice(device), "choosing the device");
  cudaDeviceProp properties = {};
  check(cudaGetDeviceProperties(&properties, device), "reading the device's properties");
  info = {.name = properties.name,
          .compute_major = properties.major,
          .compute_minor = properties.minor,
          .multiprocessors = properties.multiProcessorCount,
          .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
          .l2_bytes = properties.l2CacheSize,
          .shared_bytes_per_block = static_cast<int64_t>(properties.sharedMemPerBlockOptin)};
  if (!supported(properties)) {
    throw Error(info.name + " has compute capability " + std::to_string(properties.major) + "." +
                    std::to_string(properties.minor),
                "CUDA backend", "this build has code for 9.0 (H100, H200) and 12.1 (GB10)");
  }
  limits.multiprocessors = properties.multiProcessorCount;
  limits.shared_bytes = properties.sharedMemPerBlockOptin;
  limits.max_cluster = 8;
  limits.max_attention_cluster = properties.major == 9 ? 16 : 8;
  limits.sm90 = properties.major == 9;
  limits.block_scaled_mma = false;
  if (properties.major == 12) {
    info.notice = sm121::block_scaled_fault();
    limits.block_scaled_mma = info.notice.empty();
    if (!info.notice.empty()) log_warning(info.name + ": " + info.notice);
  }
}

}  // namespace cuda

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  int usable = 0;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties = {};
    if (cudaGetDeviceProperties(&properties, i) == cudaSuccess && cuda::supported(properties)) ++usable;
  }
  return usable;
}

std::optional<uint64_t> cuda_free_memory() {
  cudaDeviceProp properties = {};
  size_t free = 0, total = 0;
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess || properties.integrated != 0 ||
      cudaMemGetInfo(&free, &total) != cudaSuccess) {
    cudaGetLastError();
    return std::nullopt;
  }
  return free;
}

}  // namespace spark::engine
