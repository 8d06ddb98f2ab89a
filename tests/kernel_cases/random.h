// Random data for kernel cases: reproducible from a seed on every platform (no std distributions).
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "engine/numeric/numeric.h"
#include "kernel_cases/problem.h"

namespace spark::engine::cases {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ULL + 1) {}
  uint64_t bits() {  // splitmix64
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  int32_t below(int32_t n) { return static_cast<int32_t>(bits() % static_cast<uint64_t>(n)); }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  float normal(double sigma = 1) {  // sum of uniforms: tails end at 6 sigma, which is enough here
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return static_cast<float>(sum * sigma);
  }

 private:
  uint64_t state_;
};

// 1 to 96 rows, few more often than many.
inline int32_t random_rows(Random& random) {
  const int32_t most[] = {2, 6, 20, 96};
  return 1 + random.below(most[random.below(4)]);
}
// step, 2 step ... up to `most`.
inline int32_t random_multiple(Random& random, int32_t step, int32_t most) {
  return step * (1 + random.below(most / step));
}

// What a row of activations may look like.
enum class Style : uint8_t {
  kNormal,
  kZero,      // +0 and -0
  kOutliers,  // a few values 1000 times larger
  kTiny,      // about 1e-6: below the activation quantiser's floor
  kHuge,      // about 1e15
  kSparse,    // whole blocks of zeros
  kStyles,
};

inline float styled(Random& random, Style style, size_t i) {
  const float x = random.normal();
  switch (style) {
    case Style::kZero:
      return (i & 1) != 0 ? -0.0F : 0.0F;
    case Style::kOutliers:
      return random.below(64) == 0 ? x * 1000 : x;
    case Style::kTiny:
      return x * 1e-6F;
    case Style::kHuge:
      return x * 1e15F;
    case Style::kSparse:
      return (i / 32) % 3 == 1 ? 0.0F : x;
    default:
      return x;
  }
}

inline std::vector<uint16_t> bf16_values(Random& random, size_t n, double sigma = 1) {
  std::vector<uint16_t> out(n);
  for (uint16_t& x : out) x = float_to_bf16(random.normal(sigma));
  return out;
}
// Rows in turn of every style (all normal when there is only one row, unless a style is given).
inline std::vector<uint16_t> bf16_rows(Random& random, int32_t rows, size_t cols, int first_style = 0) {
  std::vector<uint16_t> out;
  for (int32_t m = 0; m < rows; ++m) {
    const auto style = static_cast<Style>((m + first_style) % static_cast<int>(Style::kStyles));
    for (size_t i = 0; i < cols; ++i) out.push_back(float_to_bf16(styled(random, style, i)));
  }
  return out;
}
inline std::vector<float> f32_values(Random& random, size_t n, double sigma = 1) {
  std::vector<float> out(n);
  for (float& x : out) x = random.normal(sigma);
  return out;
}
// Norm weights: around one.
inline std::vector<uint16_t> norm_weights(Random& random, size_t n) {
  std::vector<uint16_t> out(n);
  for (uint16_t& x : out) x = float_to_bf16(1 + random.normal(0.2));
  return out;
}

// A weight of the given format; random codes and scales rather than quantised numbers, so that all codes
// appear.
inline HostWeight random_weight(Random& random, WeightFormat format, int64_t rows, int64_t cols) {
  HostWeight w{format, rows, cols, {}, {}};
  const auto n = static_cast<size_t>(rows * cols);
  const auto scales = [&](size_t count, int low, int high) {
    for (size_t i = 0; i < count; ++i)
      w.scales.push_back(static_cast<uint8_t>(low + random.below(high - low)));
  };
  const auto bytes = [&](const auto& values) {
    const auto* begin = reinterpret_cast<const uint8_t*>(values.data());
    w.data.assign(begin, begin + values.size() * sizeof(values[0]));
  };
  switch (format) {
    case WeightFormat::kFp8:
      for (size_t i = 0; i < n; ++i) {
        const auto code = static_cast<uint8_t>(random.bits());
        w.data.push_back((code & 0x7F) == 0x7F ? uint8_t{0x80} : code);
      }
      scales(static_cast<size_t>((rows + 31) / 32 * ((cols + 31) / 32)), 115, 122);
      break;
    case WeightFormat::kFp4:
      for (size_t i = 0; i < n / 2; ++i) w.data.push_back(static_cast<uint8_t>(random.bits()));
      scales(n / 32, 120, 126);
      break;
    case WeightFormat::kBf16:
      bytes(bf16_values(random, n, 0.1));
      break;
    case WeightFormat::kF32:
      bytes(f32_values(random, n, 0.1));
      break;
  }
  return w;
}

// Edge values among quantised rows: a block without a number, scales at both ends, largest and subnormal
// codes.
inline void add_edges(Random& random, std::vector<uint8_t>& codes, std::vector<uint8_t>& scales) {
  for (size_t block = 0; block < scales.size(); ++block) {
    const auto fill = [&](auto code) {
      for (size_t i = 0; i < 32; ++i) codes[block * 32 + i] = static_cast<uint8_t>(code(i));
    };
    switch (random.below(24)) {
      case 0:
        fill([](size_t) { return 0; });
        scales[block] = random.below(8) == 0 ? 255 : 1;
        break;
      case 1:
        fill([](size_t i) { return i % 2 == 0 ? 0x7E : 0xFE; });  // +-448
        break;
      case 2:
        fill([&](size_t) { return random.below(8) + 128 * random.below(2); });  // subnormals
        break;
      case 3:
        scales[block] = static_cast<uint8_t>(random.below(2) == 0 ? 70 : 150);
        break;
      default:
        break;
    }
  }
}

// FP8 rows as the activation quantiser makes them.
struct QuantisedHost {
  std::vector<uint8_t> codes, scales;
};
inline QuantisedHost quantised(const std::vector<uint16_t>& x) {
  QuantisedHost q{std::vector<uint8_t>(x.size()), std::vector<uint8_t>(x.size() / 32)};
  quantise_fp8_block32(x, q.codes, q.scales);
  return q;
}

}  // namespace spark::engine::cases
