// Where every element of a weight lies in the layouts that the CUDA kernels read.
//
// All of them cut the matrix [rows, cols] into tiles of 16 rows and 32 or 64 columns, row tile by row tile,
// and store a tile in the order of the registers of mma.m16n8k16 (A operand), so that a warp reads a tile
// with one 16-byte load per lane and 512 contiguous bytes in all. The columns of a 32-block are dealt to the
// lanes eight in a row: lane 4g + t holds rows g and g + 8 and columns 8t .. 8t + 7. Any bijection of the
// columns is allowed as long as the activations use the same one, and this one makes the activations' part 8
// contiguous codes.
//
//   size_t at = cuda::fp8_tile_offset(row, col, cols / 32);   // byte of element (row, col)
//
// Rows are padded to 32 and columns to the tile width with zeros. Everything here is constexpr and runs on
// both sides; the unit test walks whole matrices and checks that the maps are bijections.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define SPARK_HOST_DEVICE __host__ __device__
#else
#define SPARK_HOST_DEVICE
#endif

namespace spark::engine::cuda {

constexpr int kTileRows = 16;
constexpr int kTileCols = 32;  // FP8, BF16, packed BF16
constexpr int kFp4TileCols = 64;
constexpr int kTileBytes = 512;         // FP8 16x32, FP4 16x64, half a BF16 16x32
constexpr int kBf16TileBytes = 1024;    // BF16 16x32
constexpr int kPackedTileBytes = 768;   // packed BF16 16x32: 512 low bytes, then 256 bytes of high nibbles
constexpr int kFp4ScaleTileBytes = 32;  // scales of an FP4 tile: [8 g][row g: 2 blocks, row g + 8: 2 blocks]

constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
constexpr int64_t round_up(int64_t a, int64_t b) {
  return ceil_div(a, b) * b;
}

// Rows are padded to 32 so that a warp may take two row tiles that share their 32x32 scales.
constexpr int64_t padded_row_tiles(int64_t rows) {
  return round_up(rows, 32) / kTileRows;
}

SPARK_HOST_DEVICE constexpr int tile_lane(int row, int col) {
  return (row & 7) * 4 + ((col & 31) >> 3);
}

SPARK_HOST_DEVICE constexpr size_t fp8_tile_offset(int64_t row, int64_t col, int64_t blocks) {
  const int r = static_cast<int>(row & 15);
  const int c = static_cast<int>(col & 31);
  return static_cast<size_t>((row >> 4) * blocks + (col >> 5)) * kTileBytes +
         static_cast<size_t>(tile_lane(r, c) * 16 + (r >> 3) * 8 + (c & 7));
}

// Register pair of element (r, c) of a 16x32 tile: k16 step j = pair / 4, A register = pair % 4; element c &
// 1 of it.
SPARK_HOST_DEVICE constexpr int tile_pair(int r, int c) {
  const int i = c & 7;
  return (i >> 2) * 4 + ((i >> 1) & 1) * 2 + (r >> 3);
}

SPARK_HOST_DEVICE constexpr size_t bf16_tile_offset(int64_t row, int64_t col, int64_t blocks) {
  const int r = static_cast<int>(row & 15);
  const int c = static_cast<int>(col & 31);
  const int pair = tile_pair(r, c);
  return static_cast<size_t>((row >> 4) * blocks + (col >> 5)) * kBf16TileBytes +
         static_cast<size_t>((pair >> 2) * kTileBytes + tile_lane(r, c) * 16 + (pair & 3) * 4 + (c & 1) * 2);
}

// FP4: lane's 16 bytes are four words (block 0 row g, block 0 row g + 8, block 1 row g, block 1 row g + 8) of
// eight elements each. Element i of a word sits in the 16-bit half i & 1, as a sign bit and three magnitude
// bits placed so that two of the four pairs come out with one mask:
constexpr int kFp4SignBit[4] = {15, 12, 14, 13};
constexpr int kFp4MagnitudeBit[4] = {9, 6, 3, 0};

SPARK_HOST_DEVICE constexpr size_t fp4_tile_word(int64_t row, int64_t col, int64_t double_blocks) {
  const int r = static_cast<int>(row & 15);
  const int c = static_cast<int>(col & 63);
  return static_cast<size_t>((row >> 4) * double_blocks + (col >> 6)) * (kTileBytes / 4) +
         static_cast<size_t>(tile_lane(r, c) * 4 + (c >> 5) * 2 + (r >> 3));
}

SPARK_HOST_DEVICE constexpr uint32_t fp4_place_code(uint32_t code, int element) {
  const int pair = element >> 1;
  const int sign_bit = pair == 0 ? 15 : pair == 1 ? 12 : pair == 2 ? 14 : 13;
  const int magnitude_bit = 9 - 3 * pair;
  return (((code >> 3) & 1u) << (sign_bit + 16 * (element & 1))) |
         ((code & 7u) << (magnitude_bit + 16 * (element & 1)));
}

SPARK_HOST_DEVICE constexpr size_t fp4_scale_offset(int64_t row, int64_t block, int64_t double_blocks) {
  const int r = static_cast<int>(row & 15);
  return static_cast<size_t>((row >> 4) * double_blocks + (block >> 1)) * kFp4ScaleTileBytes +
         static_cast<size_t>((r & 7) * 4 + (r >> 3) * 2 + (block & 1));
}

// Packed BF16 (12 bits an element): the value's bits 15, 10..0 after the exponent is re-based to 1..15 (0:
// zero). The low eight bits are a byte, bits 15, 10, 9, 8 a nibble whose bits are scattered so that four
// rotations of a word by 0, 4, 8, 12 bring the four pairs to their places under one mask.
SPARK_HOST_DEVICE constexpr size_t packed_byte_offset(int64_t row, int64_t col, int64_t blocks) {
  const int r = static_cast<int>(row & 15);
  const int c = static_cast<int>(col & 31);
  return static_cast<size_t>((row >> 4) * blocks + (col >> 5)) * kPackedTileBytes +
         static_cast<size_t>(tile_lane(r, c) * 16 + tile_pair(r, c) * 2 + (c & 1));
}

// Byte offset of the nibble word (4-byte aligned) of an element; its bits are packed_place_nibble's.
SPARK_HOST_DEVICE constexpr size_t packed_word_offset(int64_t row, int64_t col, int64_t blocks) {
  const int r = static_cast<int>(row & 15);
  const int c = static_cast<int>(col & 31);
  return static_cast<size_t>((row >> 4) * blocks + (col >> 5)) * kPackedTileBytes + kTileBytes +
         static_cast<size_t>(tile_lane(r, c) * 8 + (tile_pair(r, c) >> 2) * 4);
}

SPARK_HOST_DEVICE constexpr uint32_t rotate_right(uint32_t x, int n) {
  return n == 0 ? x : (x >> n) | (x << (32 - n));
}

constexpr uint32_t kPackedNibbleMask = 0x8700;

SPARK_HOST_DEVICE constexpr uint32_t packed_place_nibble(uint32_t bits, int pair, int element) {
  return rotate_right((bits & kPackedNibbleMask) << (16 * (element & 1)), 4 * (pair & 3));
}

// Activations of the down projection are written in the order in which its lanes read them: lane t's two runs
// of eight codes of a 64-column block side by side.
SPARK_HOST_DEVICE constexpr int64_t down_activation_offset(int64_t col) {
  const int c = static_cast<int>(col & 63);
  return (col & ~int64_t{63}) + ((c & 31) >> 3) * 16 + (c >> 5) * 8 + (c & 7);
}

}  // namespace spark::engine::cuda
