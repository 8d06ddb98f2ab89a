// Single elements of a BF16 weight in either of its layouts: embedding rows, the Markov table, the confidence
// vector.
#pragma once

#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/plan/tiles.h"

namespace spark::engine::cuda {

// The bits of one table element, from either layout of a BF16 weight.
struct TableView {
  const uint8_t* tiles;
  const uint32_t* exception_offsets;
  const uint32_t* exceptions;
  int64_t rows;
  int64_t cols;
  int base;
  bool packed;
};

__device__ __forceinline__ uint16_t table_value(const TableView& table, int64_t row, int64_t col) {
  const int64_t tile_blocks = ceil_div(table.cols, kTileCols);
  if (!table.packed) {
    return *reinterpret_cast<const uint16_t*>(table.tiles + bf16_tile_offset(row, col, tile_blocks));
  }
  const int pair = tile_pair(static_cast<int>(row & 15), static_cast<int>(col & 31));
  const uint32_t word =
      *reinterpret_cast<const uint32_t*>(table.tiles + packed_word_offset(row, col, tile_blocks));
  const uint32_t turned = __funnelshift_l(word, word, 4 * (pair & 3)) >> (16 * (col & 1));
  const uint32_t bits = table.tiles[packed_byte_offset(row, col, tile_blocks)] | (turned & kPackedNibbleMask);
  const uint32_t code = (bits >> 7) & 15u;
  uint32_t v = (bits & 0x807Fu) | (code == 0 ? 0u : (code + static_cast<uint32_t>(table.base)) << 7);
  if ((v & 0x7FFFu) == 0) {  // a zero, or an exception
    for (uint32_t e = table.exception_offsets[row]; e < table.exception_offsets[row + 1]; ++e) {
      if (table.exceptions[e] >> 16 == static_cast<uint32_t>(col)) v = table.exceptions[e] & 0xFFFFu;
    }
  }
  return static_cast<uint16_t>(v);
}

inline TableView table_view(const PreparedWeight& w) {
  return {w.tiles,         w.exception_offsets,        w.exceptions, w.rows, w.cols,
          w.exponent_base, w.layout == Layout::kPacked};
}

}  // namespace spark::engine::cuda
