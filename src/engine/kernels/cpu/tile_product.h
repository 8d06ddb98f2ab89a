// The inner products of the engine: one tile (32 outputs) of a packed weight against some rows.
//
// For every row m and output n of the tile
//   out[m][n] = sum over blocks b in order of ( sum over k of the block, in order, of x[m][k] * w[n][k] )
//               * scale[m][b] * (scale of the weight's block)
// in FP32; products of FP8, FP4 and BF16 values are exact. F32 weights: see below. Neither the number of rows
// nor the vector width changes the order.
#pragma once

#include <cstdint>

#include "engine/kernels/cpu/packed_weight.h"

namespace spark::engine::cpu {

// A row as floats, padded with zeros to whole blocks: code values with a scale per block, or plain values
// (scale null).
struct RowView {
  const float* x = nullptr;
  const float* scale = nullptr;
};

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
