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

#include "engine/numeric/host_device.h"

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

// FP4: a lane's 16 bytes are four words (block 0 row g, block 0 row g + 8, block 1 row g, block 1 row g + 8)
// of eight elements each. Reading a word must cost as few instructions as can be: pair p of elements (2p in
// the low half, 2p + 1 in the high half) becomes two FP16 (sign in bit 15, magnitude in bits 11..9) as
//   p = 0: w & M      1: (w << 3) & M      2: ((w << 7) ^ (w << 10)) & M      3: ((w << 7) ^ rotl(w, 12)) & M
// with M = 0x8E008E00: four shifts and four three-input operations. (Four disjoint shifts of the four bits do
// not exist, so one shift more and two exclusive ors.) As a map of 32 bits it is linear and can be inverted;
// kFp4Place is its inverse: the word is the exclusive or of the patterns of all bits that are set.
constexpr uint32_t kFp4Mask = 0x8E008E00u;

constexpr uint32_t fp4_pair_bits(uint32_t w, int pair) {
  const uint32_t other = pair == 3 ? (w << 12 | w >> 20) : w << 10;
  const uint32_t first = pair == 0 ? w : pair == 1 ? w << 3 : (w << 7) ^ other;
  return first & kFp4Mask;
}

// Pattern of bit `b` of the code of element `i` at [4 * i + b].
struct Fp4Place {
  uint32_t pattern[32] = {};
};
constexpr Fp4Place make_fp4_place() {
  // Column j of the map: what the word 1 << j shows, as 32 bits numbered like the patterns.
  uint32_t left[32] = {}, right[32] = {};
  for (int j = 0; j < 32; ++j) {
    for (int i = 0; i < 8; ++i) {
      const uint32_t half = fp4_pair_bits(uint32_t{1} << j, i / 2) >> (16 * (i & 1));
      const uint32_t code = ((half >> 9) & 7u) | ((half >> 12) & 8u);
      left[j] |= code << (4 * i);
    }
    right[j] = uint32_t{1} << j;
  }
  // Gauss: make column combinations show single bits.
  Fp4Place place = {};
  for (int bit = 0; bit < 32; ++bit) {
    int pivot = bit;
    while (pivot < 32 && (left[pivot] >> bit & 1u) == 0) ++pivot;
    const uint32_t l = left[pivot], r = right[pivot];
    left[pivot] = left[bit], right[pivot] = right[bit];
    left[bit] = l, right[bit] = r;
    for (int j = 0; j < 32; ++j) {
      if (j != bit && (left[j] >> bit & 1u) != 0) left[j] ^= l, right[j] ^= r;
    }
  }
  for (int bit = 0; bit < 32; ++bit) place.pattern[bit] = right[bit];
  return place;
}

// FP4 weights are read in stages: 32 rows (two tiles) by 64 columns of one matrix, or of two that are used
// together (gate and up), all tiles first, then their scales. Stage follows stage along the columns, so a
// warp streams contiguous memory.
struct Fp4Stages {
  int64_t double_blocks = 0;  // 64-column steps of a row
  int matrices = 1;           // 1 or 2
};

SPARK_HOST_DEVICE constexpr int fp4_stage_bytes(int matrices) {
  return matrices * 2 * (kTileBytes + kFp4ScaleTileBytes);
}

// Byte offset of the word of elements (row, col & ~7 ..) of matrix `matrix`.
SPARK_HOST_DEVICE constexpr size_t fp4_word_offset(int64_t row, int64_t col, const Fp4Stages& at,
                                                   int matrix) {
  const int r = static_cast<int>(row & 15);
  const int c = static_cast<int>(col & 63);
  const int tile = matrix * 2 + static_cast<int>(row >> 4 & 1);
  return static_cast<size_t>(((row >> 5) * at.double_blocks + (col >> 6)) * fp4_stage_bytes(at.matrices)) +
         static_cast<size_t>(tile * kTileBytes + tile_lane(r, c) * 16 + (c >> 5) * 8 + (r >> 3) * 4);
}

// The word's part that holds `code` as element `element`; parts are joined by exclusive or.
SPARK_HOST_DEVICE constexpr uint32_t fp4_place_code(uint32_t code, int element) {
  constexpr Fp4Place kPlace = make_fp4_place();
  uint32_t word = 0;
  for (int b = 0; b < 4; ++b) word ^= (code >> b & 1u) != 0 ? kPlace.pattern[4 * element + b] : 0u;
  return word;
}

SPARK_HOST_DEVICE constexpr size_t fp4_scale_offset(int64_t row, int64_t block, const Fp4Stages& at,
                                                    int matrix) {
  const int r = static_cast<int>(row & 15);
  const int tile = matrix * 2 + static_cast<int>(row >> 4 & 1);
  return static_cast<size_t>(((row >> 5) * at.double_blocks + (block >> 1)) * fp4_stage_bytes(at.matrices)) +
         static_cast<size_t>(at.matrices * 2 * kTileBytes + tile * kFp4ScaleTileBytes + (r & 7) * 4 +
                             (r >> 3) * 2 + (block & 1));
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

}  // namespace spark::engine::cuda
