// A model of SM121's block-scaled matrix instruction in plain C++: what 32 lanes hold, in; what they get,
// out.
//
//   mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.TYPE.TYPE.f32.ue8m0
//
//   BlockScaledLane lanes[32] = ...;
//   float d[32][4];
//   block_scaled_mma(lanes, Element::kE2m1, Element::kE4m3, {.byte = 0}, {.byte = 0}, d);
//
// Fragments as in the PTX ISA; which lanes give the scales as in CUTLASS's traits of the instruction. Inside
// the 32 products and C it does what was measured on RTX Blackwell (Xie et al.: "MMA-Sim: Bit-Accurate
// Reference Model of Tensor Cores and Matrix Cores", 2025): all are aligned to the largest exponent, cut off
// 25 bits below it, added exactly, and the sum is rounded to FP32 toward zero. That was not measured on GB10.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "engine/numeric/e2m1.h"
#include "engine/numeric/e4m3.h"

namespace spark::emulation {

enum class Element : uint8_t { kE4m3, kE2m1 };

// What the instruction could do other than we believe; for tests of the self-test (sm121/self_test.cu).
enum class BlockScaledDefect : uint8_t {
  kNone,
  kColumns,   // of A, from the neighbour of the lane that has them
  kRowScale,  // of A, from the other lane of a pair
  kByte,      // of a scale: always the first
  kNarrow,    // 14 bits below the largest product, as Hopper's FP8 form
};
inline BlockScaledDefect block_scaled_defect = BlockScaledDefect::kNone;

struct BlockScaledLane {
  float c[4];
  uint32_t a[4];
  uint32_t b[2];
  uint32_t scale_a;
  uint32_t scale_b;
};

// byte-id and thread-id of the PTX operand.
struct ScaleSelector {
  unsigned byte = 0;
  unsigned thread = 0;
};

inline float block_scaled_element(Element type, uint32_t byte) {
  if (type == Element::kE4m3) return engine::e4m3_to_float(static_cast<uint8_t>(byte));
  // Four bits in the middle of the byte. What the others do is nowhere promised: they must be zero.
  if ((byte & 0xC3U) != 0) {
    std::fprintf(stderr, "block-scaled instruction: an E2M1 element with other bits beside it\n");
    std::abort();
  }
  return engine::e2m1_to_float(static_cast<uint8_t>(byte >> 2));
}

inline double block_scaled_scale(uint32_t word, unsigned byte) {
  const uint32_t code = word >> (8 * byte) & 255U;
  return code == 255 ? NAN : std::ldexp(1.0, static_cast<int>(code) - 127);
}

// Sum of `count` terms, cut off 25 bits below the largest exponent, then toward zero to FP32.
inline float truncated_sum(const double* terms, int count) {
  const int fraction_bits = block_scaled_defect == BlockScaledDefect::kNarrow ? 14 : 25;
  double plain = 0;
  int largest = -100000;
  for (int i = 0; i < count; ++i) {
    plain += terms[i];
    if (terms[i] != 0 && std::isfinite(terms[i])) largest = std::max(largest, std::ilogb(terms[i]));
  }
  if (!std::isfinite(plain) || largest == -100000) return static_cast<float>(plain);
  int64_t total = 0;
  for (int i = 0; i < count; ++i)
    total += static_cast<int64_t>(std::trunc(std::ldexp(terms[i], fraction_bits - largest)));
  const double exact = std::ldexp(static_cast<double>(total), largest - fraction_bits);
  const float nearest = static_cast<float>(exact);
  const bool away = std::fabs(static_cast<double>(nearest)) > std::fabs(exact);
  return away ? std::nextafter(nearest, 0.0F) : nearest;
}

// What lane `lane` gets.
inline void block_scaled_lane(const BlockScaledLane (&lanes)[32], Element a_type, Element b_type,
                              ScaleSelector select_a, ScaleSelector select_b, unsigned lane, float (&d)[4]) {
  if (block_scaled_defect == BlockScaledDefect::kByte) select_a.byte = select_b.byte = 0;
  const unsigned swap = block_scaled_defect == BlockScaledDefect::kRowScale ? 1 : 0;
  for (unsigned q = 0; q < 4; ++q) {
    const unsigned row = lane / 4 + 8 * (q / 2), column = lane % 4 * 2 + q % 2;
    // thread-id of A picks the lower or the upper pair of a quad, in which the odd lane has the upper row.
    const double scale =
        block_scaled_scale(lanes[row % 8 * 4 + 2 * select_a.thread + (row / 8 ^ swap)].scale_a,
                           select_a.byte) *
        block_scaled_scale(lanes[column * 4 + select_b.thread].scale_b, select_b.byte);
    double terms[33];
    for (unsigned k = 0; k < 32; ++k) {
      unsigned owner = k % 16 / 4;
      const unsigned half = k / 16;  // lane of a quad; slots below 16 come first
      const unsigned b_owner = owner;
      if (block_scaled_defect == BlockScaledDefect::kColumns) owner ^= 1;
      const uint32_t a = lanes[row % 8 * 4 + owner].a[half * 2 + row / 8] >> (8 * (k % 4)) & 255U;
      const uint32_t b = lanes[column * 4 + b_owner].b[half] >> (8 * (k % 4)) & 255U;
      terms[k] = static_cast<double>(block_scaled_element(a_type, a)) *
                 static_cast<double>(block_scaled_element(b_type, b)) * scale;
    }
    terms[32] = static_cast<double>(lanes[lane].c[q]);
    d[q] = truncated_sum(terms, 33);
  }
}

inline void block_scaled_mma(const BlockScaledLane (&lanes)[32], Element a_type, Element b_type,
                             ScaleSelector select_a, ScaleSelector select_b, float (&d)[32][4]) {
  for (unsigned lane = 0; lane < 32; ++lane)
    block_scaled_lane(lanes, a_type, b_type, select_a, select_b, lane, d[lane]);
}

}  // namespace spark::emulation
