// The block-scaled matrix instruction of SM121 on a model of it: the fragments, which lanes give the scales,
// and the index functions by which the kernels feed it from their weights' tiles.
#include "engine/kernels/cuda/plan/block_scaled.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "cuda_emulation/block_scaled_mma.h"
#include "kernel_cases/random.h"

namespace spark::engine::cuda {
namespace {

using cases::Random;
using emulation::BlockScaledLane;
using emulation::Element;

uint8_t random_e4m3(Random& random) {
  const auto code = static_cast<uint8_t>(random.bits());
  return (code & 0x7F) == 0x7F ? uint8_t{0x3A} : code;
}

double power(uint8_t scale) {
  return std::ldexp(1.0, scale - 127);
}

// Truncation of 32 products at 25 bits below the largest, and of the sum at 23: far within this.
void expect_close(float actual, double expected, double largest) {
  EXPECT_NEAR(static_cast<double>(actual), expected, largest * 0x1p-18);
}

// The ISA's own words: element i of A is in row g for i < 4 and 8 <= i < 12, else g + 8, and in column 4t +
// (i & 3), 16 higher from i = 8 on; element i of B in row 4t + (i & 3), 16 higher from i = 4 on, column g.
TEST(BlockScaled, FragmentsAndScaleLanes) {
  Random random(1);
  for (unsigned byte_a = 0; byte_a < 4; ++byte_a) {
    for (unsigned thread_a = 0; thread_a < 2; ++thread_a) {
      for (unsigned byte_b = 0; byte_b < 4; ++byte_b) {
        uint8_t a[16][32], b[32][8], scale_a[16], scale_b[8];
        for (auto& row : a)
          for (uint8_t& code : row) code = random_e4m3(random);
        for (auto& row : b)
          for (uint8_t& code : row) code = random_e4m3(random);
        for (uint8_t& scale : scale_a) scale = static_cast<uint8_t>(120 + random.below(10));
        for (uint8_t& scale : scale_b) scale = static_cast<uint8_t>(120 + random.below(10));
        BlockScaledLane lanes[32] = {};
        for (unsigned lane = 0; lane < 32; ++lane) {
          const unsigned g = lane / 4, t = lane % 4;
          for (unsigned i = 0; i < 16; ++i) {
            const unsigned row = i < 4 || (i >= 8 && i < 12) ? g : g + 8;
            lanes[lane].a[i / 4] |= uint32_t{a[row][4 * t + (i & 3) + (i >= 8 ? 16 : 0)]} << (8 * (i % 4));
          }
          for (unsigned i = 0; i < 8; ++i)
            lanes[lane].b[i / 4] |= uint32_t{b[4 * t + (i & 3) + (i >= 4 ? 16 : 0)][g]} << (8 * (i % 4));
          // Bytes and lanes that are not asked hold NaN.
          const bool gives_a = t / 2 == thread_a;
          lanes[lane].scale_a = ~(gives_a ? 255U << (8 * byte_a) : 0U);
          if (gives_a) lanes[lane].scale_a |= uint32_t{scale_a[g + 8 * (t % 2)]} << (8 * byte_a);
          lanes[lane].scale_b = ~(t == 0 ? 255U << (8 * byte_b) : 0U);
          if (t == 0) lanes[lane].scale_b |= uint32_t{scale_b[g]} << (8 * byte_b);
        }
        float d[32][4];
        block_scaled_mma(lanes, Element::kE4m3, Element::kE4m3, {byte_a, thread_a}, {byte_b, 0}, d);
        for (unsigned lane = 0; lane < 32; ++lane) {
          for (unsigned q = 0; q < 4; ++q) {
            const unsigned row = lane / 4 + 8 * (q / 2), column = lane % 4 * 2 + q % 2;
            double sum = 0, largest = 0;
            for (unsigned k = 0; k < 32; ++k) {
              const double product = static_cast<double>(e4m3_to_float(a[row][k])) *
                                     static_cast<double>(e4m3_to_float(b[k][column]));
              sum += product;
              largest = std::max(largest, std::fabs(product));
            }
            const double scale = power(scale_a[row]) * power(scale_b[column]);
            expect_close(d[lane][q], sum * scale, largest * scale);
          }
        }
      }
    }
  }
}

TEST(BlockScaled, SumsAreCutBelowTheLargestProduct) {
  const double kept[] = {1.0, 0x1p-23};
  EXPECT_EQ(emulation::truncated_sum(kept, 2), 1.0F + 0x1p-23F);
  const double lost[] = {1.0, 0x1.8p-25,
                         0x1.8p-25};  // each is cut to 2^-25; together below FP32's last place
  EXPECT_EQ(emulation::truncated_sum(lost, 3), 1.0F);
  const double negative[] = {-1.0, -0x1.8p-24};  // toward zero
  EXPECT_EQ(emulation::truncated_sum(negative, 2), -1.0F);
  const double nan[] = {1.0, std::nan("")};
  EXPECT_TRUE(std::isnan(emulation::truncated_sum(nan, 2)));
  EXPECT_EQ(emulation::truncated_sum(std::array<double, 2>{}.data(), 2), 0.0F);
}

TEST(BlockScaled, ColumnsAreDealtOnceAndFourInARow) {
  std::array<int, 32> seen{};
  for (int k = 0; k < 32; ++k) {
    const int column = block_scaled_column(k);
    ++seen[static_cast<size_t>(column)];
    EXPECT_EQ(column / 8, k % 16 / 4) << "a lane's slots are its eight columns";
    EXPECT_EQ(column % 4, k % 4);
  }
  for (const int count : seen) EXPECT_EQ(count, 1);
}

TEST(BlockScaled, CodesLieInTheMiddleOfTheirBytes) {
  for (uint32_t code = 0; code < 16; ++code) {
    for (int element = 0; element < 8; ++element) {
      uint32_t word = 0;  // the other elements take the complement, to show that no bit leaks
      for (int other = 0; other < 8; ++other)
        word ^= fp4_container_code(other == element ? code : ~code & 15U, other);
      const Fp4Containers c = fp4_containers(word);
      EXPECT_EQ((element < 4 ? c.low : c.high) >> (8 * (element % 4)) & 255U, code << 2);
    }
  }
}

// A weight of any shape in its tiles, multiplied as sm121/linear_fp8.cu does it.
TEST(BlockScaled, Fp8TilesFeedTheInstruction) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    Random random(100 + seed);
    const int64_t rows = 1 + random.below(80), blocks = 1 + random.below(6), cols = blocks * 32;
    const int64_t row_tiles = padded_row_tiles(rows);
    const int m_rows = 1 + random.below(8);
    std::vector<uint8_t> raw(static_cast<size_t>(rows * cols)), x(static_cast<size_t>(m_rows * cols));
    for (uint8_t& code : raw) code = random_e4m3(random);
    for (uint8_t& code : x) code = random_e4m3(random);
    std::vector<uint8_t> scales(static_cast<size_t>((rows + 31) / 32 * blocks)),
        x_scales(static_cast<size_t>(m_rows * blocks));
    for (uint8_t& scale : scales) scale = static_cast<uint8_t>(110 + random.below(20));
    for (uint8_t& scale : x_scales) scale = static_cast<uint8_t>(110 + random.below(20));
    std::vector<uint8_t> tiles(static_cast<size_t>(row_tiles * blocks * kTileBytes));
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c)
        tiles[fp8_tile_offset(r, c, blocks)] = raw[static_cast<size_t>(r * cols + c)];
    const auto word = [](const std::vector<uint8_t>& bytes, size_t at) {
      uint32_t v = 0;
      for (size_t i = 0; i < 4; ++i) v |= uint32_t{bytes[at + i]} << (8 * i);
      return v;
    };
    for (int64_t tile = 0; tile < row_tiles; ++tile) {
      double sums[32][4] = {};
      for (int64_t block = 0; block < blocks; ++block) {
        BlockScaledLane lanes[32] = {};
        for (int lane = 0; lane < 32; ++lane) {
          const auto at = static_cast<size_t>((tile * blocks + block) * kTileBytes + lane * 16);
          const BlockScaledOperand a =
              fp8_operand(word(tiles, at), word(tiles, at + 4), word(tiles, at + 8), word(tiles, at + 12));
          for (int i = 0; i < 4; ++i) lanes[lane].a[i] = a.a[i];
          const int g = lane >> 2, t = lane & 3;
          if (g < m_rows) {
            lanes[lane].b[0] = word(x, static_cast<size_t>(g * cols + block * 32 + t * 8));
            lanes[lane].b[1] = word(x, static_cast<size_t>(g * cols + block * 32 + t * 8 + 4));
            lanes[lane].scale_b = x_scales[static_cast<size_t>(g * blocks + block)];
          }
          if (tile / 2 < (rows + 31) / 32)
            lanes[lane].scale_a = scales[static_cast<size_t>(tile / 2 * blocks + block)];
        }
        float d[32][4];
        block_scaled_mma(lanes, Element::kE4m3, Element::kE4m3, {}, {}, d);
        for (int lane = 0; lane < 32; ++lane)
          for (int q = 0; q < 4; ++q) sums[lane][q] += static_cast<double>(d[lane][q]);
      }
      for (int lane = 0; lane < 32; ++lane) {
        for (int q = 0; q < 4; ++q) {
          const int64_t row = tile * 16 + (lane >> 2) + 8 * (q >> 1), m = (lane & 3) * 2 + (q & 1);
          if (row >= rows || m >= m_rows) continue;
          double expected = 0, most = 0;
          for (int64_t c = 0; c < cols; ++c) {
            const double product =
                static_cast<double>(e4m3_to_float(raw[static_cast<size_t>(row * cols + c)])) *
                static_cast<double>(e4m3_to_float(x[static_cast<size_t>(m * cols + c)])) *
                power(scales[static_cast<size_t>(row / 32 * blocks + c / 32)]) *
                power(x_scales[static_cast<size_t>(m * blocks + c / 32)]);
            expected += product;
            most = std::max(most, std::fabs(product));
          }
          EXPECT_NEAR(sums[lane][q], expected, most * 0x1p-18) << row << " " << m;
        }
      }
    }
  }
}

