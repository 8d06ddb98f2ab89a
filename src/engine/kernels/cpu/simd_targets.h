// Which instruction sets the kernels are compiled for; include before any Highway header.
//
// Three builds of each kernel keep compilation short: AVX-512, AVX2 (with FMA and F16C), and Highway's plain
// C++ emulation for older processors. On Arm: NEON. All give the same bits where products are exact (all FP8,
// FP4 and BF16 products); elsewhere (FP32 weights, exp) AVX2, AVX-512 and NEON agree, and the emulation,
// which has no fused multiply-add, may differ in last bits. Many rows of FP8 and FP4 products go to Intel's
// tile unit where there is one (tile_unit.h), with the same bits again.
#pragma once

#include <hwy/detect_compiler_arch.h>

#include <cstdint>

// Highway avoids its emulation on GCC before 12.3 because of GCC bug 106322, which miscompiles the upper
// halves of products; no kernel here forms any, and the tests run every target.
#define HWY_BROKEN_EMU128 0

#if HWY_ARCH_X86
#define HWY_DISABLED_TARGETS (~(HWY_AVX3 | HWY_AVX2 | HWY_EMU128 | HWY_SCALAR))
#elif HWY_ARCH_ARM
#define HWY_DISABLED_TARGETS ((1LL << 28) - 1)  // everything better than NEON: SVE has no fixed width
#endif

namespace spark::engine::cpu {

// Name of the instruction set in use, for Backend::name().
const char* simd_name();

// For tests: lets only targets of this mask (HWY_AVX2, ...) be chosen from now on, without the tile unit; 0
// allows all again.
void limit_simd_targets(int64_t mask);

// The compiled targets that this processor supports.
int64_t usable_simd_targets();

}  // namespace spark::engine::cpu
