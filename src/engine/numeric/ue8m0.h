// UE8M0: an unsigned power of two in one byte. Byte b stands for 2^(b - 127), 255 for NaN. In checkpoints
// these scales are F8_E8M0 and must be moved as bytes.
//
//   float scale = ue8m0_to_float(126);        // 0.5f
//   uint8_t byte = ue8m0_ceil(449.0f / 448);  // 128: the smallest power of two that is not below the value
#pragma once

#include <bit>
#include <cstdint>

namespace spark::engine {

inline constexpr uint8_t kUe8m0One = 127;
inline constexpr uint8_t kUe8m0Nan = 255;

// Exact: byte 0 is 2^-127, an FP32 subnormal.
constexpr float ue8m0_to_float(uint8_t byte) {
  const uint32_t normal = static_cast<uint32_t>(byte) << 23;
  const uint32_t special = byte == 0 ? 0x00400000u : 0x7FC00000u;
  return std::bit_cast<float>(byte == 0 || byte == kUe8m0Nan ? special : normal);
}

// The smallest k with 2^k >= value, for positive finite values, subnormals included (-149 .. 128).
constexpr int ceil_log2(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value) & 0x7FFFFFFFu;
  const uint32_t mantissa = bits & 0x7FFFFFu;
  const int exponent = static_cast<int>(bits >> 23);
  if (exponent == 0) return static_cast<int>(std::bit_width(mantissa == 0 ? 0u : mantissa - 1)) - 149;
  return exponent - 127 + (mantissa != 0 ? 1 : 0);
}

// The byte of 2^ceil_log2(value) for values >= 0; 0 for what lies below 2^-127 and 255 (NaN) for what lies
// above 2^127 and for NaN.
constexpr uint8_t ue8m0_ceil(float value) {
  const int byte = ceil_log2(value) + 127;
  return static_cast<uint8_t>(byte < 0 ? 0 : byte > 254 ? 255 : byte);
}

}  // namespace spark::engine
