// How a matrix product is cut: a pure function of the shape, of the rows of the step and of the device's
// limits.
//
// The columns of the weight are cut into `shards` of whole 32-blocks. That cut fixes the order of the sum (in
// a shard by ascending block, then shard by shard), so it depends on the weight's shape alone: neither on the
// number of rows nor on the device. Everything in LinearLaunch may change with the rows without changing a
// bit of the result.
//
//   LinearSplit split = split_linear({.rows = 1792, .cols = 5120, .activation_bytes = 1});
//   LinearLaunch launch = plan_linear(shape, split, /*rows=*/6, device);
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "engine/kernels/cuda/plan/tiles.h"

namespace spark::engine::cuda {

struct DeviceLimits {
  int multiprocessors = 132;
  size_t shared_bytes = 227 * 1024;  // per block, opt-in
  int max_cluster = 8;
  // Blocks of one a multiprocessor that run at once in clusters of more than two: an H200's multiprocessors
  // lie in groups of 16 and 18, not all whole.
  int clustered_blocks = 120;
  int max_attention_cluster = 8;  // 16 where larger clusters than the portable eight can be had
  bool sm90 = true;               // kernels that need an H200's shared memory or its wgmma
  bool block_scaled_mma = false;  // SM121: FP8 and FP4 products by the kernels below kernels/cuda/sm121
};

struct LinearShape {
  int64_t rows = 0;  // outputs
  int64_t cols = 0;
  int activation_bytes = 1;  // 1: E4M3 codes with scales, 2: BF16
  int weight_bytes = 1;      // 2: BF16, not packed
  bool rowwise = false;      // groups of rows have inputs of their own (WO-A)
  int64_t rows_per_group = 0;
};

struct LinearSplit {
  int blocks = 0;        // 32-column blocks of the weight
  int shards = 1;        // a power of two
  int shard_blocks = 0;  // blocks of a shard; the last may be shorter or empty
};

constexpr int kLinearWarps = 8;
constexpr size_t kRingBytes = 6144;  // of a warp: weights in flight
constexpr int kMaxLinearRows = 96;   // rows of one launch

struct LinearLaunch {
  int n_tiles = 1;          // tiles of 8 rows of the step: 1, 2, 3, 6 or 12
  int row_tiles = 1;        // 16-row weight tiles of a warp: 1 or 2
  int row_warps = 1;        // warps of a block side by side over weight rows; the others over shards
  int shard_warps = 8;      // kLinearWarps / row_warps
  int cluster = 1;          // blocks that share a set of weight rows
  int row_groups = 0;       // sets of row_warps * row_tiles * 16 weight rows
  int grid = 0;             // blocks, a multiple of `cluster`
  bool persistent = false;  // blocks walk over several row groups
  size_t shared_bytes = 0;
  size_t ring_offset = 0;    // where the rings lie in shared memory
  size_t reduce_offset = 0;  // where the partial sums lie in shared memory
  int rows_per_launch = 8;   // larger steps are cut into launches of this many rows
};

// A product whose weights all fit in shared memory at once (direct_gemm.cuh): of at most kDirectRows rows, or
// of more, two eights at once.
constexpr int kDirectRows = 8;
constexpr int kMaxDirectRows = 16;
constexpr int kDirectWarps = 16;
constexpr int kMoreDirectWarps = 24;  // of a block with three row tiles: see plan_direct_rows
constexpr int kManyChunk = 4;  // blocks at once of more than kDirectRows rows, where five do not fill a shard
struct DirectLaunch {
  int row_warps = 0;     // 16-row tiles of a block
  int warp_shards = 0;   // shards of a warp: row_warps * shards = kDirectWarps * warp_shards
  int chunk = 0;         // blocks that a warp takes at once: 4, 5, 8 or 10
  int shard_chunks = 0;  // of a shard, the last filled up
  int grid = 0;
  bool many = false;  // more than kDirectRows rows
  size_t shared_bytes = 0;
  int warps = kDirectWarps;
};
// Shared memory before the weights: partial sums and the rows' scales.
SPARK_HOST_DEVICE constexpr size_t direct_weights_at(int warp_shards, int chunk, bool many = false) {
  return static_cast<size_t>(kDirectWarps * (many ? 2 : 1)) *
         static_cast<size_t>(warp_shards * 512 + chunk * 32);
}

// The same of a product that makes the codes of its rows itself (direct_rows_gemm.cuh): its rows' operands,
// their scales and sums of squares stand where the scales were.
SPARK_HOST_DEVICE constexpr size_t direct_rows_weights_at(int warps, int warp_shards, int blocks) {
  return static_cast<size_t>(warps) * static_cast<size_t>(warp_shards * 512) +
         static_cast<size_t>(blocks) * (512 + 32) + 256;
}
// What a warp takes of the rows: at most so many pieces of 256 channels.
constexpr int kDirectUnits = 4, kFewDirectUnits = 2;

// A product of nine rows and more by the matrix instruction of a warpgroup (sm90/wide_gemm.cuh), whose
// weights all fit in shared memory at once.
constexpr int kWideWidths[] = {16, 24, 48};  // rows of a launch: the forms of the kernel, and no others
constexpr int kMostWideRows = 48;
constexpr int kMinWideRows = 9;  // fewer: the direct product meets sooner
// Of two weights in a launch, whose blocks take two multiprocessors, and of grouped rows: the direct product
// of two eights is faster and leaves its successor more room.
constexpr int kMinLateWideRows = 17;
constexpr int kWideRows = 128;      // weight rows of a warpgroup
constexpr int kWideTeams = 3;       // warpgroups of a block, at most
constexpr int kMaxWideBlocks = 32;  // 32-column blocks of a warpgroup, at most

struct WideLaunch {
  int n_tiles = 0;      // tiles of 8 rows of the step: kWideWidths / 8
  int row_teams = 0;    // warpgroups of a block side by side over weight rows
  int shard_teams = 0;  // and over shards
  int team_shards = 0;  // shards of a warpgroup, one after the other
  int cluster = 1;      // blocks that share the shards; the last may have fewer
  int row_groups = 0;   // clusters; of grouped rows: of a group
  int grid = 0;
  size_t shared_bytes = 0;
  size_t ring_offset = 0;  // where the weights lie
  // Where the partial sums lie: those of a warpgroup's last shard, which are 0 in the place of the rows, and
  // those of its first of two.
  size_t reduce_offset = 0;
  size_t first_reduce_offset = 0;
  size_t barrier_offset = 0;
  int rows_per_launch = 0;
};

// A product of a packed weight by the matrix instruction of a warpgroup (sm90/tall_gemm.cuh): a warp owns 16
// weight rows and streams all of their columns.
constexpr int kTallWidths[] = {8, 16, 24, 48};  // rows of a launch: the forms of the kernel, and no others
constexpr int kTallTeams = 4;                   // warpgroups of a block
constexpr int kTallSlotTiles = 4;               // tiles that a warp copies and waits for at once
constexpr int kMaxTallSlots = 4;                // of a warp's ring

struct TallLaunch {
  int n_tiles = 0;     // tiles of 8 rows of the step: kTallWidths / 8
  int row_groups = 0;  // of 64 weight rows
  int grid = 0;
  int slots = 0;  // of a warp's ring
  size_t shared_bytes = 0;
  size_t ring_offset = 0;
  size_t barrier_offset = 0;
  int rows_per_launch = 0;
};

LinearSplit split_linear(const LinearShape& shape);
LinearLaunch plan_linear(const LinearShape& shape, const LinearSplit& split, int rows,
                         const DeviceLimits& device);

// nullopt where the product is too large for that, or too narrow to be read by enough blocks, or has too many
// rows.
std::optional<DirectLaunch> plan_direct(const LinearShape& shape, const LinearSplit& split, int rows,
                                        const DeviceLimits& device);

// The same launch for rows that are quantised, or normalised and quantised, on the way; nullopt where the
// rows are too wide for that.
std::optional<DirectLaunch> plan_direct_rows(const LinearShape& shape, const LinearSplit& split, int rows,
                                             const DeviceLimits& device);

// The cut that is expected to be the fastest; nullopt where there is none, or the streaming product is
// faster. `weights`: of that shape in the launch.
std::optional<WideLaunch> plan_wide(const LinearShape& shape, const LinearSplit& split, int rows, int weights,
                                    const DeviceLimits& device);

// `tile_bytes`: of 16 rows by 32 columns. nullopt where the rows of a shard leave no room for the weights.
std::optional<TallLaunch> plan_tall(const LinearShape& shape, const LinearSplit& split, int rows,
                                    int tile_bytes, const DeviceLimits& device);

// Shared memory of the activations of one 32-block for `n_tiles` tiles of 8 rows.
constexpr size_t activation_block_bytes(int n_tiles, int activation_bytes) {
  return static_cast<size_t>(n_tiles) * (activation_bytes == 1 ? 8 * 32 + 8 * 4 : 8 * 64);
}

}  // namespace spark::engine::cuda
