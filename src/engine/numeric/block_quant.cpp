#include "engine/numeric/block_quant.h"

#include <algorithm>
#include <bit>

#include "common/error.h"
#include "engine/numeric/bf16.h"
#include "engine/numeric/e2m1.h"
#include "engine/numeric/e4m3.h"
#include "engine/numeric/ue8m0.h"

namespace spark::engine {
namespace {

constexpr float kInverse448 = std::bit_cast<float>(0x3B124925u);  // FP32(1/448)
constexpr float kInverse6 = std::bit_cast<float>(0x3E2AAAABu);    // FP32(1/6)
constexpr float kFp8Floor = 1e-4f;
constexpr float kFp4Ue8m0Floor = 0x1.8p-124f;  // 6 * 2^-126
constexpr float kFp4E4m3Floor = 0x1.8p-7f;     // 6 * 2^-9

// Finds amax with integers: magnitudes order like their bits, and every NaN lies above infinity.
template <size_t kCount>
float largest_magnitude(const float* x) {
  uint32_t largest = 0;
  for (size_t i = 0; i < kCount; ++i)
    largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu);
  return std::bit_cast<float>(largest);
}

bool is_finite(float magnitude) {
  return std::bit_cast<uint32_t>(magnitude) < 0x7F800000u;
}

// Scale rules. The reciprocal of a power of two within these ranges is a normal number, so multiplying by it
// rounds exactly like the division.
uint8_t fp8_scale(float amax) {
  return ue8m0_ceil(std::max(amax, kFp8Floor) * kInverse448);
}
uint8_t fp4_ue8m0_scale(float amax) {
  return ue8m0_ceil(std::max(amax, kFp4Ue8m0Floor) * kInverse6);
}
uint8_t fp4_e4m3_scale(float amax) {
  return float_to_e4m3(std::max(amax, kFp4E4m3Floor) / 6.0f);
}

// A saturating conversion is the specified clamp followed by rounding.
void encode_fp8(const float* x, size_t count, uint8_t scale, uint8_t* codes) {
  const float inverse = 1.0f / ue8m0_to_float(scale);
  for (size_t i = 0; i < count; ++i) codes[i] = float_to_e4m3(x[i] * inverse);
}

template <size_t kCount>
void encode_fp4(const float* x, float scale, uint8_t* packed) {
  for (size_t i = 0; i < kCount; i += 2) {
    packed[i / 2] = pack_e2m1(float_to_e2m1(x[i] / scale), float_to_e2m1(x[i + 1] / scale));
  }
}

void quantise_block(const float (&x)[kFp8Block], uint8_t* codes, uint8_t& scale) {
  const float amax = largest_magnitude<kFp8Block>(x);
  if (!is_finite(amax)) {
    scale = kUe8m0Nan;
    std::fill_n(codes, kFp8Block, uint8_t{0});
    return;
  }
  scale = fp8_scale(amax);
  encode_fp8(x, kFp8Block, scale, codes);
}

void quantise_block_ue8m0(const float (&x)[kFp4Ue8m0Block], uint8_t* packed, uint8_t& scale) {
  const float amax = largest_magnitude<kFp4Ue8m0Block>(x);
  if (!is_finite(amax)) {
    scale = kUe8m0Nan;
    std::fill_n(packed, kFp4Ue8m0Block / 2, uint8_t{0});
    return;
  }
  scale = fp4_ue8m0_scale(amax);
  encode_fp4<kFp4Ue8m0Block>(x, ue8m0_to_float(scale), packed);
}

void quantise_block_e4m3(const float (&x)[kFp4E4m3Block], uint8_t* packed, uint8_t& scale) {
  const float amax = largest_magnitude<kFp4E4m3Block>(x);
  if (!is_finite(amax)) {
    scale = kE4m3Nan;
    std::fill_n(packed, kFp4E4m3Block / 2, uint8_t{0});
    return;
  }
  scale = fp4_e4m3_scale(amax);
  encode_fp4<kFp4E4m3Block>(x, e4m3_to_float(scale), packed);
}

float to_float(uint16_t bf16) {
  return bf16_to_float(bf16);
}
float to_float(float value) {
  return value;
}
void store(uint16_t& out, float value) {
  out = float_to_bf16(value);
}
void store(float& out, float value) {
  out = value;
}

// Runs `quantise(block as floats, first code byte, scale)` over all blocks; kPerByte elements share a code
// byte.
template <size_t kBlock, size_t kPerByte, typename T, typename Quantise>
void for_each_block(std::span<const T> x, std::span<uint8_t> codes, std::span<uint8_t> scales,
                    Quantise quantise) {
  SPARK_CHECK(x.size() % kBlock == 0);
  SPARK_CHECK(codes.size() == x.size() / kPerByte);
  SPARK_CHECK(scales.size() == x.size() / kBlock);
  float block[kBlock];
  for (size_t g = 0; g < scales.size(); ++g) {
    for (size_t i = 0; i < kBlock; ++i) block[i] = to_float(x[g * kBlock + i]);
    quantise(block, &codes[g * kBlock / kPerByte], scales[g]);
  }
}

template <typename T>
void dequantise_fp8(std::span<const uint8_t> codes, std::span<const uint8_t> scales, std::span<T> out) {
  SPARK_CHECK(out.size() % kFp8Block == 0);
  SPARK_CHECK(codes.size() == out.size() && scales.size() == out.size() / kFp8Block);
  for (size_t g = 0; g < scales.size(); ++g) {
    const float scale = ue8m0_to_float(scales[g]);
    for (size_t i = g * kFp8Block; i < (g + 1) * kFp8Block; ++i)
      store(out[i], e4m3_to_float(codes[i]) * scale);
  }
}

template <size_t kBlock, typename T>
void dequantise_fp4(std::span<const uint8_t> packed, std::span<const uint8_t> scales, std::span<T> out,
                    float (*decode_scale)(uint8_t)) {
  SPARK_CHECK(out.size() % kBlock == 0);
  SPARK_CHECK(packed.size() == out.size() / 2 && scales.size() == out.size() / kBlock);
  for (size_t g = 0; g < scales.size(); ++g) {
    const float scale = decode_scale(scales[g]);
    for (size_t i = g * kBlock; i < (g + 1) * kBlock; i += 2) {
      store(out[i], e2m1_to_float(unpack_e2m1_even(packed[i / 2])) * scale);
      store(out[i + 1], e2m1_to_float(unpack_e2m1_odd(packed[i / 2])) * scale);
    }
  }
}

size_t tiles(size_t length) {
  return length / kWeightTile + (length % kWeightTile != 0 ? 1 : 0);
}

// rows * columns for spans that exist never overflows, a wrong pair of sizes might.
bool is_matrix(size_t size, size_t rows, size_t columns) {
  return rows == 0 || columns == 0 ? size == 0 : size / rows == columns && size % rows == 0;
}

void quantise_tile(std::span<const float> weight, size_t columns, size_t row0, size_t row1, size_t column0,
                   size_t column1, std::span<uint8_t> codes, uint8_t& scale) {
  uint32_t largest = 0;
  for (size_t r = row0; r < row1; ++r) {
    for (size_t c = column0; c < column1; ++c) {
      largest = std::max(largest, std::bit_cast<uint32_t>(weight[r * columns + c]) & 0x7FFFFFFFu);
    }
  }
  const float amax = std::bit_cast<float>(largest);
  scale = is_finite(amax) ? fp8_scale(amax) : kUe8m0Nan;
  for (size_t r = row0; r < row1; ++r) {
    const size_t first = r * columns + column0;
    if (is_finite(amax)) {
      encode_fp8(&weight[first], column1 - column0, scale, &codes[first]);
    } else {
      std::fill_n(&codes[first], column1 - column0, uint8_t{0});
    }
  }
}

template <typename T>
void dequantise_tiles(std::span<const uint8_t> codes, std::span<const uint8_t> scales, size_t rows,
                      size_t columns, std::span<T> out) {
  SPARK_CHECK(is_matrix(codes.size(), rows, columns) && out.size() == codes.size());
  SPARK_CHECK(is_matrix(scales.size(), tiles(rows), tiles(columns)));
  for (size_t r = 0; r < rows; ++r) {
    for (size_t tile = 0; tile < tiles(columns); ++tile) {
      const float scale = ue8m0_to_float(scales[r / kWeightTile * tiles(columns) + tile]);
      const size_t end = std::min(columns, (tile + 1) * kWeightTile);
      for (size_t c = tile * kWeightTile; c < end; ++c) {
        store(out[r * columns + c], e4m3_to_float(codes[r * columns + c]) * scale);
      }
    }
  }
}

}  // namespace

