// Small FP32 functions shared by the reference operations: evaluated in double, rounded once.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "engine/numeric/bf16.h"

namespace spark::engine::reference {

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

inline float exp_f32(float x) {
  return static_cast<float>(std::exp(static_cast<double>(x)));
}

inline float sigmoid(float x) {
  return static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(x))));
}

// 1 / sqrt(x): both operations rounded to FP32 once, together.
inline float rsqrt_f32(float x) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x)));
}

inline double dot_double(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}
inline float dot(std::span<const float> a, std::span<const float> b) {
  return static_cast<float>(dot_double(a, b));
}

// mean(x^2) of BF16 values.
inline float mean_square(std::span<const uint16_t> x) {
  double sum = 0;
  for (const uint16_t bits : x) {
    const double value = static_cast<double>(bf16_to_float(bits));
    sum += value * value;
  }
  return static_cast<float>(sum / static_cast<double>(x.size()));
}

inline void to_float(std::span<const uint16_t> x, std::span<float> out) {
  for (size_t i = 0; i < x.size(); ++i) out[i] = bf16_to_float(x[i]);
}

}  // namespace spark::engine::reference
