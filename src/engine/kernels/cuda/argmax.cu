// Greedy selection on the device: the largest logit of a row, the lowest index on ties.
#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"

namespace spark::engine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPieces = kArgmaxPieces;

// Orders by value, then by lower index, as one unsigned number; a NaN comes before everything.
__device__ __forceinline__ uint64_t rank_of(float v, uint32_t index) {
  const uint32_t bits = __float_as_uint(v == 0.0f ? 0.0f : v);
  const uint32_t ordered = v != v ? 0u : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | (0xFFFFFFFFu - index);
}

__device__ __forceinline__ uint64_t block_max(uint64_t v) {
  __shared__ uint64_t scratch[kThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) {
    const uint64_t other = __shfl_xor_sync(~0u, v, offset);
    v = v > other ? v : other;
  }
  if ((threadIdx.x & 31) == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  for (int i = 0; i < kThreads / 32; ++i) v = v > scratch[i] ? v : scratch[i];
  return v;
}

__global__ void argmax_pieces_kernel(const float* logits, int64_t vocabulary, int64_t stride,
                                     uint64_t* best) {
  launch_dependents();
  wait_for_inputs();
  const int64_t piece = ceil_div(vocabulary, kPieces);
  const int64_t first = piece * blockIdx.x;
  const int64_t last = first + piece < vocabulary ? first + piece : vocabulary;
  uint64_t v = 0;
  for (int64_t i = first + threadIdx.x; i < last; i += kThreads) {
    const uint64_t r = rank_of(logits[blockIdx.y * stride + i], static_cast<uint32_t>(i));
    v = v > r ? v : r;
  }
  v = block_max(v);
  if (threadIdx.x == 0) best[blockIdx.y * kPieces + blockIdx.x] = v;
}

__global__ void argmax_finish_kernel(const uint64_t* best, int32_t* index) {
  launch_dependents();
  wait_for_inputs();
  const uint64_t v = block_max(threadIdx.x < kPieces ? best[blockIdx.x * kPieces + threadIdx.x] : 0);
  if (threadIdx.x == 0) index[blockIdx.x] = static_cast<int32_t>(0xFFFFFFFFu - static_cast<uint32_t>(v));
}

}  // namespace

void launch_argmax(const Launch& on, const float* logits, int rows, int64_t vocabulary, int64_t stride,
                   int32_t* best, uint64_t* workspace) {
  launch_kernel(on, argmax_pieces_kernel, dim3(kPieces, static_cast<unsigned>(rows)), kThreads, 0, 1, logits,
                vocabulary, stride, workspace);
  launch_kernel(on, argmax_finish_kernel, dim3(static_cast<unsigned>(rows)), kThreads, 0, 1, workspace, best);
}

}  // namespace spark::engine::cuda