void quantise_fp8_block32(std::span<const uint16_t> x, std::span<uint8_t> codes, std::span<uint8_t> scales) {
  for_each_block<kFp8Block, 1>(x, codes, scales, quantise_block);
}

void quantise_fp4_block32_ue8m0(std::span<const uint16_t> x, std::span<uint8_t> packed,
                                std::span<uint8_t> scales) {
  for_each_block<kFp4Ue8m0Block, 2>(x, packed, scales, quantise_block_ue8m0);
}

void quantise_fp4_block16_e4m3(std::span<const uint16_t> x, std::span<uint8_t> packed,
                               std::span<uint8_t> scales) {
  for_each_block<kFp4E4m3Block, 2>(x, packed, scales, quantise_block_e4m3);
}

void dequantise_fp8_block32(std::span<const uint8_t> codes, std::span<const uint8_t> scales,
                            std::span<float> out) {
  dequantise_fp8(codes, scales, out);
}

void dequantise_fp8_block32(std::span<const uint8_t> codes, std::span<const uint8_t> scales,
                            std::span<uint16_t> out) {
  dequantise_fp8(codes, scales, out);
}

void dequantise_fp4_block32_ue8m0(std::span<const uint8_t> packed, std::span<const uint8_t> scales,
                                  std::span<float> out) {
  dequantise_fp4<kFp4Ue8m0Block>(packed, scales, out, ue8m0_to_float);
}

