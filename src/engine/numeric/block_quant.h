// Block quantisers of DeepSeek V4.1 Flash: BF16 rows to codes plus one scale per block, and back.
//
//   std::vector<uint16_t> x(512);                    // BF16 bits
//   std::vector<uint8_t> codes(512), scales(16);
//   quantise_fp8_block32(x, codes, scales);
//
// Activations are flat arrays of n elements: a row, or several rows of a row-major matrix whose width is a
// multiple of the block. Block g covers elements g*B .. g*B+B-1 and owns scales[g]. A size that does not fit
// is a programming error.
//
// fp8_block32: E4M3 codes, n bytes; UE8M0 scales, n/32:
//   scale = 2^ceil(log2(max(amax, 1e-4) * FP32(1/448)))
// fp4_block32_ue8m0: E2M1 codes, n/2 bytes, even element in the low nibble; UE8M0 scales, n/32:
//   scale = 2^ceil(log2(max(amax, 6 * 2^-126) * FP32(1/6)))
// fp4_block16_e4m3: E2M1 codes, n/2 bytes, even element in the low nibble; E4M3 scales, n/16:
//   scale = e4m3(max(amax, 6 * 2^-9) / 6), a true division
//
// amax is the block's largest magnitude. Each code is the nearest (ties to even) to clamp(x / decoded scale),
// in FP32. Where they are used: fp8_block32 for the inputs of FP8 and FP4 GEMMs and for window records,
// fp4_block32_ue8m0 for index queries and keys, fp4_block16_e4m3 for compressed main entries.
//
// A block with an infinity or a NaN gets the NaN scale (UE8M0 255, E4M3 0x7F) and zero codes, so that all of
// it decodes to NaN: a broken activation must stay visible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace spark::engine {

inline constexpr size_t kFp8Block = 32;
inline constexpr size_t kFp4Ue8m0Block = 32;
inline constexpr size_t kFp4E4m3Block = 16;
inline constexpr size_t kWeightTile = 32;

void quantise_fp8_block32(std::span<const uint16_t> x, std::span<uint8_t> codes, std::span<uint8_t> scales);
void quantise_fp4_block32_ue8m0(std::span<const uint16_t> x, std::span<uint8_t> packed,
                                std::span<uint8_t> scales);
void quantise_fp4_block16_e4m3(std::span<const uint16_t> x, std::span<uint8_t> packed,
                               std::span<uint8_t> scales);

// To FP32 (exact, as code value * scale) or to BF16 (the same product, rounded to nearest even; exact unless
// it leaves BF16's normal range).
void dequantise_fp8_block32(std::span<const uint8_t> codes, std::span<const uint8_t> scales,
                            std::span<float> out);
void dequantise_fp8_block32(std::span<const uint8_t> codes, std::span<const uint8_t> scales,
                            std::span<uint16_t> out);
void dequantise_fp4_block32_ue8m0(std::span<const uint8_t> packed, std::span<const uint8_t> scales,
                                  std::span<float> out);
void dequantise_fp4_block32_ue8m0(std::span<const uint8_t> packed, std::span<const uint8_t> scales,
                                  std::span<uint16_t> out);
void dequantise_fp4_block16_e4m3(std::span<const uint8_t> packed, std::span<const uint8_t> scales,
                                 std::span<float> out);
void dequantise_fp4_block16_e4m3(std::span<const uint8_t> packed, std::span<const uint8_t> scales,
                                 std::span<uint16_t> out);

// Quantise and dequantise in one go ("fake quantisation"): BF16 to BF16. `out` may be `x` itself.
void fake_quantise_fp8_block32(std::span<const uint16_t> x, std::span<uint16_t> out);
void fake_quantise_fp4_block32_ue8m0(std::span<const uint16_t> x, std::span<uint16_t> out);
void fake_quantise_fp4_block16_e4m3(std::span<const uint16_t> x, std::span<uint16_t> out);

// Weights, row-major [rows, columns] = [out, in].
//
// FP8 dense form: E4M3 codes [rows, columns] and one UE8M0 scale per 32x32 tile, [ceil(rows/32),
// ceil(columns/32)]; tiles at the right and lower edge may be partial. The quantiser applies the fp8_block32
// rule to a tile.
void quantise_fp8_tiles32(std::span<const float> weight, size_t rows, size_t columns,
                          std::span<uint8_t> codes, std::span<uint8_t> scales);
void dequantise_fp8_tiles32(std::span<const uint8_t> codes, std::span<const uint8_t> scales, size_t rows,
                            size_t columns, std::span<float> out);
void dequantise_fp8_tiles32(std::span<const uint8_t> codes, std::span<const uint8_t> scales, size_t rows,
                            size_t columns, std::span<uint16_t> out);

// FP4 expert form: E2M1 [rows, columns/2] with the even column in the low nibble, UE8M0 scales [rows,
// columns/32], one per 1x32 block. As the width is a multiple of 32 the matrix is one flat array, read back
// by dequantise_fp4_block32_ue8m0.
void quantise_fp4_rows32(std::span<const float> weight, std::span<uint8_t> packed, std::span<uint8_t> scales);

// Engram table form: E4M3 rows with one UE8M0 scale per 32 columns, read back by dequantise_fp8_block32.
void quantise_fp8_rows32(std::span<const float> weight, std::span<uint8_t> codes, std::span<uint8_t> scales);

}  // namespace spark::engine
