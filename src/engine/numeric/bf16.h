// BF16 (1 sign, 8 exponent, 7 mantissa bits): the upper half of an FP32.
//
//   uint16_t bits = float_to_bf16(1.00390625f);   // 0x3F80: a tie goes to the even mantissa
//   float value = bf16_to_float(bits);            // 1.0f, always exact
//
// Arrays of BF16 are std::span<uint16_t> holding these bits, everywhere in the engine.
#pragma once

#include <bit>
#include <cstdint>

namespace spark::engine {

constexpr float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Round to nearest, ties to even; values that round past the largest finite BF16 become infinite. A NaN stays
// a NaN with its sign and the upper bits of its payload, made quiet.
constexpr uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>(is_nan ? quiet : rounded);
}

// Rounded once: a value that FP32 rounds onto the middle between two BF16 values goes to its own side.
constexpr uint16_t double_to_bf16(double value) {
  const auto near = static_cast<float>(value);
  const double rounded = static_cast<double>(near);
  const double size = value < 0 ? -value : value;
  const double rounded_size = rounded < 0 ? -rounded : rounded;
  uint32_t bits = std::bit_cast<uint32_t>(near);
  if ((bits & 0xFFFFu) == 0x8000u) {
    if (size > rounded_size) ++bits;
    if (size < rounded_size) --bits;
  }
  return float_to_bf16(std::bit_cast<float>(bits));
}

// The nearest BF16 value, as FP32.
constexpr float round_to_bf16(float value) {
  return bf16_to_float(float_to_bf16(value));
}

}  // namespace spark::engine
