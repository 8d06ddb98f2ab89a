// FP4 E2M1: codes 0..7 stand for 0, 0.5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign (code 8 is -0).
//
//   uint8_t code = float_to_e2m1(-2.5f);            // 12: the tie between -2 and -3 goes to the even code
//   uint8_t byte = pack_e2m1(code_even, code_odd);  // the even element is the low nibble
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace spark::engine {

inline constexpr float kE2m1Max = 6.0f;

// The value of each code.
inline constexpr std::array<float, 16> kE2m1Values = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                                      -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// Only the low four bits of `code` count.
constexpr float e2m1_to_float(uint8_t code) {
  return kE2m1Values[code & 15u];
}

// Round to nearest, ties to the even code; what exceeds 6 becomes +-6 and -0 keeps its sign. The format has
// no NaN: a NaN becomes +6, as the GPU's conversion instruction does it.
constexpr uint8_t float_to_e2m1(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const float magnitude = std::bit_cast<float>(bits & 0x7FFFFFFFu);
  const int code = int{magnitude > 0.25f} + int{magnitude >= 0.75f} + int{magnitude > 1.25f} +
                   int{magnitude >= 1.75f} + int{magnitude > 2.5f} + int{magnitude >= 3.5f} +
                   int{magnitude > 5.0f};
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 7;
  return static_cast<uint8_t>(static_cast<uint32_t>(code) | ((bits >> 28) & 8u));
}

constexpr uint8_t pack_e2m1(uint8_t even_code, uint8_t odd_code) {
  return static_cast<uint8_t>((even_code & 15u) | ((odd_code & 15u) << 4));
}
constexpr uint8_t unpack_e2m1_even(uint8_t byte) {
  return byte & 15u;
}
constexpr uint8_t unpack_e2m1_odd(uint8_t byte) {
  return static_cast<uint8_t>(byte >> 4);
}

}  // namespace spark::engine
