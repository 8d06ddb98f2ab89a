// The scalar formats, over every code and every BF16 pattern, against definitions written from the format's
// text with none of the code under test.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "engine/numeric/numeric.h"

namespace spark::engine {
namespace {

uint32_t bits_of(float value) {
  return std::bit_cast<uint32_t>(value);
}

// The nearest of `values` (non-negative, ascending, indexed by code) to |x|; the even code on a tie; the last
// one above it.
int nearest_code(const std::vector<double>& values, double x) {
  int best = 0;
  for (int code = 1; code < static_cast<int>(values.size()); ++code) {
    const double current = std::abs(x - values[static_cast<size_t>(best)]);
    const double other = std::abs(x - values[static_cast<size_t>(code)]);
    if (other < current || (other == current && code % 2 == 0)) best = code;
  }
  return best;
}

std::vector<double> e4m3_magnitudes() {
  std::vector<double> values;
  for (int code = 0; code < 127; ++code) {
    const int exponent = code / 8;
    const int mantissa = code % 8;
    values.push_back(exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
  }
  return values;
}

// Every value of the table, every midpoint, and their FP32 neighbours on both sides.
std::vector<float> probes(const std::vector<double>& values) {
  std::vector<float> result;
  const auto add = [&](double value) {
    const auto x = static_cast<float>(value);
    for (const float y : {x, std::nextafter(x, 0.0f), std::nextafter(x, 1e30f)}) {
      result.push_back(y);
      result.push_back(-y);
    }
  };
  for (size_t i = 0; i < values.size(); ++i) {
    add(values[i]);
    if (i + 1 < values.size()) add((values[i] + values[i + 1]) / 2);
  }
  add(values.back() * 1.01);
  add(values.back() * 1.2);
  add(values.back() * 1000);
  return result;
}

TEST(Bf16, EveryPatternRoundTrips) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto bf16 = static_cast<uint16_t>(bits);
    const float value = bf16_to_float(bf16);
    EXPECT_EQ(bits_of(value), bits << 16);
    if (std::isnan(value)) {
      EXPECT_EQ(float_to_bf16(value), bits | 0x40u);
    } else {
      EXPECT_EQ(float_to_bf16(value), bits);
    }
  }
}

TEST(Bf16, RoundsToNearestEvenBetweenAllNeighbours) {
  for (uint32_t bits = 0; bits < 0x7F80; ++bits) {
    const uint32_t below = bits << 16;
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    for (const uint32_t sign : {0u, 0x8000u}) {
      const auto rounded = [&](uint32_t magnitude) {
        return float_to_bf16(std::bit_cast<float>(magnitude | sign << 16));
      };
      EXPECT_EQ(rounded(below + 1), bits | sign);
      EXPECT_EQ(rounded(below + 0x7FFF), bits | sign);
      EXPECT_EQ(rounded(below + 0x8000), even | sign);
      EXPECT_EQ(rounded(below + 0x8001), (bits + 1) | sign);
      EXPECT_EQ(rounded(below + 0xFFFF), (bits + 1) | sign);
    }
  }
}

TEST(Bf16, NansStayQuietNansWithTheirSign) {
  for (const uint32_t nan : {0x7F800001u, 0x7FC00000u, 0x7FFFFFFFu, 0xFF800001u, 0xFFFFFFFFu}) {
    const uint16_t bf16 = float_to_bf16(std::bit_cast<float>(nan));
    EXPECT_TRUE(std::isnan(bf16_to_float(bf16))) << nan;
    EXPECT_EQ(bf16 >> 15, nan >> 31);
    EXPECT_NE(bf16 & 0x40, 0);
  }
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::infinity()), 0x7F80);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(round_to_bf16(1.00390625f), 1.0f);
}

// Rounding to FP32 first would take values beside the middle of two neighbours for the middle itself.
TEST(Bf16, DoublesAreRoundedOnce) {
  for (uint32_t pattern = 0; pattern < 0x7F7Fu; ++pattern) {
    const auto low = static_cast<uint16_t>(pattern);
    const double middle = (static_cast<double>(bf16_to_float(low)) +
                           static_cast<double>(bf16_to_float(static_cast<uint16_t>(low + 1)))) /
                          2;
    const auto even = static_cast<uint16_t>(low + (low & 1));
    for (const double sign : {1.0, -1.0}) {
      const auto bits = [&](uint16_t magnitude) {
        return static_cast<uint16_t>(magnitude | (sign < 0 ? 0x8000u : 0u));
      };
      ASSERT_EQ(double_to_bf16(sign * middle), bits(even)) << pattern;
      ASSERT_EQ(double_to_bf16(sign * std::nextafter(middle, 0.0)), bits(low)) << pattern;
      ASSERT_EQ(double_to_bf16(sign * std::nextafter(middle, 1e300)), bits(static_cast<uint16_t>(low + 1)))
          << pattern;
      ASSERT_EQ(double_to_bf16(sign * static_cast<double>(bf16_to_float(low))), bits(low)) << pattern;
    }
  }
  EXPECT_EQ(double_to_bf16(1e300), 0x7F80u);
  EXPECT_EQ(double_to_bf16(-1e300), 0xFF80u);
  EXPECT_TRUE(std::isnan(bf16_to_float(double_to_bf16(std::nan("")))));
}

