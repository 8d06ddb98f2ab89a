#include "engine/kernels/cuda/plan/linear_plan.h"

#include <algorithm>

#include "common/error.h"
#include "engine/kernels/cuda/plan/tiles.h"

namespace spark::engine::cuda {
namespace {

constexpr int kMaxShards = 32;
constexpr int kMinShardBlocks = 4;
// Warps that a weight should be spread over: 16 on each of 132 multiprocessors, each with eight 512-byte
// loads in flight, is twice what hides the memory latency of an H200 and more than a GB10 needs.
constexpr double kTargetWarps = 2112;
// Shared memory that a block may use on every device we build for (GB10: 99 KiB), with room for alignment.
constexpr size_t kPortableShared = 98 * 1024;

int power_of_two_near(double x) {
  int p = 1;
  while (p * 1.4142 < x) p *= 2;
  return p;
}

int n_tiles_for(int rows) {
  for (int n : {1, 2, 3, 6, 12}) {
    if (rows <= 8 * n) return n;
  }
  return 12;
}

int next_smaller(int n_tiles) {
  return n_tiles == 12 ? 6 : n_tiles == 6 ? 3 : n_tiles - 1;
}

size_t reduce_bytes(const LinearLaunch& l) {
  return static_cast<size_t>(kLinearWarps) * static_cast<size_t>(l.row_tiles * l.n_tiles) * 512;
}

}  // namespace

LinearSplit split_linear(const LinearShape& shape) {
  SPARK_CHECK(shape.rows > 0 && shape.cols > 0);
  LinearSplit split;
  split.blocks = static_cast<int>(ceil_div(shape.cols, kTileCols));
  const double tiles = static_cast<double>(ceil_div(shape.rows, kTileRows));
  int shards = power_of_two_near(kTargetWarps / tiles);
  // A block holds the activations of at least blocks / min(shards, 8) blocks; 48 rows of them must fit.
  const size_t whole = static_cast<size_t>(split.blocks) * activation_block_bytes(6, shape.activation_bytes);
  int least = 1;
  while (least < 8 && whole / static_cast<size_t>(least) > kPortableShared) least *= 2;
  shards = std::max(shards, least);
  int most = 1;
  while (most < kMaxShards && split.blocks / (most * 2) >= kMinShardBlocks) most *= 2;
  split.shards = std::min({shards, most, kMaxShards});
  split.shard_blocks = static_cast<int>(ceil_div(split.blocks, split.shards));
  return split;
}

LinearLaunch plan_linear(const LinearShape& shape, const LinearSplit& split, int rows,
                         const DeviceLimits& device) {
  SPARK_CHECK(rows > 0);
  const size_t limit = std::min(device.shared_bytes, size_t{200} * 1024);
  for (int n_tiles = n_tiles_for(std::min(rows, kMaxLinearRows)); n_tiles >= 1;
       n_tiles = next_smaller(n_tiles)) {
    LinearLaunch l;
    l.n_tiles = n_tiles;
    // Two row tiles share the reads of the activations; with 96 rows the sums of two do not fit in registers.
    l.row_tiles = n_tiles == 3 || n_tiles == 6 ? 2 : 1;
    // Enough weight rows per block that its activations are not read more often than its weights.
    const int wanted = n_tiles >= 12 ? 8 : n_tiles >= 6 ? 2 : 1;
    for (int row_warps = 1; row_warps <= kLinearWarps; row_warps *= 2) {
      l.row_warps = row_warps;
      l.shard_warps = kLinearWarps / row_warps;
      // Small groups of rows may leave warps without a shard; they add zero.
      if (l.shard_warps > split.shards && !shape.rowwise) continue;
      l.cluster = std::max(1, split.shards / l.shard_warps);
      if (l.cluster > device.max_cluster) break;
      const int64_t group_rows = int64_t{16} * l.row_tiles * row_warps;
      if (shape.rowwise && shape.rows_per_group % group_rows != 0) break;
      const size_t activations = static_cast<size_t>(l.shard_warps * split.shard_blocks) *
                                 activation_block_bytes(n_tiles, shape.activation_bytes);
      if (row_warps < wanted && row_warps * 2 <= kLinearWarps &&
          split.shards / (kLinearWarps / (row_warps * 2)) <= device.max_cluster &&
          !(shape.rowwise && shape.rows_per_group % (group_rows * 2) != 0)) {
        continue;
      }
      l.row_groups = static_cast<int>(ceil_div(padded_row_tiles(shape.rows), l.row_tiles * row_warps));
      const int per_multiprocessor = n_tiles <= 2 ? 3 : 1;
      const int resident =
          std::max(l.cluster, device.multiprocessors * per_multiprocessor / l.cluster * l.cluster);
      l.persistent = !shape.rowwise && n_tiles <= 3 && l.row_groups * l.cluster > 2 * resident;
      l.reduce_offset = l.persistent ? activations : 0;
      l.shared_bytes = l.persistent ? activations + reduce_bytes(l) : std::max(activations, reduce_bytes(l));
      if (l.shared_bytes > limit) continue;
      if (l.persistent) {
        const int fit = static_cast<int>(std::max<size_t>(1, device.shared_bytes / (l.shared_bytes + 1024)));
        const int most = std::max(1, device.multiprocessors * std::min(per_multiprocessor, fit) / l.cluster);
        // As many blocks as keep all of them busy for the same number of rounds.
        const int64_t rounds = ceil_div(l.row_groups, most);
        l.grid = static_cast<int>(ceil_div(l.row_groups, rounds)) * l.cluster;
      } else {
        l.grid = l.row_groups * l.cluster;
      }
      l.rows_per_launch = 8 * n_tiles;
      return l;
    }
  }
  throw Error("no way to cut a product with a weight of " + std::to_string(shape.rows) + " x " +
                  std::to_string(shape.cols) + " for this device's shared memory",
              "CUDA backend", "report the shape: the plan in kernels/cuda/plan needs a new case");
}

}  // namespace spark::engine::cuda
