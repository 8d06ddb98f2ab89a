// A stage of FP4 weights (plan/tiles.h: 64 columns of 32 rows of one matrix or two) on its way through a
// warp's ring in shared memory; and what the routed experts' kernels for few rows and for a prompt's agree
// on.
#pragma once

#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/plan/tiles.h"

namespace spark::engine::cuda::sm121 {

constexpr size_t kMaxSharedBytes = 99 * 1024;  // of a block on GB10

// Shards of the hidden dimension of gate and up: a warp of a block each, added in their order.
constexpr int kUpShards = 8;

template <int kMatrices>
__device__ __forceinline__ void copy_fp4_stage(uint8_t* place, const uint8_t* stage) {
  constexpr int kPieces = fp4_stage_bytes(kMatrices) / 16;
  const int lane = static_cast<int>(threadIdx.x & 31);
#pragma unroll
  for (int i = 0; i < kPieces / 32; ++i) {
    copy_async_16(place + i * 512 + lane * 16, stage + i * 512 + lane * 16);
  }
  constexpr int kAt = kPieces / 32 * 512;
  copy_async_16_if(lane < kPieces % 32, place + kAt + lane * 16, stage + kAt + lane * 16, true);
}

}  // namespace spark::engine::cuda::sm121