TEST(E4m3, EveryCodeHasItsValueAndRoundTrips) {
  const std::vector<double> magnitudes = e4m3_magnitudes();
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_float(static_cast<uint8_t>(code));
    EXPECT_EQ(bits_of(value) >> 31, static_cast<uint32_t>(code) >> 7) << code;
    EXPECT_EQ(float_to_e4m3(value), code);
    if (code % 128 == 127) {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(std::abs(value), magnitudes[static_cast<size_t>(code % 128)]) << code;
    }
  }
  EXPECT_EQ(e4m3_to_float(kE4m3One), 1.0f);
}

TEST(E4m3, EncodesEveryBf16ToTheNearestTiesToEven) {
  const std::vector<double> magnitudes = e4m3_magnitudes();
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float x = bf16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(x)) {
      EXPECT_EQ(float_to_e4m3(x), 0x7Fu | (bits >> 8 & 0x80u));
      continue;
    }
    const double magnitude = std::min(std::abs(static_cast<double>(x)), 1e6);  // infinity saturates like 1e6
    ASSERT_EQ(float_to_e4m3(x), nearest_code(magnitudes, magnitude) | (bits >> 8 & 0x80u)) << x;
  }
}

TEST(E4m3, EncodesMidpointsAndTheirNeighbours) {
  const std::vector<double> magnitudes = e4m3_magnitudes();
  for (const float x : probes(magnitudes)) {
    ASSERT_EQ(float_to_e4m3(x), nearest_code(magnitudes, std::abs(x)) | (std::signbit(x) ? 0x80 : 0)) << x;
  }
  EXPECT_EQ(float_to_e4m3(std::numeric_limits<float>::max()), 0x7E);
  EXPECT_EQ(float_to_e4m3(-std::numeric_limits<float>::infinity()), 0xFE);
}

TEST(E2m1, EncodesEveryBf16ToTheNearestTiesToEven) {
  const std::vector<double> magnitudes = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float x = bf16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(x)) {
      EXPECT_EQ(float_to_e2m1(x), 7);
      continue;
    }
    const double magnitude = std::min(std::abs(static_cast<double>(x)), 1e6);
    ASSERT_EQ(float_to_e2m1(x), nearest_code(magnitudes, magnitude) | (bits >> 12 & 8u)) << x;
  }
  for (const float x : probes(magnitudes)) {
    ASSERT_EQ(float_to_e2m1(x), nearest_code(magnitudes, std::abs(x)) | (std::signbit(x) ? 8 : 0)) << x;
  }
}

TEST(E2m1, EveryCodeRoundTripsAndPacks) {
  for (uint8_t even = 0; even < 16; ++even) {
    EXPECT_EQ(float_to_e2m1(e2m1_to_float(even)), even);
    EXPECT_EQ(std::signbit(e2m1_to_float(even)), even >= 8);
    for (uint8_t odd = 0; odd < 16; ++odd) {
      const uint8_t byte = pack_e2m1(even, odd);
      EXPECT_EQ(byte & 15, even);
      EXPECT_EQ(unpack_e2m1_even(byte), even);
      EXPECT_EQ(unpack_e2m1_odd(byte), odd);
    }
  }
}

TEST(Ue8m0, EveryByteIsItsPowerOfTwo) {
  for (int byte = 0; byte < 255; ++byte) {
    const float value = ue8m0_to_float(static_cast<uint8_t>(byte));
    EXPECT_EQ(value, std::ldexp(1.0, byte - 127)) << byte;
    EXPECT_EQ(ue8m0_ceil(value), byte);
    EXPECT_EQ(ceil_log2(value), byte - 127);
    EXPECT_EQ(ue8m0_ceil(std::nextafter(value, INFINITY)), byte + 1);
    EXPECT_EQ(ue8m0_ceil(std::nextafter(value, 0.0f)), byte);
  }
  EXPECT_TRUE(std::isnan(ue8m0_to_float(255)));
  EXPECT_EQ(bits_of(ue8m0_to_float(0)), 0x00400000u);
  EXPECT_EQ(ue8m0_ceil(0.0f), 0);
  EXPECT_EQ(ue8m0_ceil(std::numeric_limits<float>::infinity()), kUe8m0Nan);
  EXPECT_EQ(ue8m0_ceil(std::numeric_limits<float>::quiet_NaN()), kUe8m0Nan);
}

TEST(Ue8m0, CeilLog2OfRandomAndSubnormalValues) {
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    const uint32_t bits = random() % 0x7F800000u;
    const float value = std::bit_cast<float>(i % 4 == 0 ? bits % 0x800000u : bits);
    if (value == 0.0f) continue;
    const int k = ceil_log2(value);
    ASSERT_GE(std::ldexp(1.0, k), value);
    ASSERT_LT(std::ldexp(1.0, k - 1), value);
  }
}

}  // namespace
}  // namespace spark::engine
