// Memory and weights as the operations see them. All pointers lie in the backend's own memory.
//
// BF16 values are held as their 16 bits (uint16_t), E4M3, UE8M0 and packed E2M1 codes as uint8_t. Matrices
// are row-major, weights are [out, in]. Every row width that is quantised is a multiple of 32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/numeric/record_sizes.h"

namespace spark::engine {

enum class WeightFormat : uint8_t {
  kBf16,  // data: uint16_t [rows][cols]
  kF32,   // data: float [rows][cols]
  kFp8,   // data: E4M3 [rows][cols]; scales: UE8M0 [ceil(rows/32)][ceil(cols/32)], one per 32x32 tile
  kFp4,   // data: E2M1 [rows][cols/2], low nibble = even column; scales: UE8M0 [rows][cols/32]
};

// A weight in host memory before Backend::place, in backend memory after it. A backend may keep a form of its
// own in `prepared` (and leave data and scales null) when its kernels want another layout.
struct Weight {
  WeightFormat format = WeightFormat::kBf16;
  int64_t rows = 0;  // outputs
  int64_t cols = 0;  // inputs
  const void* data = nullptr;
  const uint8_t* scales = nullptr;
  const void* prepared = nullptr;

  bool empty() const { return rows == 0; }
};

struct ExpertWeights {
  Weight w1;  // gate [width, hidden]
  Weight w3;  // up   [width, hidden]
  Weight w2;  // down [hidden, width]
};

// The routed experts of one layer, all of the same shape. `prepared` is the backend's own.
struct ExpertBank {
  std::vector<ExpertWeights> experts;
  const void* prepared = nullptr;
};

// Rows quantised for an FP8 or FP4 linear: E4M3 codes with one UE8M0 scale per 32 columns.
struct QuantisedRows {
  uint8_t* codes = nullptr;   // [rows][cols]
  uint8_t* scales = nullptr;  // [rows][cols/32]
};

// One group of cache blocks of one layer. Record `j` of a sequence lies at
//   base + (block_table[sequence * table_stride + j / records_per_block] * records_per_block + j %
//   records_per_block)
//          * record_bytes.
// A block covers 256 token positions in every group, so records_per_block = 256 / ratio for compressed
// caches.
struct PagedCache {
  uint8_t* base = nullptr;
  const int32_t* block_table = nullptr;  // [sequences][table_stride], -1 = no block
  int32_t table_stride = 0;
  int32_t records_per_block = 0;
  int32_t record_bytes = 0;
};

constexpr int32_t kCacheBlockTokens = 256;

// The rows of a step. Rows of one sequence are contiguous and ascend in position by one.
struct StepRows {
  int32_t rows = 0;
  const int32_t* token = nullptr;     // [rows]
  const int32_t* position = nullptr;  // [rows] absolute
  const int32_t* sequence =
      nullptr;  // [rows] slot; negative marks a padding row, whose outputs are unspecified
  const int32_t* first_row = nullptr;  // [rows] index of the first row of the same sequence in this step
  const int32_t* last_row = nullptr;   // [rows] index of its last row in this step
  const int32_t* window_start =
      nullptr;  // [rows] lowest position that the row's window may show (0, or a replay start)
  const uint8_t* is_image = nullptr;  // [rows] 1 for a row of an image span
};

}  // namespace spark::engine
