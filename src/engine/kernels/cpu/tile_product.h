// The inner products of the engine: one tile (32 outputs) of a packed weight against some rows.
//
// For every row m and output n of the tile
//   out[m][n] = sum over blocks b in order of product(m, n, b) * scale[m][b] * (scale of the weight's block)
// in FP32. Products of FP8, FP4 and BF16 values are exact. A block of 32 inputs is summed
//   FP8, FP4 : in two parts, each by fused multiply-adds from zero on, inputs ascending: the first four of
//              every eight inputs, and the other four; then one part is added to the other,
//   BF16     : one input after the other. F32 weights: see below.
// The two parts are what Intel's tile unit does with pairs of BF16 values (it adds the first of each pair
// and the second of each pair apart, from zero on, rounding like FP32 to nearest even; measured bit for bit
// on the processor as well as documented), when a pair is an input and the fourth after it. So neither the
// number of rows nor the vector width nor the unit changes a bit.
#pragma once

#include <cstdint>

#include "engine/kernels/cpu/packed_weight.h"

namespace spark::engine::cpu {

// A row as floats, padded with zeros to whole blocks: code values with a scale per block, or plain values
// (scale null).
struct RowView {
  const float* x = nullptr;
  const float* scale = nullptr;
  // The code values in BF16 in the pairs of the tile unit, x[0] x[4] x[1] x[5] x[2] x[6] x[3] x[7] x[8] x[12]
  // and so on, or null; see pairs_from_codes(). Rows of one call are equally far apart, with room for
  // kPairsSlack rows after the last. Either of x and pairs will do; with both, few rows use x.
  const uint16_t* pairs = nullptr;
};
constexpr int64_t kPairsSlack = 15;

// Plain values of rows against FP8 weights that are smaller than this count as zero: the unit takes subnormal
// numbers for zero and makes none, so on every path there must be none, in values, products or sums.
constexpr float kLeastPlain = 0x1p-100F;

// Whether so many rows of a product should come as pairs. Only where the processor has the unit.
constexpr int64_t kTileUnitRows = 3;
bool takes_tile_unit(WeightFormat format, int64_t rows);

// Rows are processed in groups of up to this many; out must have room for a whole last group.
constexpr int kRowGroup = 8;
constexpr int64_t padded_rows(int64_t rows) {
  return (rows + kRowGroup - 1) / kRowGroup * kRowGroup;
}

// Blocks first .. last-1 of the tile. All rows have scales or none.
void tile_product(const PackedWeight& weight, int64_t tile, const RowView* rows, int64_t count, int64_t first,
                  int64_t last, float* out);

// The same with the blocks added in double and not rounded, out [m][32] doubles: the terms, one FP32 value
// per block, are those of tile_product(), so parts of a sum can be added up later, wherever it was cut. F32
// weights, whose products FP32 cannot hold: exact products summed in double; tile_product() rounds these
// once.
void tile_product_double(const PackedWeight& weight, int64_t tile, const RowView* rows, int64_t count,
                         int64_t first, int64_t last, double* out);

// tile_product() for FP4 codes that lie elsewhere: `words` [blocks][4][32], `scales` [blocks][32].
void tile_product_fp4(const uint32_t* words, const uint8_t* scales, int64_t blocks, const RowView* rows,
                      int64_t count, float* out);

}  // namespace spark::engine::cpu
