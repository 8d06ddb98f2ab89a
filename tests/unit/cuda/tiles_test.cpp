// The weight layouts of the CUDA kernels: every map is a bijection, and decoding a tile the way the kernels
// do gives each lane the elements that the matrix instruction expects of it.
#include "engine/kernels/cuda/plan/tiles.h"

#include <bit>
#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace spark::engine::cuda {
namespace {

constexpr int64_t kRows = 48;
constexpr int64_t kCols = 192;

template <class Offset>
void expect_bijection(const Offset& offset, size_t element_bytes, size_t total_bytes) {
  std::set<size_t> seen;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t col = 0; col < kCols; ++col) {
      const size_t at = offset(row, col);
      EXPECT_EQ(at % element_bytes, 0U);
      EXPECT_LT(at, total_bytes);
      EXPECT_TRUE(seen.insert(at).second) << row << " " << col;
    }
  }
  EXPECT_EQ(seen.size() * element_bytes, total_bytes);
}

TEST(Tiles, Fp8AndBf16AreBijections) {
  expect_bijection([](int64_t r, int64_t c) { return fp8_tile_offset(r, c, kCols / 32); }, 1, kRows * kCols);
  expect_bijection([](int64_t r, int64_t c) { return bf16_tile_offset(r, c, kCols / 32); }, 2,
                   kRows * kCols * 2);
}

// Which (row, column) of a tile the A operand of k16 step `j` holds: register 0..3, low or high half, on lane
// 4g + t. Slots 2t, 2t+1 (registers 0, 1) and 2t+8, 2t+9 (registers 2, 3) of the instruction are columns 8t +
// 4j + 0..3 here.
std::pair<int, int> operand_element(int j, int reg, int half, int lane) {
  const int g = lane / 4, t = lane % 4;
  return {g + 8 * (reg & 1), 8 * t + 4 * j + 2 * (reg >> 1) + half};
}

TEST(Tiles, Fp8WordsHoldTheOperand) {
  // As Fp8Format::operand reads them: word and 16-bit half of a lane's 16 bytes for each register of both
  // steps.
  const int word_of[8] = {0, 2, 0, 2, 1, 3, 1, 3};
  const int half_of[8] = {0, 0, 1, 1, 0, 0, 1, 1};
  for (int lane = 0; lane < 32; ++lane) {
    for (int reg = 0; reg < 8; ++reg) {
      for (int half = 0; half < 2; ++half) {
        const auto [row, col] = operand_element(reg / 4, reg % 4, half, lane);
        const size_t expected = static_cast<size_t>(lane * 16 + word_of[reg] * 4 + half_of[reg] * 2 + half);
        EXPECT_EQ(fp8_tile_offset(row, col, 1), expected) << lane << " " << reg;
      }
    }
  }
}

TEST(Tiles, Bf16AndPackedPairsFollowTheRegisters) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int reg = 0; reg < 8; ++reg) {
      for (int half = 0; half < 2; ++half) {
        const auto [row, col] = operand_element(reg / 4, reg % 4, half, lane);
        EXPECT_EQ(tile_lane(row, col), lane);
        EXPECT_EQ(tile_pair(row, col), reg);
        EXPECT_EQ(bf16_tile_offset(row, col, 1),
                  static_cast<size_t>(reg / 4 * 512 + lane * 16 + reg % 4 * 4 + half * 2));
        EXPECT_EQ(packed_byte_offset(row, col, 1), static_cast<size_t>(lane * 16 + reg * 2 + half));
        EXPECT_EQ(packed_word_offset(row, col, 1), static_cast<size_t>(512 + lane * 8 + reg / 4 * 4));
      }
    }
  }
}

// The kernel's decoding of an FP4 word, in plain C++: four FP16 pairs of value * 2^-14.
void decode_fp4_word(uint32_t w, uint32_t (&pair)[4]) {
  pair[0] = w & 0x8E008E00U;
  pair[1] = (w << 3) & 0x8E008E00U;
  pair[2] = ((w << 7) ^ (w << 10)) & 0x8E008E00U;
  pair[3] = ((w << 7) ^ std::rotl(w, 12)) & 0x8E008E00U;
}

TEST(Tiles, Fp4CodesSurvivePlacing) {
  for (uint32_t code = 0; code < 16; ++code) {
    for (int element = 0; element < 8; ++element) {
      // The other elements take the complement, to show that no bit leaks.
      uint32_t word = 0;
      for (int other = 0; other < 8; ++other)
        word ^= fp4_place_code(other == element ? code : ~code & 15U, other);
      uint32_t pair[4];
      decode_fp4_word(word, pair);
      const uint32_t half = (pair[element / 2] >> (16 * (element & 1))) & 0xFFFFU;
      EXPECT_EQ(half, (code & 8U) << 12 | (code & 7U) << 9);
    }
  }
}

TEST(Tiles, Fp4StagesAreBijections) {
  constexpr int64_t kPadded = (kRows + 31) / 32 * 32;
  for (int matrices = 1; matrices <= 2; ++matrices) {
    const Fp4Stages at{.double_blocks = kCols / 64, .matrices = matrices};
    std::set<size_t> bytes;
    for (int matrix = 0; matrix < matrices; ++matrix) {
      for (int64_t row = 0; row < kPadded; ++row) {
        for (int64_t col = 0; col < kCols; col += 8) {
          for (size_t b = 0; b < 4; ++b) bytes.insert(fp4_word_offset(row, col, at, matrix) + b);
        }
        for (int64_t block = 0; block < kCols / 32; ++block)
          bytes.insert(fp4_scale_offset(row, block, at, matrix));
        EXPECT_EQ(fp4_word_offset(row, 5, at, matrix), fp4_word_offset(row, 0, at, matrix));
      }
    }
    EXPECT_EQ(bytes.size(), static_cast<size_t>(matrices * kPadded * kCols * 17 / 32));
    EXPECT_EQ(*bytes.rbegin() + 1, bytes.size());
  }
}

TEST(Tiles, PackedNibblesComeBackByRotation) {
  std::vector<uint32_t> bits_of(8);
  for (uint32_t trial = 0; trial < 4096; ++trial) {
    // Eight elements (four pairs) of a word with pseudo-random bits 15, 10, 9, 8.
    uint32_t word = 0;
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t random = (trial * 2654435761U + i * 40503U) >> 11;
      bits_of[i] = ((random & 8U) << 12) | ((random & 7U) << 8);
      word |= packed_place_nibble(bits_of[i], static_cast<int>(i / 2), static_cast<int>(i & 1));
    }
    for (uint32_t i = 0; i < 8; ++i) {
      const int turn = 4 * static_cast<int>(i / 2);
      const uint32_t turned = turn == 0 ? word : (word << turn) | (word >> (32 - turn));
      EXPECT_EQ((turned >> (16 * (i & 1))) & kPackedNibbleMask, bits_of[i]);
    }
  }
}

}  // namespace
}  // namespace spark::engine::cuda
