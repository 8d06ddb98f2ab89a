// FP8 E4M3, the "fn" variant: bias 7, no infinities, largest value 448, smallest normal 2^-6, smallest
// subnormal 2^-9; 0x7F and 0xFF are NaN.
//
//   uint8_t code = float_to_e4m3(1000.0f);  // 0x7E: conversions saturate at 448
//   float value = e4m3_to_float(code);      // 448.0f
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace spark::engine {

inline constexpr float kE4m3Max = 448.0f;
inline constexpr uint8_t kE4m3One = 0x38;
inline constexpr uint8_t kE4m3Nan = 0x7F;

namespace detail {
constexpr std::array<float, 256> make_e4m3_values() {
  std::array<float, 256> values{};
  for (uint32_t code = 0; code < 256; ++code) {
    const uint32_t exponent = (code >> 3) & 15u;
    const uint32_t mantissa = code & 7u;
    float value = 0;
    if ((code & 0x7Fu) == kE4m3Nan) {
      value = std::numeric_limits<float>::quiet_NaN();
    } else if (exponent == 0) {
      value = static_cast<float>(mantissa) / 512.0f;
    } else {
      value = std::bit_cast<float>(((exponent + 120u) << 23) | (mantissa << 20));
    }
    values[code] = (code & 0x80u) != 0 ? -value : value;
  }
  return values;
}
}  // namespace detail

// The value of each code.
inline constexpr std::array<float, 256> kE4m3Values = detail::make_e4m3_values();

constexpr float e4m3_to_float(uint8_t code) {
  return kE4m3Values[code];
}

// Round to nearest, ties to even; what exceeds 448, infinities included, becomes +-448; NaN becomes NaN. The
// sign is kept always, also of zero and NaN.
constexpr uint8_t float_to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  uint32_t code = 0;
  if (magnitude <
      0x3C800000u) {  // below 2^-6: adding 2^14 leaves a multiple of 2^-9, rounded by the addition
    code = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 16384.0f) - 0x46800000u;
  } else {
    const uint32_t rounded = magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u);
    const uint32_t unbounded = (rounded >> 20) - (120u << 3);
    code = unbounded < 0x7Eu ? unbounded : 0x7Eu;
  }
  if (magnitude > 0x7F800000u) code = kE4m3Nan;
  return static_cast<uint8_t>(sign | code);
}

}  // namespace spark::engine
