// Where the rows lie as operand B of wgmma: every element has a place of its own, and the place is the one at
// which the instruction looks for the column that the weight's tile holds there.
#include "engine/kernels/cuda/plan/wide_operand.h"

#include <gtest/gtest.h>

#include <set>

#include "engine/kernels/cuda/plan/tiles.h"

namespace spark::engine::cuda {
namespace {

class WideOperand : public testing::TestWithParam<int> {};

TEST_P(WideOperand, EveryElementHasAPlaceInsideTheBlock) {
  const int n_tiles = GetParam();
  std::set<uint32_t> places;
  for (int row = 0; row < 8 * n_tiles; ++row) {
    for (int col = 0; col < kTileCols; ++col) {
      const uint32_t at = wide_operand_offset(row, col);
      EXPECT_EQ(at % 2, 0U);
      EXPECT_LT(at, wide_block_bytes(n_tiles));
      EXPECT_TRUE(places.insert(at).second) << row << ", " << col;
    }
  }
}

// The instruction's view: step j, slot k of 16; lane 4g + t's A registers hold slots 2t, 2t + 1 (registers 0,
// 1) and 2t + 8, 2t + 9 (2, 3). tile_pair says which register an element of the weight goes to.
TEST_P(WideOperand, ColumnsMeetTheWeightsOwn) {
  const int n_tiles = GetParam();
  for (int row = 0; row < 8 * n_tiles; ++row) {
    for (int col = 0; col < kTileCols; ++col) {
      const int pair = tile_pair(0, col);  // weight row 0: registers 0 and 2 of a step
      const int step = pair / 4, depth = pair % 4 / 2;
      const int t = tile_lane(0, col) & 3;
      const int slot = 8 * depth + 2 * t + (col & 1);  // of the step's sixteen
      const auto plain = static_cast<uint32_t>(row / 8 * 512 + row % 8 * 64) +
                         static_cast<uint32_t>(step) * kWideStepBytes + static_cast<uint32_t>(slot * 2);
      // The swizzle is one of addresses: bits 4 and 5 with bits 7 and 8.
      EXPECT_EQ(wide_operand_offset(row, col), plain ^ ((plain >> 7 & 3) << 4));
    }
  }
}

TEST_P(WideOperand, ALaneReadsItsScalesInOrder) {
  const int n_tiles = GetParam();
  std::set<int> places;
  for (int t = 0; t < 4; ++t) {
    for (int n = 0; n < n_tiles; ++n) {
      for (int i = 0; i < 2; ++i) {
        const int at = wide_scale_place(n_tiles, n * 8 + t * 2 + i);
        EXPECT_EQ(at, t * n_tiles * 2 + n * 2 + i);
        EXPECT_LT(at, wide_scale_stride(n_tiles));
        EXPECT_TRUE(places.insert(at).second);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, WideOperand, testing::Values(3, 6));

TEST(WideOperandDescriptor, HoldsAddressStepAndSwizzle) {
  EXPECT_EQ(wgmma_descriptor(0x3A010),
            uint64_t{0x3A01} | uint64_t{1} << 16 | uint64_t{32} << 32 | uint64_t{2} << 62);
}

}  // namespace
}  // namespace spark::engine::cuda