// The same for FP4 stages, as sm121/fp4_step.cuh does it. Sums of a block are exact as long as they stay
// below 2^14 times the scales: then they are those of SM90 to the bit.
TEST(BlockScaled, Fp4StagesFeedTheInstructionExactly) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    Random random(200 + seed);
    const int64_t rows = 1 + random.below(70), blocks = 1 + random.below(6), cols = blocks * 32;
    const int matrices = 1 + random.below(2), matrix = random.below(matrices);
    const int m_rows = 1 + random.below(8);
    const Fp4Stages at{.double_blocks = (blocks + 1) / 2, .matrices = matrices};
    std::vector<uint8_t> codes(static_cast<size_t>(rows * cols)), scales(static_cast<size_t>(rows * blocks));
    std::vector<uint8_t> x(static_cast<size_t>(m_rows * cols)),
        x_scales(static_cast<size_t>(m_rows * blocks));
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random.below(16));
    for (uint8_t& scale : scales) scale = static_cast<uint8_t>(110 + random.below(20));
    for (uint8_t& code : x) code = random_e4m3(random);
    for (uint8_t& scale : x_scales) scale = static_cast<uint8_t>(110 + random.below(20));
    std::vector<uint8_t> stages(
        static_cast<size_t>((rows + 31) / 32 * at.double_blocks * fp4_stage_bytes(matrices)));
    const auto word = [](const std::vector<uint8_t>& bytes, size_t from) {
      uint32_t v = 0;
      for (size_t i = 0; i < 4; ++i) v |= uint32_t{bytes[from + i]} << (8 * i);
      return v;
    };
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; c += 8) {
        uint32_t w = 0;
        for (int i = 0; i < 8; ++i) w ^= fp4_container_code(codes[static_cast<size_t>(r * cols + c + i)], i);
        for (size_t i = 0; i < 4; ++i)
          stages[fp4_word_offset(r, c, at, matrix) + i] = static_cast<uint8_t>(w >> (8 * i));
      }
      for (int64_t b = 0; b < blocks; ++b)
        stages[fp4_scale_offset(r, b, at, matrix)] = scales[static_cast<size_t>(r * blocks + b)];
    }
    for (int64_t tile = 0; tile < (rows + 15) / 16; ++tile) {
      for (int64_t block = 0; block < blocks; ++block) {
        const size_t stage =
            static_cast<size_t>((tile / 2 * at.double_blocks + block / 2) * fp4_stage_bytes(matrices));
        const auto place = static_cast<size_t>(matrix * 2 + tile % 2);
        const auto half = static_cast<size_t>(block % 2);
        BlockScaledLane lanes[32] = {};
        for (size_t lane = 0; lane < 32; ++lane) {
          const size_t words = stage + place * kTileBytes + lane * 16 + half * 8;
          const BlockScaledOperand a = fp4_operand(word(stages, words), word(stages, words + 4));
          for (size_t i = 0; i < 4; ++i) lanes[lane].a[i] = a.a[i];
          const size_t lane_scales = stage + static_cast<size_t>(matrices * 2 * kTileBytes) +
                                     place * kFp4ScaleTileBytes +
                                     static_cast<size_t>(fp4_lane_scales(static_cast<int>(lane)));
          lanes[lane].scale_a = stages[lane_scales] | uint32_t{stages[lane_scales + 1]} << 8;
          const int64_t g = static_cast<int64_t>(lane >> 2), t = static_cast<int64_t>(lane & 3);
          if (g < m_rows) {
            lanes[lane].b[0] = word(x, static_cast<size_t>(g * cols + block * 32 + t * 8));
            lanes[lane].b[1] = word(x, static_cast<size_t>(g * cols + block * 32 + t * 8 + 4));
            lanes[lane].scale_b = uint32_t{x_scales[static_cast<size_t>(g * blocks + block)]} << (8 * half);
          }
        }
        float d[32][4];
        const auto byte = static_cast<unsigned>(half);
        block_scaled_mma(lanes, Element::kE2m1, Element::kE4m3, {.byte = byte}, {.byte = byte}, d);
        for (int lane = 0; lane < 32; ++lane) {
          for (int q = 0; q < 4; ++q) {
            const int64_t row = tile * 16 + (lane >> 2) + 8 * (q >> 1), m = (lane & 3) * 2 + (q & 1);
            if (row >= rows || m >= m_rows) continue;
            double sum = 0;
            for (int64_t c = block * 32; c < block * 32 + 32; ++c)
              sum += static_cast<double>(e2m1_to_float(codes[static_cast<size_t>(row * cols + c)])) *
                     static_cast<double>(e4m3_to_float(x[static_cast<size_t>(m * cols + c)]));
            const double scale = power(scales[static_cast<size_t>(row * blocks + block)]) *
                                 power(x_scales[static_cast<size_t>(m * blocks + block)]);
            if (std::fabs(sum) < 0x1p14) {
              EXPECT_EQ(static_cast<double>(d[lane][q]), sum * scale) << row << " " << m;
            } else {
              EXPECT_NEAR(static_cast<double>(d[lane][q]), sum * scale, std::fabs(sum * scale) * 0x1p-23);
            }
          }
        }
      }
    }
  }
}

TEST(BlockScaled, RowsOfTheScaleLanes) {
  for (int lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(block_scaled_row(lane), (lane >> 2) + 8 * (lane & 1));
    // The two scales of that row in a stage's scale tile.
    const Fp4Stages at{.double_blocks = 1, .matrices = 1};
    EXPECT_EQ(fp4_scale_offset(block_scaled_row(lane), 0, at, 0),
              static_cast<size_t>(2 * kTileBytes + fp4_lane_scales(lane)));
    EXPECT_EQ(fp4_scale_offset(block_scaled_row(lane), 1, at, 0),
              static_cast<size_t>(2 * kTileBytes + fp4_lane_scales(lane) + 1));
  }
}

}  // namespace
}  // namespace spark::engine::cuda