void dequantise_fp4_block32_ue8m0(std::span<const uint8_t> packed, std::span<const uint8_t> scales,
                                  std::span<uint16_t> out) {
  dequantise_fp4<kFp4Ue8m0Block>(packed, scales, out, ue8m0_to_float);
}

void dequantise_fp4_block16_e4m3(std::span<const uint8_t> packed, std::span<const uint8_t> scales,
                                 std::span<float> out) {
  dequantise_fp4<kFp4E4m3Block>(packed, scales, out, e4m3_to_float);
}

void dequantise_fp4_block16_e4m3(std::span<const uint8_t> packed, std::span<const uint8_t> scales,
                                 std::span<uint16_t> out) {
  dequantise_fp4<kFp4E4m3Block>(packed, scales, out, e4m3_to_float);
}

void fake_quantise_fp8_block32(std::span<const uint16_t> x, std::span<uint16_t> out) {
  SPARK_CHECK(x.size() % kFp8Block == 0 && out.size() == x.size());
  uint8_t codes[kFp8Block];
  uint8_t scale[1];
  for (size_t first = 0; first < x.size(); first += kFp8Block) {
    quantise_fp8_block32(x.subspan(first, kFp8Block), codes, scale);
    dequantise_fp8_block32(codes, scale, out.subspan(first, kFp8Block));
  }
}

void fake_quantise_fp4_block32_ue8m0(std::span<const uint16_t> x, std::span<uint16_t> out) {
  SPARK_CHECK(x.size() % kFp4Ue8m0Block == 0 && out.size() == x.size());
  uint8_t packed[kFp4Ue8m0Block / 2];
  uint8_t scale[1];
  for (size_t first = 0; first < x.size(); first += kFp4Ue8m0Block) {
    quantise_fp4_block32_ue8m0(x.subspan(first, kFp4Ue8m0Block), packed, scale);
    dequantise_fp4_block32_ue8m0(packed, scale, out.subspan(first, kFp4Ue8m0Block));
  }
}

void fake_quantise_fp4_block16_e4m3(std::span<const uint16_t> x, std::span<uint16_t> out) {
  SPARK_CHECK(x.size() % kFp4E4m3Block == 0 && out.size() == x.size());
  uint8_t packed[kFp4E4m3Block / 2];
  uint8_t scale[1];
  for (size_t first = 0; first < x.size(); first += kFp4E4m3Block) {
    quantise_fp4_block16_e4m3(x.subspan(first, kFp4E4m3Block), packed, scale);
    dequantise_fp4_block16_e4m3(packed, scale, out.subspan(first, kFp4E4m3Block));
  }
}

void quantise_fp8_tiles32(std::span<const float> weight, size_t rows, size_t columns,
                          std::span<uint8_t> codes, std::span<uint8_t> scales) {
  SPARK_CHECK(is_matrix(weight.size(), rows, columns) && codes.size() == weight.size());
  SPARK_CHECK(is_matrix(scales.size(), tiles(rows), tiles(columns)));
  for (size_t tile_row = 0; tile_row < tiles(rows); ++tile_row) {
    for (size_t tile = 0; tile < tiles(columns); ++tile) {
      quantise_tile(weight, columns, tile_row * kWeightTile, std::min(rows, (tile_row + 1) * kWeightTile),
                    tile * kWeightTile, std::min(columns, (tile + 1) * kWeightTile), codes,
                    scales[tile_row * tiles(columns) + tile]);
    }
  }
}

void dequantise_fp8_tiles32(std::span<const uint8_t> codes, std::span<const uint8_t> scales, size_t rows,
                            size_t columns, std::span<float> out) {
  dequantise_tiles(codes, scales, rows, columns, out);
}

void dequantise_fp8_tiles32(std::span<const uint8_t> codes, std::span<const uint8_t> scales, size_t rows,
                            size_t columns, std::span<uint16_t> out) {
  dequantise_tiles(codes, scales, rows, columns, out);
}

void quantise_fp4_rows32(std::span<const float> weight, std::span<uint8_t> packed,
                         std::span<uint8_t> scales) {
  for_each_block<kFp4Ue8m0Block, 2>(weight, packed, scales, quantise_block_ue8m0);
}

void quantise_fp8_rows32(std::span<const float> weight, std::span<uint8_t> codes, std::span<uint8_t> scales) {
  for_each_block<kFp8Block, 1>(weight, codes, scales, quantise_block);
}

}  // namespace spark::engine
