// The matrix instruction of a warpgroup (four warps from a warp index that is a multiple of four), with its A
// operand in registers and B in shared memory. tests/cuda_emulation has the same functions in plain C++.
//
// d (64 x 8 kN) = a (64 x 16) * b (16 x 8 kN), FP16 or BF16 with FP32 sums. Warp w of the group holds rows
// 16 w .. 16 w + 15 of a and d, as mma.m16n8k16 has them: registers d[n] are those of the n-th eight columns.
// What one of these instructions returns is what the smaller one returns for the same numbers, bit for bit
// (gpu_bench check compares them), so both may serve one product.
#pragma once

#include <cstdint>

#include "engine/kernels/cuda/plan/wide_operand.h"

#ifdef SPARK_CUDA_EMULATION
#include SPARK_CUDA_EMULATION
#else
#include "engine/kernels/cuda/instructions.cuh"

namespace spark::engine::cuda {

// Before the first product, and before one whose registers something else has touched.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// What this thread wrote to shared memory is seen by the products that come after the next barrier.
__device__ __forceinline__ void wgmma_operands_written() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// `b` lies as wide_operand.h says, in shared memory that this declares.
#define SPARK_OPERAND_SHARED(name) extern __shared__ __align__(1024) uint8_t name[]
__device__ __forceinline__ uint64_t wgmma_operand(const void* b) {
  return wgmma_descriptor(shared_address(b));
}

// kAdd: d is added to, else overwritten. kBf16: BF16 operands, else FP16. The operands' numbers in the
// instruction's text follow from the number of sums, so every width is spelt out.
#define SPARK_D(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define SPARK_WGMMA_TYPE(shape, type, sums, a, b, add, ...)                                                  \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, " add ", 0; wgmma.mma_async.sync.aligned." shape ".f32." type \
               "." type " {" sums "}, {" a "}, " b ", p, 1, 1, 0; }"                                         \
               : __VA_ARGS__                                                                                 \
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(rows), "n"(static_cast<int>(kAdd))                  \
               : "memory")
#define SPARK_WGMMA(kN, shape, sums, a, b, add, ...)                                             \
  template <bool kAdd, bool kBf16>                                                               \
  __device__ __forceinline__ void wgmma(float(&d)[kN][4], uint32_t a0, uint32_t a1, uint32_t a2, \
                                        uint32_t a3, uint64_t rows) {                            \
    if constexpr (kBf16) {                                                                       \
      SPARK_WGMMA_TYPE(shape, "bf16", sums, a, b, add, __VA_ARGS__);                             \
    } else {                                                                                     \
      SPARK_WGMMA_TYPE(shape, "f16", sums, a, b, add, __VA_ARGS__);                              \
    }                                                                                            \
  }
SPARK_WGMMA(1, "m64n8k16", "%0,%1,%2,%3", "%4,%5,%6,%7", "%8", "%9", SPARK_D(0))
SPARK_WGMMA(2, "m64n16k16", "%0,%1,%2,%3,%4,%5,%6,%7", "%8,%9,%10,%11", "%12", "%13", SPARK_D(0), SPARK_D(1))
SPARK_WGMMA(3, "m64n24k16", "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11", "%12,%13,%14,%15", "%16", "%17",
            SPARK_D(0), SPARK_D(1), SPARK_D(2))
SPARK_WGMMA(6, "m64n48k16",
            "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23",
            "%24,%25,%26,%27", "%28", "%29", SPARK_D(0), SPARK_D(1), SPARK_D(2), SPARK_D(3), SPARK_D(4),
            SPARK_D(5))
#undef SPARK_WGMMA
#undef SPARK_WGMMA_TYPE
#undef SPARK_D

// Keeps what reads or writes `d` on its side of the products: the compiler knows nothing of their running on.
template <int kN>
__device__ __forceinline__ void wgmma_pin(float (&d)[kN][4]) {
#pragma unroll
  for (int n = 0; n < kN; ++n)
    asm volatile("" : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])::"memory");
}
// Waits until at most kPending groups of products are under way; `d` is a result of an older one.
template <int kPending, int kN>
__device__ __forceinline__ void wgmma_wait(float (&d)[kN][4]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
  wgmma_pin(d);
}

}  // namespace spark::engine::cuda
#endif
