// The matrix instruction of a warpgroup (engine/kernels/cuda/sm90/wgmma.cuh) for the emulator: B is read from
// the block's shared memory as the descriptor says.
#pragma once

#include "cuda_emulation/emulator.h"
#include "engine/kernels/cuda/plan/wide_operand.h"

namespace spark::engine::cuda {

inline void wgmma_fence() {}
inline void wgmma_commit() {}
inline void wgmma_operands_written() {}
#define SPARK_OPERAND_SHARED(name) SPARK_DYNAMIC_SHARED(uint8_t, name)
inline uint64_t wgmma_operand(const void* b) {
  const auto at = reinterpret_cast<const uint8_t*>(b) - emulation::dynamic_shared();
  if (at < 0 || at >= 0x40000 || at % 16 != 0) std::abort();
  return wgmma_descriptor(static_cast<uint32_t>(at));
}

template <bool kAdd, bool kBf16, int kN>
void wgmma(float (&d)[kN][4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t rows) {
  struct Part {
    uint32_t a[4];
    uint64_t rows;
  };
  emulation::require_warpgroups();
  const Part mine{{a0, a1, a2, a3}, rows};
  const uint8_t* all = emulation::meet_warp(&mine, sizeof mine);
  const unsigned lane = emulation::lane();
  const auto to_float = [](uint32_t bits) {
    return kBf16 ? engine::bf16_to_float(static_cast<uint16_t>(bits)) : half_to_float(bits & 0xFFFFu);
  };
  const size_t start = (rows & 0x3FFF) << 4, eight_rows = (rows >> 32 & 0x3FFF) << 4;
  if (rows >> 62 != 2) std::abort();  // the 64-byte swizzle is the only one here
  for (unsigned i = 0; i < 4; ++i) {
    // The rows' side is the same for all of a warp, so a lane reads its own two weight rows only once.
    const unsigned row = lane / 4 + 8 * (i / 2);
    float a[16];
    for (unsigned k = 0; k < 16; ++k) {
      const auto owner = emulation::lane_value<Part>(all, row % 8 * 4 + k % 8 / 2);
      if (owner.rows != rows) std::abort();  // one instruction, one operand
      a[k] = to_float(owner.a[k / 8 * 2 + row / 8] >> (16 * (k & 1)));
    }
    for (unsigned n = 0; n < static_cast<unsigned>(kN); ++n) {
      const unsigned col = 2 * (lane % 4) + (i & 1);
      double sum = kAdd ? static_cast<double>(d[n][i]) : 0.0;
      for (unsigned k = 0; k < 16; ++k) {
        // The swizzle is one of addresses: bits 4 and 5 with bits 7 and 8.
        const size_t plain = start + n * eight_rows + col * 64 + k * 2;
        uint16_t b = 0;
        std::memcpy(&b, emulation::dynamic_shared() + (plain ^ ((plain >> 7 & 3) << 4)), sizeof b);
        sum += static_cast<double>(a[k]) * static_cast<double>(to_float(b));
      }
      d[n][i] = static_cast<float>(sum);
    }
  }
}

template <int kN>
void wgmma_pin(float (&)[kN][4]) {}
template <int kPending, int kN>
void wgmma_wait(float (&)[kN][4]) {}

}  // namespace spark::engine::cuda
