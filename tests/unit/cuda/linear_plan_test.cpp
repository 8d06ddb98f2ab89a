// The cut of a product: what must not depend on the rows does not, and every launch fits its device.
#include "engine/kernels/cuda/plan/linear_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "engine/kernels/cuda/plan/pack_plan.h"
#include "engine/kernels/cuda/plan/tiles.h"
#include "engine/kernels/cuda/plan/wide_operand.h"

namespace spark::engine::cuda {
namespace {

struct Shape {
  int64_t out, in;
  int bytes;
  int64_t per_group = 0;
  int weight_bytes = 1;
};

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {
      {1792, 5120, 1},     {8192, 1280, 1},       {5120, 2048, 1},       {32768, 1280, 1},
      {5120, 8192, 1},     {25600, 6144, 1},      {6400, 6144, 1},       {5120, 15360, 1},
      {576, 5120, 1},      {5120, 576, 1},        {384, 5120, 2},        {512, 5120, 2},
      {32, 5120, 2},       {128, 512, 2},         {32320, 5120, 2},      {129280, 256, 2},
      {1, 5376, 2},        {2048, 4096, 2, 1024}, {8192, 4096, 2, 1024}, {3072, 4096, 2, 1024},
      {128, 128, 2, 32},   {64, 64, 2, 16},       {640, 128, 2},         {33, 96, 1},
      {31, 32, 1},         {1, 160, 1},           {384, 5120, 2, 0, 2},  {512, 5120, 2, 0, 2},
      {32, 5120, 2, 0, 2}, {33, 96, 2, 0, 2}};
  return all;
}

LinearShape shape_of(const Shape& s) {
  return {.rows = s.out,
          .cols = s.in,
          .activation_bytes = s.bytes,
          .weight_bytes = s.weight_bytes,
          .rowwise = s.per_group > 0,
          .rows_per_group = s.per_group};
}

const DeviceLimits kH200{};
const DeviceLimits kGb10{.multiprocessors = 48, .shared_bytes = 99 * 1024};

TEST(LinearPlan, SplitCoversTheColumnsOnce) {
  for (const Shape& s : shapes()) {
    const LinearSplit split = split_linear(shape_of(s));
    EXPECT_EQ(split.blocks, ceil_div(s.in, 32));
    EXPECT_GE(split.shards * split.shard_blocks, split.blocks);
    EXPECT_EQ(split.shards & (split.shards - 1), 0);
  }
}

TEST(LinearPlan, EveryLaunchFitsAndCoversTheRows) {
  for (const DeviceLimits& device : {kH200, kGb10}) {
    for (const Shape& s : shapes()) {
      const LinearShape shape = shape_of(s);
      const LinearSplit split = split_linear(shape);
      for (int rows = 1; rows <= 200; ++rows) {
        const LinearLaunch l = plan_linear(shape, split, rows, device);
        EXPECT_LE(l.shared_bytes, device.shared_bytes);
        EXPECT_EQ(l.row_warps * l.shard_warps, kLinearWarps);
        EXPECT_LE(l.cluster, device.max_cluster);
        EXPECT_GE(l.cluster * l.shard_warps, split.shards);
        EXPECT_EQ(l.grid % l.cluster, 0);
        EXPECT_GE(l.rows_per_launch, 8);
        EXPECT_TRUE(l.persistent || l.grid == l.row_groups * l.cluster);
        EXPECT_GE(int64_t{l.row_groups} * l.row_warps * l.row_tiles * kTileRows, s.out);
        // A block whose partial sums take the place of its activations must not go on to another row group.
        EXPECT_TRUE(!l.persistent || l.reduce_offset > 0);
        const size_t activations = static_cast<size_t>(l.shard_warps * split.shard_blocks) *
                                   activation_block_bytes(l.n_tiles, s.bytes);
        EXPECT_LE(activations, l.ring_offset);
        EXPECT_LE(l.ring_offset + kLinearWarps * kRingBytes, l.shared_bytes);
        if (s.per_group > 0) {
          EXPECT_EQ(s.per_group % (l.row_warps * l.row_tiles * kTileRows), 0);
        }
      }
    }
  }
}

TEST(LinearPlan, DecodeShapesUseMostOfTheDevice) {
  for (const Shape& s :
       {Shape{1792, 5120, 1}, Shape{8192, 1280, 1}, Shape{5120, 2048, 1}, Shape{384, 5120, 2}}) {
    const LinearLaunch l = plan_linear(shape_of(s), split_linear(shape_of(s)), 6, kH200);
    EXPECT_GE(l.grid, 96) << s.out;
  }
}

TEST(LinearPlan, DirectLaunchesCoverEveryShardOnce) {
  for (const DeviceLimits& device : {kH200, kGb10}) {
    for (const Shape& s : shapes()) {
      const LinearShape shape = shape_of(s);
      const LinearSplit split = split_linear(shape);
      EXPECT_FALSE(plan_direct(shape, split, kMaxDirectRows + 1, device).has_value());
      for (const int rows : {kDirectRows, kDirectRows + 1, kMaxDirectRows}) {
        const auto l = plan_direct(shape, split, rows, device);
        if (!l) continue;
        EXPECT_EQ(l->many, rows > kDirectRows);
        EXPECT_LE(l->chunk, l->many ? 5 : 10) << "two eights of rows lie in registers";
        EXPECT_NE(l->chunk, l->many ? 8 : kManyChunk);
        EXPECT_LE(l->shared_bytes, device.shared_bytes / (shape.weight_bytes == 1 && !l->many ? 2 : 1));
        EXPECT_EQ(l->row_warps * split.shards, kDirectWarps * l->warp_shards) << s.out << " x " << s.in;
        EXPECT_GE(l->shard_chunks * l->chunk, split.shard_blocks);
        EXPECT_LT((l->shard_chunks - 1) * l->chunk, split.shard_blocks);
        EXPECT_GE(int64_t{l->grid} * l->row_warps * kTileRows, s.out);
        const size_t weights =
            static_cast<size_t>(kDirectWarps * l->warp_shards * l->shard_chunks * l->chunk) *
            static_cast<size_t>(kTileBytes * shape.weight_bytes);
        EXPECT_EQ(l->shared_bytes, direct_weights_at(l->warp_shards, l->chunk, l->many) + weights);
      }
    }
  }
}

TEST(LinearPlan, DecodeProductsAreDirectOnTheDeviceThatHasRoom) {
  for (const Shape& s :
       {Shape{1792, 5120, 1}, Shape{8192, 1280, 1}, Shape{5120, 2048, 1}, Shape{2048, 4096, 2, 1024},
        Shape{576, 5120, 1}, Shape{5120, 576, 1}, Shape{384, 5120, 2, 0, 2}, Shape{512, 5120, 2, 0, 2}}) {
    for (const int rows : {1, kDirectRows, kMaxDirectRows})
      EXPECT_TRUE(plan_direct(shape_of(s), split_linear(shape_of(s)), rows, kH200).has_value()) << s.out;
  }
  // Too large, or (all of q-b on one rank) more rounds of blocks than many rows are worth.
  for (const Shape& s : {Shape{25600, 6144, 1}, Shape{5120, 15360, 1}, Shape{32768, 1280, 1}}) {
    for (const int rows : {1, kMaxDirectRows})
      EXPECT_FALSE(plan_direct(shape_of(s), split_linear(shape_of(s)), rows, kH200).has_value()) << s.out;
  }
}

TEST(LinearPlan, WideLaunchesCoverRowsAndShardsOnce) {
  for (const DeviceLimits& device : {kH200, kGb10}) {
    for (const Shape& s : shapes()) {
      const LinearShape shape = shape_of(s);
      const LinearSplit split = split_linear(shape);
      EXPECT_FALSE(plan_wide(shape, split, kMinWideRows - 1, 1, device).has_value());
      for (int rows = kMinWideRows; rows <= kMaxLinearRows; ++rows) {
        const auto l = plan_wide(shape, split, rows, 1, device);
        if (!l) continue;
        EXPECT_GE(l->rows_per_launch, std::min(rows, kMostWideRows));
        EXPECT_LE(l->rows_per_launch, l->n_tiles * 8);
        // The kernel has these forms and no other, and the narrowest that holds the rows is taken.
        EXPECT_TRUE(l->n_tiles == 2 || l->n_tiles == 3 || l->n_tiles == 6) << l->n_tiles;
        EXPECT_EQ(l->n_tiles * 8, rows <= 16 ? 16 : rows <= 24 ? 24 : 48);
        EXPECT_LE(l->shared_bytes, device.shared_bytes);
        const int here = l->shard_teams * l->team_shards;
        EXPECT_GE(l->cluster * here, split.shards) << s.out << " x " << s.in;
        EXPECT_LT((l->cluster - 1) * here, split.shards) << "a block without a shard";
        EXPECT_TRUE(l->team_shards == 1 || l->team_shards == 2) << "the kernel has places for two";
        EXPECT_LE(l->row_teams * l->shard_teams, kWideTeams);
        EXPECT_LE(l->team_shards * split.shard_blocks, kMaxWideBlocks) << "a lane holds a block's scale";
        const int64_t group = s.per_group > 0 ? s.per_group : s.out;
        EXPECT_GE(int64_t{l->row_groups} * l->row_teams * kWideRows, group);
        EXPECT_EQ(l->grid, l->row_groups * (s.out / group) * l->cluster);
        // Rows and scales, weights, partial sums: one behind the other, or the sums in the rows' place.
        const auto blocks = static_cast<size_t>(l->shard_teams * l->team_shards * split.shard_blocks);
        const size_t scales = s.bytes == 1 ? static_cast<size_t>(wide_scale_stride(l->n_tiles)) * 4 : 0;
        const size_t sums = static_cast<size_t>(ceil_div(l->row_teams * 8 * l->n_tiles, l->cluster) *
                                                l->cluster * l->shard_teams) *
                            512;
        const size_t weights = blocks * static_cast<size_t>(l->row_teams * 8) * kTileBytes;
        EXPECT_GE(l->ring_offset, blocks * (wide_block_bytes(l->n_tiles) + scales));
        if (l->reduce_offset == 0) {
          EXPECT_GE(l->ring_offset, sums);
          EXPECT_EQ(l->first_reduce_offset, l->ring_offset + weights);
        } else {
          EXPECT_EQ(l->reduce_offset, l->ring_offset + weights);
          EXPECT_EQ(l->first_reduce_offset, l->reduce_offset + sums);
        }
        // A warpgroup's first shard of two never takes the place of rows that its second still reads.
        EXPECT_EQ(l->barrier_offset, l->first_reduce_offset + (l->team_shards == 2 ? sums : 0));
        EXPECT_EQ(l->shared_bytes, l->barrier_offset + 16);
      }
    }
  }
}

TEST(LinearPlan, DecodeProductsOfManyRowsAreWideWhereTheirBlocksRunAtOnce) {
  const auto plan = [](const Shape& s, int rows, int weights = 1) {
    return plan_wide(shape_of(s), split_linear(shape_of(s)), rows, weights, kH200);
  };
  for (const Shape& s :
       {Shape{1792, 5120, 1}, Shape{8192, 1280, 1}, Shape{5120, 2048, 1}, Shape{5120, 576, 1}}) {
    for (const int rows : {kMinWideRows, 16, 24, 48}) {
      const auto l = plan(s, rows);
      ASSERT_TRUE(l.has_value()) << s.out;
      EXPECT_LE(l->grid, l->cluster > 2 ? kH200.clustered_blocks : kH200.multiprocessors);
    }
  }
  // Those that three shards a block, or two places for the sums, make room for.
  EXPECT_TRUE(plan({2048, 4096, 2, 1024}, 48).has_value());
  EXPECT_TRUE(plan({576, 5120, 1}, 48, 2).has_value());
  // A shape that needs all of an H200 for one weight has no room for two.
  EXPECT_FALSE(plan({8192, 1280, 1}, 48, 2).has_value());
  for (const Shape& s : {Shape{25600, 6144, 1}, Shape{5120, 15360, 1}, Shape{32768, 1280, 1}})
    EXPECT_FALSE(plan(s, 24).has_value()) << s.out;
}

TEST(LinearPlan, NineToSixteenRowsLeaveRoomForTheNextProduct) {
  const auto plan = [](const Shape& s, int rows, int weights = 1) {
    return plan_wide(shape_of(s), split_linear(shape_of(s)), rows, weights, kH200);
  };
  for (const Shape& s : {Shape{1792, 5120, 1}, Shape{8192, 1280, 1}}) {
    for (const int rows : {kMinWideRows, 16}) {
      const auto l = plan(s, rows);
      ASSERT_TRUE(l.has_value()) << s.out;
      EXPECT_LE(l->shared_bytes + 1024, kH200.shared_bytes / 2) << s.out;
      EXPECT_EQ(l->reduce_offset, 0U) << "the sums are in the rows' place";
    }
  }
  // WO-A stays direct, and leaves half of shared memory.
  const Shape wo_a{2048, 4096, 2, 1024};
  EXPECT_FALSE(plan(wo_a, kMinLateWideRows - 1).has_value());
  const auto direct = plan_direct(shape_of(wo_a), split_linear(shape_of(wo_a)), 16, kH200);
  ASSERT_TRUE(direct.has_value());
  EXPECT_LE(direct->shared_bytes + 1024, kH200.shared_bytes / 2);
  EXPECT_FALSE(plan({576, 5120, 1}, kMinLateWideRows - 1, 2).has_value());
  EXPECT_TRUE(plan({576, 5120, 1}, kMinLateWideRows, 2).has_value());
}

TEST(LinearPlan, TallLaunchesCoverTheRowsAndFit) {
  for (const DeviceLimits& device : {kH200, kGb10}) {
    for (const Shape& s : shapes()) {
      const LinearShape shape = shape_of(s);
      const LinearSplit split = split_linear(shape);
      for (int rows = 1; rows <= kMaxLinearRows; ++rows) {
        const auto l = plan_tall(shape, split, rows, kPackedTileBytes, device);
        if (!l) continue;
        EXPECT_EQ(s.bytes, 2);
        EXPECT_EQ(s.per_group, 0);
        // The kernel has these forms and no other, and the narrowest that holds the rows is taken.
        EXPECT_EQ(l->n_tiles * 8, rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 24 ? 24 : 48);
        EXPECT_EQ(l->rows_per_launch, l->n_tiles * 8);
        EXPECT_GE(int64_t{l->row_groups} * 64, s.out);
        EXPECT_LE(l->grid, device.multiprocessors);
        EXPECT_LE(l->grid, l->row_groups);
        EXPECT_GE(l->slots, 2);
        EXPECT_LE(l->slots, kMaxTallSlots);
        // The rows of two shards, the rings, the barriers, one behind the other.
        EXPECT_EQ(l->ring_offset, static_cast<size_t>(2 * split.shard_blocks) * wide_block_bytes(l->n_tiles));
        const size_t rings =
            static_cast<size_t>(kTallTeams * 4 * l->slots * kTallSlotTiles) * kPackedTileBytes;
        EXPECT_EQ(l->barrier_offset, l->ring_offset + rings);
        EXPECT_EQ(l->shared_bytes,
                  l->barrier_offset + static_cast<size_t>(kTallTeams * 4 * kMaxTallSlots) * 8);
        EXPECT_LE(l->shared_bytes, device.shared_bytes);
      }
    }
  }
  for (const Shape& s : {Shape{32320, 5120, 2}, Shape{129280, 256, 2}}) {
    for (const int rows : {1, 6, 12, 24, 48})
      EXPECT_TRUE(plan_tall(shape_of(s), split_linear(shape_of(s)), rows, kPackedTileBytes, kH200)) << s.out;
  }
}

TEST(LinearPlan, RowsThatAreMadeInTheLaunch) {
  const auto plan = [](const Shape& s, int rows) {
    return plan_direct_rows(shape_of(s), split_linear(shape_of(s)), rows, kH200);
  };
  for (const Shape& s : {Shape{8192, 1280, 1}, Shape{5120, 2048, 1}}) {
    const auto l = plan(s, kDirectRows);
    ASSERT_TRUE(l.has_value()) << s.out;
    EXPECT_LE(l->shared_bytes, kH200.shared_bytes / 2);
    EXPECT_EQ(l->grid, plan_direct(shape_of(s), split_linear(shape_of(s)), kDirectRows, kH200)->grid);
    EXPECT_FALSE(plan(s, kDirectRows + 1).has_value());
  }
  EXPECT_FALSE(plan({1792, 5120, 1}, 1).has_value()) << "more than eight pieces of 256 channels a row";
  // Attention's products of six rows have a multiprocessor for every block.
  const auto q_b = plan({8192, 1280, 1}, 6);
  EXPECT_LE(q_b->grid, kH200.multiprocessors);
  EXPECT_GT(2 * (q_b->shared_bytes + 1024), kH200.shared_bytes + 1024) << "a second one fits";
  const auto wo_b = plan({5120, 2048, 1}, 6);
  EXPECT_EQ(wo_b->warps, kMoreDirectWarps);
  EXPECT_EQ(wo_b->row_warps * 8, wo_b->warps * wo_b->warp_shards) << "eight shards";
  EXPECT_LE(wo_b->grid, kH200.multiprocessors);
  EXPECT_GE(wo_b->grid * wo_b->row_warps * kTileRows, 5120);
  EXPECT_FALSE(plan({384, 1280, 2, 0, 2}, 1).has_value()) << "BF16 rows are not quantised";
}

TEST(PackPlan, TakesTheWindowWithTheFewestExceptions) {
  std::vector<uint64_t> counts(257);
  for (size_t e = 112; e <= 126; ++e) counts[e] = 1000;
  counts[111] = 3;
  counts[127] = 2;
  counts[256] = 5;
  const PackChoice choice = choose_exponent_base(counts);
  EXPECT_EQ(choice.base, 111);
  EXPECT_EQ(choice.exceptions, 5U);
  EXPECT_TRUE(choice.worthwhile);
  EXPECT_EQ(choice.unpack_scale, (127 + 111) << 7);
}

TEST(PackPlan, SpreadExponentsAreNotPacked) {
  EXPECT_FALSE(choose_exponent_base(std::vector<uint64_t>(257, 10)).worthwhile);
  EXPECT_FALSE(choose_exponent_base(std::vector<uint64_t>(257, 0)).worthwhile);
}

}  // namespace
}  // namespace spark::engine::cuda
