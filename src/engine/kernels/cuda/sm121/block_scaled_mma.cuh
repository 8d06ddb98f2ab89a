// The block-scaled matrix instruction of SM121. tests/cuda_emulation has the same functions in plain C++.
//
// They start from zero and return a block's scaled sum; the caller adds it in FP32. So the order of a sum and
// its rounding from block to block are ours, as on SM90, and only what happens inside 32 products is the
// instruction's (docs/kernels/sm121.md).
#pragma once

#include "engine/kernels/cuda/plan/block_scaled.h"

#ifdef SPARK_CUDA_EMULATION
#include SPARK_CUDA_EMULATION
#else
#include <cstdint>

namespace spark::engine::cuda {

// d = (a sA) (b sB), a E4M3. kByte: which byte of the scale registers.
template <int kByteA, int kByteB>
__device__ __forceinline__ void mma_block_scaled_e4m3(float (&d)[4], const BlockScaledOperand& a,
                                                      const uint2& b, uint32_t scale_a, uint32_t scale_b) {
  asm("mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10}, %11, {%12, 0}, %13, {%14, 0};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a.a[0]), "r"(a.a[1]), "r"(a.a[2]), "r"(a.a[3]), "r"(b.x), "r"(b.y), "f"(0.0f), "r"(scale_a),
        "n"(kByteA), "r"(scale_b), "n"(kByteB));
}

// The same with a E2M1 in the middle of its bytes.
template <int kByteA, int kByteB>
__device__ __forceinline__ void mma_block_scaled_e2m1(float (&d)[4], const BlockScaledOperand& a,
                                                      const uint2& b, uint32_t scale_a, uint32_t scale_b) {
  asm("mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e2m1.e4m3.f32.ue8m0 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10}, %11, {%12, 0}, %13, {%14, 0};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a.a[0]), "r"(a.a[1]), "r"(a.a[2]), "r"(a.a[3]), "r"(b.x), "r"(b.y), "f"(0.0f), "r"(scale_a),
        "n"(kByteA), "r"(scale_b), "n"(kByteB));
}

}  // namespace spark::engine::cuda
#endif
