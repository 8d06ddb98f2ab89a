// Bit-exact agreement with vectors of an independent implementation (tests/data/golden/formats.safetensors).
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "engine/checkpoint/safetensors_file.h"
#include "engine/numeric/numeric.h"

namespace spark::engine {
namespace {

class Golden : public testing::Test {
 protected:
  template <typename T>
  std::vector<T> get(const std::string& name) const {
    return file_.tensor(name).copy<T>();
  }

 private:
  SafetensorsFile file_{SPARK_TEST_DATA "/golden/formats.safetensors"};
};

using Bytes = std::vector<uint8_t>;
using Bf16s = std::vector<uint16_t>;

TEST_F(Golden, Scalars) {
  const auto e4m3 = get<float>("e4m3.input");
  const auto e4m3_codes = get<uint8_t>("e4m3.code");
  ASSERT_EQ(e4m3.size(), 1776u);
  for (size_t i = 0; i < e4m3.size(); ++i) EXPECT_EQ(float_to_e4m3(e4m3[i]), e4m3_codes[i]) << e4m3[i];

  const auto decoded = get<float>("e4m3.decode_table");
  for (size_t code = 0; code < 256; ++code) {
    const float nan_as_zero = code % 128 == 127 ? 0.0f : e4m3_to_float(static_cast<uint8_t>(code));
    EXPECT_EQ(nan_as_zero, decoded[code]);
  }

  const auto e2m1 = get<float>("e2m1.input");
  const auto e2m1_codes = get<uint8_t>("e2m1.code");
  ASSERT_EQ(e2m1.size(), 558u);
  for (size_t i = 0; i < e2m1.size(); ++i) EXPECT_EQ(float_to_e2m1(e2m1[i]), e2m1_codes[i]) << e2m1[i];

  const auto bf16 = get<float>("bf16.input");
  const auto bf16_bits = get<uint16_t>("bf16.bits");
  ASSERT_EQ(bf16.size(), 2443u);
  for (size_t i = 0; i < bf16.size(); ++i) EXPECT_EQ(float_to_bf16(bf16[i]), bf16_bits[i]) << bf16[i];

  const auto positive = get<float>("ceil_pow2.input");
  const auto powers = get<uint8_t>("ceil_pow2.byte");
  ASSERT_EQ(positive.size(), 210u);
  for (size_t i = 0; i < positive.size(); ++i) EXPECT_EQ(ue8m0_ceil(positive[i]), powers[i]) << positive[i];
}

TEST_F(Golden, Fp8Block32) {
  const auto x = get<uint16_t>("fp8_block32.input");
  ASSERT_EQ(x.size(), 216u * 32);
  Bytes codes(x.size()), scales(x.size() / 32);
  Bf16s y(x.size());
  quantise_fp8_block32(x, codes, scales);
  EXPECT_EQ(codes, get<uint8_t>("fp8_block32.codes"));
  EXPECT_EQ(scales, get<uint8_t>("fp8_block32.scales"));
  fake_quantise_fp8_block32(x, y);
  EXPECT_EQ(y, get<uint16_t>("fp8_block32.dequantised"));
}

TEST_F(Golden, Fp4Block32Ue8m0) {
  const auto x = get<uint16_t>("fp4_block32_e8m0.input");
  ASSERT_EQ(x.size(), 204u * 32);
  Bytes packed(x.size() / 2), scales(x.size() / 32);
  Bf16s y(x.size());
  quantise_fp4_block32_ue8m0(x, packed, scales);
  EXPECT_EQ(packed, get<uint8_t>("fp4_block32_e8m0.packed"));
  EXPECT_EQ(scales, get<uint8_t>("fp4_block32_e8m0.scales"));
  fake_quantise_fp4_block32_ue8m0(x, y);
  EXPECT_EQ(y, get<uint16_t>("fp4_block32_e8m0.dequantised"));
}

TEST_F(Golden, Fp4Block16E4m3) {
  const auto x = get<uint16_t>("fp4_block16_e4m3.input");
  const auto clamps = get<uint8_t>("fp4_block16_e4m3.clamps");
  ASSERT_EQ(x.size(), 210u * 16);
  Bytes packed(x.size() / 2), scales(x.size() / 16);
  Bf16s y(x.size());
  quantise_fp4_block16_e4m3(x, packed, scales);
  EXPECT_EQ(packed, get<uint8_t>("fp4_block16_e4m3.packed"));
  EXPECT_EQ(scales, get<uint8_t>("fp4_block16_e4m3.scales"));
  fake_quantise_fp4_block16_e4m3(x, y);
  EXPECT_EQ(y, get<uint16_t>("fp4_block16_e4m3.dequantised"));
  for (size_t row = 0; row < clamps.size(); ++row) {
    bool exceeds = false;
    for (size_t i = row * 16; i < (row + 1) * 16; ++i) {
      exceeds |= std::abs(bf16_to_float(x[i])) / e4m3_to_float(scales[row]) > 6.0f;
    }
    EXPECT_EQ(exceeds, clamps[row] != 0) << row;
  }
}

TEST_F(Golden, RowsOfSeveralBlocks) {
  const auto x = get<uint16_t>("rows128.input");
  ASSERT_EQ(x.size(), 8u * 128);
  Bytes codes(x.size()), packed(x.size() / 2), scales(x.size() / 32), scales16(x.size() / 16);
  quantise_fp8_block32(x, codes, scales);
  EXPECT_EQ(codes, get<uint8_t>("rows128.fp8_block32.codes"));
  EXPECT_EQ(scales, get<uint8_t>("rows128.fp8_block32.scales"));
  quantise_fp4_block32_ue8m0(x, packed, scales);
  EXPECT_EQ(packed, get<uint8_t>("rows128.fp4_block32_e8m0.codes"));
  EXPECT_EQ(scales, get<uint8_t>("rows128.fp4_block32_e8m0.scales"));
  quantise_fp4_block16_e4m3(x, packed, scales16);
  EXPECT_EQ(packed, get<uint8_t>("rows128.fp4_block16_e4m3.codes"));
  EXPECT_EQ(scales16, get<uint8_t>("rows128.fp4_block16_e4m3.scales"));
}

TEST_F(Golden, WeightTiles) {
  Bf16s y(70 * 50);
  dequantise_fp8_tiles32(get<uint8_t>("weight_tiles.codes"), get<uint8_t>("weight_tiles.scales"), 70, 50,
                         std::span<uint16_t>(y));
  EXPECT_EQ(y, get<uint16_t>("weight_tiles.dequantised"));
}

}  // namespace
}  // namespace spark::engine
