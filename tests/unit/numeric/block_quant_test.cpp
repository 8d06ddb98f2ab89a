// Block quantisers: stated check values, properties on random blocks, layout of rows, tiles and records.
#include "engine/numeric/block_quant.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "engine/numeric/numeric.h"

namespace spark::engine {
namespace {

using Bytes = std::vector<uint8_t>;
using Bf16s = std::vector<uint16_t>;

// Random BF16 values whose magnitude varies by block over `low` .. `high` powers of two, with zeros of both
// signs.
Bf16s random_rows(size_t count, size_t block, int low, int high, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Bf16s x(count);
  int exponent = 0;
  for (size_t i = 0; i < count; ++i) {
    if (i % block == 0) exponent = low + static_cast<int>(random() % static_cast<uint32_t>(high - low + 1));
    x[i] = float_to_bf16(std::ldexp(normal(random), exponent));
    if (random() % 16 == 0) x[i] = random() % 2 == 0 ? 0x0000 : 0x8000;
  }
  return x;
}

double largest(std::span<const uint16_t> block) {
  double amax = 0;
  for (const uint16_t x : block) amax = std::max(amax, std::abs(static_cast<double>(bf16_to_float(x))));
  return amax;
}

uint8_t fp8_scale_of(float amax) {
  Bf16s x(32, 0);
  x[7] = float_to_bf16(-amax);
  Bytes codes(32), scale(1);
  quantise_fp8_block32(x, codes, scale);
  return scale[0];
}

uint8_t fp4_scale_of(float amax) {
  Bf16s x(32, 0);
  x[31] = float_to_bf16(amax);
  Bytes packed(16), scale(1);
  quantise_fp4_block32_ue8m0(x, packed, scale);
  return scale[0];
}

TEST(BlockQuant, StatedFp8Scales) {
  EXPECT_EQ(fp8_scale_of(448), 127);
  EXPECT_EQ(fp8_scale_of(450), 128);  // the BF16 above 448
  EXPECT_EQ(fp8_scale_of(1.0f), 119);
  EXPECT_EQ(fp8_scale_of(3.5f), 120);
  EXPECT_EQ(fp8_scale_of(224), 126);
  EXPECT_EQ(fp8_scale_of(0), 105);
  EXPECT_EQ(fp8_scale_of(9e-5f), 105);
  std::vector<float> weight(32, 0.0f);
  Bytes codes(32), scale(1);
  weight[3] = 449;
  quantise_fp8_rows32(weight, codes, scale);
  EXPECT_EQ(scale[0], 128);
}

TEST(BlockQuant, StatedFp4Scales) {
  EXPECT_EQ(fp4_scale_of(6), 127);
  EXPECT_EQ(fp4_scale_of(6.1f), 128);
  EXPECT_EQ(fp4_scale_of(3), 126);
  EXPECT_EQ(fp4_scale_of(1.5f), 125);
  EXPECT_EQ(fp4_scale_of(0), 1);
}

TEST(BlockQuant, E4m3ScaleIsNearestAndFloored) {
  Bf16s x(16, 0);
  Bytes packed(8), scale(1);
  quantise_fp4_block16_e4m3(x, packed, scale);
  EXPECT_EQ(scale[0], 0x01);
  x[0] = float_to_bf16(6);
  quantise_fp4_block16_e4m3(x, packed, scale);
  EXPECT_EQ(scale[0], kE4m3One);
  EXPECT_EQ(packed[0], 0x07);
  x[0] = float_to_bf16(6.25f);  // 6.25 / 6 rounds down to 1: 6.25 is clamped to 6
  quantise_fp4_block16_e4m3(x, packed, scale);
  EXPECT_EQ(scale[0], kE4m3One);
  EXPECT_EQ(packed[0], 0x07);
  x[0] = float_to_bf16(-1e6f);
  quantise_fp4_block16_e4m3(x, packed, scale);
  EXPECT_EQ(scale[0], 0x7E);
  EXPECT_EQ(packed[0], 0x0F);
}

TEST(BlockQuant, Fp8ScaleIsTheSmallestThatFitsAndCodesAreNearest) {
  const Bf16s x = random_rows(32 * 4096, 32, -40, 100, 2);
  Bytes codes(x.size()), scales(x.size() / 32);
  std::vector<float> y(x.size());
  quantise_fp8_block32(x, codes, scales);
  dequantise_fp8_block32(codes, scales, std::span<float>(y));
  for (size_t g = 0; g < scales.size(); ++g) {
    const double amax = std::max(largest(std::span(x).subspan(g * 32, 32)), 1e-4);
    const double scale = std::ldexp(1.0, scales[g] - 127);
    ASSERT_LE(amax, 448 * scale * (1 + 1e-6));
    ASSERT_GT(amax, 224 * scale * (1 - 1e-6));
    for (size_t i = g * 32; i < (g + 1) * 32; ++i) {
      const double exact = static_cast<double>(bf16_to_float(x[i])) / scale;
      ASSERT_EQ(codes[i], float_to_e4m3(static_cast<float>(exact)));
      ASSERT_EQ(y[i], e4m3_to_float(codes[i]) * scale);
      ASSERT_EQ(std::signbit(y[i]), x[i] >= 0x8000);
    }
  }
}

TEST(BlockQuant, Fp4CodesAreNearestUnderTheirScale) {
  const Bf16s x = random_rows(32 * 4096, 32, -120, 100, 3);
  Bytes packed(x.size() / 2), scales(x.size() / 32), packed16(x.size() / 2), scales16(x.size() / 16);
  quantise_fp4_block32_ue8m0(x, packed, scales);
  quantise_fp4_block16_e4m3(x, packed16, scales16);
  for (size_t i = 0; i < x.size(); ++i) {
    const double value = bf16_to_float(x[i]);
    const double scale = std::ldexp(1.0, scales[i / 32] - 127);
    ASSERT_LE(std::abs(value), 6 * scale * (1 + 1e-6));
    const uint8_t byte = packed[i / 2];
    ASSERT_EQ(i % 2 == 0 ? byte & 15 : byte >> 4, float_to_e2m1(static_cast<float>(value / scale)));

    const float amax = static_cast<float>(largest(std::span(x).subspan(i / 16 * 16, 16)));
    ASSERT_EQ(scales16[i / 16], float_to_e4m3(std::max(amax, 6.0f / 512) / 6.0f));
    const uint8_t byte16 = packed16[i / 2];
    ASSERT_EQ(i % 2 == 0 ? byte16 & 15 : byte16 >> 4,
              float_to_e2m1(static_cast<float>(value) / e4m3_to_float(scales16[i / 16])));
  }
}

TEST(BlockQuant, EveryBf16MagnitudeAsTheLargest) {
  for (uint32_t bits = 0; bits < 0x7F80; ++bits) {
    Bf16s x(32, 0);
    x[5] = static_cast<uint16_t>(bits);
    Bytes codes(32), packed(16), scale(1);
    quantise_fp8_block32(x, codes, scale);
    const double value = bf16_to_float(x[5]);
    const int k8 = static_cast<int>(std::ceil(std::log2(std::max(value, 1e-4) / 448)));
    ASSERT_EQ(scale[0], k8 + 127) << value;
    ASSERT_LE(codes[5], 0x7E);
    quantise_fp4_block32_ue8m0(x, packed, scale);
    // 6 * 2^k times FP32(1/6), which is slightly too large, rounds back to exactly 2^k.
    const int k4 = static_cast<int>(std::ceil(std::log2(std::max(value, std::ldexp(6, -126)) / 6)));
    ASSERT_EQ(scale[0], k4 + 127) << value;
  }
}

TEST(BlockQuant, FakeQuantisationIsTheRoundTripAndWorksInPlace) {
  const Bf16s x = random_rows(32 * 512, 16, -20, 8, 4);
  Bytes codes(x.size()), packed(x.size() / 2), scales(x.size() / 32), scales16(x.size() / 16);
  Bf16s expected(x.size()), got(x.size()), in_place = x;

  quantise_fp8_block32(x, codes, scales);
  dequantise_fp8_block32(codes, scales, std::span<uint16_t>(expected));
  fake_quantise_fp8_block32(x, got);
  fake_quantise_fp8_block32(in_place, in_place);
  EXPECT_EQ(got, expected);
  EXPECT_EQ(in_place, expected);

  quantise_fp4_block32_ue8m0(x, packed, scales);
  dequantise_fp4_block32_ue8m0(packed, scales, std::span<uint16_t>(expected));
  fake_quantise_fp4_block32_ue8m0(x, got);
  in_place = x;
  fake_quantise_fp4_block32_ue8m0(in_place, in_place);
  EXPECT_EQ(got, expected);
  EXPECT_EQ(in_place, expected);

  quantise_fp4_block16_e4m3(x, packed, scales16);
  dequantise_fp4_block16_e4m3(packed, scales16, std::span<uint16_t>(expected));
  fake_quantise_fp4_block16_e4m3(x, got);
  in_place = x;
  fake_quantise_fp4_block16_e4m3(in_place, in_place);
  EXPECT_EQ(got, expected);
  EXPECT_EQ(in_place, expected);
}

TEST(BlockQuant, NonFiniteBlocksDecodeToNanAndTouchNoOther) {
  for (const uint16_t bad : {uint16_t{0x7F80}, uint16_t{0xFF80}, uint16_t{0x7FC0}, uint16_t{0xFFFF}}) {
    Bf16s x(96, float_to_bf16(2.0f));
    x[40] = bad;
    Bf16s y(96);
    fake_quantise_fp8_block32(x, y);
    for (size_t i = 0; i < 96; ++i) EXPECT_EQ(std::isnan(bf16_to_float(y[i])), i / 32 == 1);
    fake_quantise_fp4_block32_ue8m0(x, y);
    for (size_t i = 0; i < 96; ++i) EXPECT_EQ(std::isnan(bf16_to_float(y[i])), i / 32 == 1);
    fake_quantise_fp4_block16_e4m3(x, y);
    for (size_t i = 0; i < 96; ++i) EXPECT_EQ(std::isnan(bf16_to_float(y[i])), i / 16 == 2);
    std::vector<float> weight(96);
    for (size_t i = 0; i < 96; ++i) weight[i] = bf16_to_float(x[i]);
    Bytes codes(96), scales(3);
    quantise_fp8_tiles32(weight, 1, 96, codes, scales);
    EXPECT_EQ(scales[1], kUe8m0Nan);
    EXPECT_NE(scales[0], kUe8m0Nan);
  }
}

TEST(WeightQuant, TilesShareOneScaleAndEdgesArePartial) {
  constexpr size_t kRows = 70;
  constexpr size_t kColumns = 50;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> weight(kRows * kColumns), y(weight.size());
  for (float& w : weight) w = normal(random) * (random() % 2 == 0 ? 0.02f : 3.0f);
  Bytes codes(weight.size()), scales(3 * 2);
  quantise_fp8_tiles32(weight, kRows, kColumns, codes, scales);
  dequantise_fp8_tiles32(codes, scales, kRows, kColumns, std::span<float>(y));
  std::vector<double> amax(6, 1e-4);
  for (size_t i = 0; i < weight.size(); ++i) {
    double& tile = amax[i / kColumns / 32 * 2 + i % kColumns / 32];
    tile = std::max(tile, std::abs(static_cast<double>(weight[i])));
  }
  for (size_t t = 0; t < 6; ++t)
    EXPECT_EQ(scales[t], ue8m0_ceil(static_cast<float>(amax[t]) * (1.0f / 448))) << t;
  for (size_t i = 0; i < weight.size(); ++i) {
    const float scale = ue8m0_to_float(scales[i / kColumns / 32 * 2 + i % kColumns / 32]);
    ASSERT_EQ(codes[i], float_to_e4m3(weight[i] / scale));
    ASSERT_EQ(y[i], e4m3_to_float(codes[i]) * scale);
  }
}

TEST(WeightQuant, RowFormsMatchTheActivationQuantisersOnBf16) {
  const Bf16s x = random_rows(32 * 64, 32, -10, 4, 6);
  std::vector<float> weight(x.size());
  for (size_t i = 0; i < x.size(); ++i) weight[i] = bf16_to_float(x[i]);
  Bytes codes(x.size()), packed(x.size() / 2), scales(x.size() / 32);
  Bytes codes_w(x.size()), packed_w(x.size() / 2), scales_w(x.size() / 32);
  quantise_fp8_block32(x, codes, scales);
  quantise_fp8_rows32(weight, codes_w, scales_w);
  EXPECT_EQ(codes, codes_w);
  EXPECT_EQ(scales, scales_w);
  quantise_fp4_block32_ue8m0(x, packed, scales);
  quantise_fp4_rows32(weight, packed_w, scales_w);
  EXPECT_EQ(packed, packed_w);
  EXPECT_EQ(scales, scales_w);
}

TEST(Records, SizesAndRoundTrips) {
  EXPECT_EQ(window_record_bytes(512), 528);
  EXPECT_EQ(main_record_bytes(512), 288);
  EXPECT_EQ(index_key_record_bytes(128), 68);
  const Bf16s x = random_rows(512, 16, -6, 4, 7);
  Bf16s expected(512), got(512);

  Bytes record(528);
  encode_window_record(x, record);
  decode_window_record(record, got);
  fake_quantise_fp8_block32(x, expected);
  EXPECT_EQ(got, expected);
  EXPECT_EQ(record[512 + 3],
            ue8m0_ceil(static_cast<float>(largest(std::span(x).subspan(96, 32))) * (1.0f / 448)));

  record.resize(288);
  encode_main_record(x, record);
  decode_main_record(record, got);
  fake_quantise_fp4_block16_e4m3(x, expected);
  EXPECT_EQ(got, expected);

  record.resize(68);
  const auto key = std::span(x).first(128);
  got.resize(128);
  expected.resize(128);
  encode_index_record(key, record);
  decode_index_record(record, got);
  fake_quantise_fp4_block32_ue8m0(key, expected);
  EXPECT_EQ(got, expected);
}

TEST(BlockQuantDeathTest, WrongSizesAreProgrammingErrors) {
  Bf16s x(33);
  Bytes codes(33), scales(1);
  EXPECT_DEATH(quantise_fp8_block32(x, codes, scales), "internal error");
  x.resize(32);
  EXPECT_DEATH(quantise_fp8_block32(x, codes, scales), "internal error");
  std::vector<float> weight(64);
  codes.resize(64);
  EXPECT_DEATH(quantise_fp8_tiles32(weight, size_t{1} << 63, 128, codes, scales), "internal error");
}

}  // namespace
}  // namespace spark::engine
