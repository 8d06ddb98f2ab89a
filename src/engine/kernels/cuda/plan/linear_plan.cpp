#include "engine/kernels/cuda/plan/linear_plan.h"

#include <algorithm>
#include <iterator>

#include "common/error.h"
#include "engine/kernels/cuda/plan/tiles.h"
#include "engine/kernels/cuda/plan/wide_operand.h"

namespace spark::engine::cuda {
namespace {

constexpr int kMaxShards = 32;
constexpr int kMinShardBlocks = 4;
constexpr int kTallTiles = 256;
constexpr size_t kReserved = 1024;  // shared memory that the system takes from every block
// Warps that a weight should be spread over: 16 on each of 132 multiprocessors, each with eight 512-byte
// loads in flight, is twice what hides the memory latency of an H200 and more than a GB10 needs.
constexpr double kTargetWarps = 2112;
// Shared memory that a block may use on every device we build for (GB10: 99 KiB), with room for alignment.
// The rings of the weights take 48 KiB of it.
constexpr size_t kPortableShared = 50 * 1024;

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

// Whether rows of the weight may be dealt to `row_warps` warps of a block.
bool possible(const LinearShape& shape, const LinearSplit& split, int row_tiles, int row_warps,
              const DeviceLimits& device) {
  const int shard_warps = kLinearWarps / row_warps;
  // Small groups of rows may leave warps without a shard; they add zero.
  if (shard_warps > split.shards && !shape.rowwise) return false;
  if (split.shards / shard_warps > device.max_cluster) return false;
  return !shape.rowwise || shape.rows_per_group % (int64_t{kTileRows} * row_tiles * row_warps) == 0;
}

// The launch with so many row warps, if it is possible, useful and fits in `limit` bytes of shared memory.
bool cut(const LinearShape& shape, const LinearSplit& split, int n_tiles, int row_warps, size_t limit,
         const DeviceLimits& device, LinearLaunch& l) {
  l.n_tiles = n_tiles;
  // Two row tiles share the reads of the activations; with 96 rows the sums of two do not fit in registers.
  // Few rows: weights with many rows take two as well, so that half as many blocks stage the activations.
  const bool tall =
      !shape.rowwise && shape.activation_bytes == 1 && padded_row_tiles(shape.rows) >= kTallTiles;
  l.row_tiles = n_tiles == 3 || n_tiles == 6 || (n_tiles <= 2 && tall) ? 2 : 1;
  l.row_warps = row_warps;
  l.shard_warps = kLinearWarps / row_warps;
  if (!possible(shape, split, l.row_tiles, row_warps, device)) return false;
  // Enough weight rows per block that its activations are not read more often than its weights.
  const int wanted = n_tiles >= 12 ? 8 : n_tiles >= 6 ? 2 : 1;
  if (row_warps < wanted && possible(shape, split, l.row_tiles, row_warps * 2, device)) return false;
  l.cluster = std::max(1, split.shards / l.shard_warps);
  const size_t activations = static_cast<size_t>(l.shard_warps * split.shard_blocks) *
                             activation_block_bytes(n_tiles, shape.activation_bytes);
  const size_t rings = kLinearWarps * kRingBytes;
  l.row_groups = static_cast<int>(ceil_div(padded_row_tiles(shape.rows), l.row_tiles * row_warps));
  const int resident = std::max(1, device.multiprocessors * 2 / l.cluster);
  l.persistent = !shape.rowwise && n_tiles <= 3 && l.row_groups > 2 * resident;
  if (l.persistent) {
    l.ring_offset = activations;
    l.reduce_offset = activations + rings;
    l.shared_bytes = l.reduce_offset + reduce_bytes(l);
  } else {
    // The partial sums take the place of the activations.
    l.ring_offset = std::max(activations, reduce_bytes(l));
    l.shared_bytes = l.ring_offset + rings;
  }
  if (l.shared_bytes + kReserved > limit) return false;
  l.grid = l.row_groups * l.cluster;
  if (l.persistent) {
    const size_t fit = std::max<size_t>(1, device.shared_bytes / (l.shared_bytes + kReserved));
    const int most =
        std::max(1, device.multiprocessors * static_cast<int>(std::min<size_t>(3, fit)) / l.cluster);
    // As many blocks as keep all of them busy for the same number of rounds.
    const int64_t rounds = ceil_div(l.row_groups, most);
    l.grid = static_cast<int>(ceil_div(l.row_groups, rounds)) * l.cluster;
  }
  l.rows_per_launch = 8 * n_tiles;
  return true;
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
  for (int n_tiles = n_tiles_for(std::min(rows, kMaxLinearRows)); n_tiles >= 1;
       n_tiles = next_smaller(n_tiles)) {
    // Two blocks on a multiprocessor keep twice the weights in flight; on a device that has no room for that,
    // one.
    for (const size_t limit : {device.shared_bytes / 2, device.shared_bytes}) {
      for (int row_warps = 1; row_warps <= kLinearWarps; row_warps *= 2) {
        LinearLaunch l;
        if (cut(shape, split, n_tiles, row_warps, limit, device, l)) return l;
      }
    }
  }
  throw Error("no way to cut a product with a weight of " + std::to_string(shape.rows) + " x " +
                  std::to_string(shape.cols) + " for this device's shared memory",
              "CUDA backend", "report the shape: the plan in kernels/cuda/plan needs a new case");
}

std::optional<DirectLaunch> plan_direct(const LinearShape& shape, const LinearSplit& split, int rows,
                                        const DeviceLimits& device) {
  if (rows > kMaxDirectRows) return std::nullopt;
  DirectLaunch l;
  l.many = rows > kDirectRows;
  // Two products, one of which waits for the other, share a multiprocessor. Few BF16 weights are so small
  // that they may take all of some; and many rows are worth it.
  const size_t limit = shape.weight_bytes == 1 && !l.many ? device.shared_bytes / 2 : device.shared_bytes;
  l.row_warps = std::max(1, kDirectWarps / split.shards);
  l.warp_shards = std::max(1, split.shards / kDirectWarps);
  if (shape.rowwise && shape.rows_per_group % kTileRows != 0) return std::nullopt;
  int padded = 0;
  for (const int chunk : {10, 8, 5, kManyChunk}) {
    // Those that fit in registers.
    const bool few = chunk == 10 ? shape.activation_bytes == 1 : chunk != kManyChunk;
    if (l.many ? chunk > 5 : !few) continue;
    const int filled = static_cast<int>(round_up(split.shard_blocks, chunk));
    if (l.chunk == 0 || filled < padded) l.chunk = chunk, padded = filled;
  }
  l.shard_chunks = padded / l.chunk;
  l.shared_bytes = direct_weights_at(l.warp_shards, l.chunk, l.many) +
                   static_cast<size_t>(kDirectWarps * l.warp_shards * padded) *
                       static_cast<size_t>(kTileBytes * shape.weight_bytes);
  if (l.shared_bytes + kReserved > limit) return std::nullopt;
  l.grid = static_cast<int>(ceil_div(padded_row_tiles(shape.rows), l.row_warps));
  // More than twice what is there at once, and the streaming product's rings are the better way; of many
  // rows, which keep their block busy, more than once.
  const auto together = static_cast<int>(device.shared_bytes / (l.shared_bytes + kReserved));
  if (l.grid > (l.many ? 1 : 2) * together * device.multiprocessors) return std::nullopt;
  return l;
}

std::optional<DirectLaunch> plan_direct_rows(const LinearShape& shape, const LinearSplit& split, int rows,
                                             const DeviceLimits& device) {
  std::optional<DirectLaunch> l = plan_direct(shape, split, rows, device);
  if (!l || shape.rowwise || shape.activation_bytes != 1 || shape.cols % kTileCols != 0) return std::nullopt;
  // Units of 256 channels: eight a row at most, so many a warp.
  const int64_t units = ceil_div(shape.cols, 256);
  if (rows > kDirectRows || units > 8 || rows * units > kDirectWarps * kDirectUnits) return std::nullopt;
  l->shared_bytes += direct_rows_weights_at(l->warps, l->warp_shards, split.blocks) -
                     direct_weights_at(l->warp_shards, l->chunk);
  if (l->shared_bytes + kReserved > device.shared_bytes / 2) return std::nullopt;
  // Two blocks on one multiprocessor take twice as long, and their successor's find no room there. So three
  // tiles a block where two make more blocks than there are multiprocessors, ...
  constexpr int kWarps = kMoreDirectWarps;
  if (l->chunk == 8 && l->grid > device.multiprocessors && kWarps % split.shards == 0 &&
      rows * units <= kWarps * kFewDirectUnits) {
    DirectLaunch more = *l;
    more.warps = kWarps;
    more.row_warps = kWarps / split.shards;
    more.grid = static_cast<int>(ceil_div(padded_row_tiles(shape.rows), more.row_warps));
    more.shared_bytes = direct_rows_weights_at(kWarps, 1, split.blocks) +
                        static_cast<size_t>(kWarps * l->shard_chunks * l->chunk) * kTileBytes;
    // The product before it must fit beside it.
    if (more.grid <= device.multiprocessors && more.shared_bytes + kReserved <= device.shared_bytes / 3 * 2)
      return more;
  }
  // ... and shared memory that keeps a second one out where each could have its own.
  const size_t alone = (device.shared_bytes + kReserved) / 2 - kReserved + 128;
  if (l->grid <= device.multiprocessors && l->shared_bytes > alone / 8 * 7)
    l->shared_bytes = std::max(l->shared_bytes, alone);
  return l;
}

namespace {

// The launch with so many warpgroups, if it is possible and fits. All weights of a block lie in shared
// memory.
bool cut_wide(const LinearShape& shape, const LinearSplit& split, const DeviceLimits& device, WideLaunch& l) {
  const int shards_here = l.shard_teams * l.team_shards;
  l.cluster = static_cast<int>(ceil_div(split.shards, shards_here));
  // Clusters of five and seven leave too many of a group's multiprocessors without a block.
  if (shards_here > split.shards || l.cluster > device.max_cluster || l.cluster == 5 || l.cluster == 7)
    return false;
  if (l.team_shards * split.shard_blocks > kMaxWideBlocks) return false;
  if (shape.rowwise && shape.rows_per_group % (2 * kTileRows) != 0) return false;
  const auto blocks = static_cast<size_t>(shards_here * split.shard_blocks);
  const size_t scale_bytes =
      shape.activation_bytes == 1 ? static_cast<size_t>(wide_scale_stride(l.n_tiles)) * 4 : 0;
  const size_t rows = blocks * (wide_block_bytes(l.n_tiles) + scale_bytes);
  const int tiles = l.row_teams * (kWideRows / kTileRows);
  // Of one shard of every warpgroup.
  const auto units = static_cast<size_t>(ceil_div(tiles * l.n_tiles, l.cluster));
  const size_t sums = units * static_cast<size_t>(l.cluster * l.shard_teams) * 512;
  const size_t weights = static_cast<size_t>(tiles * shards_here * split.shard_blocks) * kTileBytes;
  const auto aligned = [](size_t bytes) { return round_up(static_cast<int64_t>(bytes), 128); };
  l.ring_offset = static_cast<size_t>(aligned(rows));
  l.reduce_offset = l.ring_offset + weights;
  l.first_reduce_offset = l.reduce_offset + sums;
  constexpr size_t kBarrier = 16;
  l.shared_bytes = l.reduce_offset + static_cast<size_t>(l.team_shards) * sums + kBarrier;
  const auto over_rows = static_cast<size_t>(aligned(std::max(rows, sums)));
  const size_t least = over_rows + weights + static_cast<size_t>(l.team_shards - 1) * sums + kBarrier;
  // Sums in the rows' place cost a barrier more, and are worth it where the next product's block then finds
  // room beside this one: its weights come while this one works.
  const auto together = [&](size_t bytes) { return bytes + kReserved <= device.shared_bytes / 2; };
  if (l.shared_bytes + kReserved > device.shared_bytes || (together(least) && !together(l.shared_bytes))) {
    l.ring_offset = over_rows;
    l.reduce_offset = 0;
    l.first_reduce_offset = over_rows + weights;
    l.shared_bytes = least;
  }
  l.barrier_offset = l.shared_bytes - kBarrier;
  if (l.shared_bytes + kReserved > device.shared_bytes) return false;
  const int64_t groups = shape.rowwise ? shape.rows / shape.rows_per_group : 1;
  l.row_groups = static_cast<int>(ceil_div(shape.rows / groups, int64_t{kWideRows} * l.row_teams));
  l.grid = static_cast<int>(l.row_groups * groups) * l.cluster;
  l.rows_per_launch = l.n_tiles * 8;
  return true;
}

}  // namespace

std::optional<WideLaunch> plan_wide(const LinearShape& shape, const LinearSplit& split, int rows, int weights,
                                    const DeviceLimits& device) {
  if (rows < (weights > 1 || shape.rowwise ? kMinLateWideRows : kMinWideRows) || shape.weight_bytes != 1 ||
      shape.cols % kTileCols != 0)
    return std::nullopt;
  const int width = *std::find_if(std::begin(kWideWidths), std::end(kWideWidths) - 1,
                                  [&](int most) { return rows <= most; });
  std::optional<WideLaunch> best;
  int best_cost = 0;
  for (int row_teams = 1; row_teams <= kWideTeams; ++row_teams) {
    for (int shard_teams = 1; row_teams * shard_teams <= kWideTeams; ++shard_teams) {
      for (int team_shards = 1; team_shards <= 2; ++team_shards) {
        WideLaunch l{.n_tiles = width / 8,
                     .row_teams = row_teams,
                     .shard_teams = shard_teams,
                     .team_shards = team_shards};
        // One warpgroup alone leaves the matrix unit idle while it adds.
        const int teams = row_teams * shard_teams;
        if (teams < 2 || !cut_wide(shape, split, device, l)) continue;
        // More blocks than run at once, and the streaming product is faster.
        if (l.grid * weights > (l.cluster > 2 ? device.clustered_blocks : device.multiprocessors)) continue;
        // Cycles of a multiprocessor, roughly: the rows, the blocks one after the other, the meeting.
        const int cost = split.shard_blocks * (shard_teams * team_shards * 7 * l.n_tiles +
                                               team_shards * (150 + teams * (70 + 22 * l.n_tiles))) +
                         (l.cluster > 1 ? 1500 : 0);
        if (!best || cost < best_cost) best = l, best_cost = cost;
      }
    }
  }
  return best;
}

std::optional<TallLaunch> plan_tall(const LinearShape& shape, const LinearSplit& split, int rows,
                                    int tile_bytes, const DeviceLimits& device) {
  if (shape.rowwise || shape.activation_bytes != 2 || shape.cols % kTileCols != 0) return std::nullopt;
  constexpr int kWarps = kTallTeams * 4;
  const int width = *std::find_if(std::begin(kTallWidths), std::end(kTallWidths) - 1,
                                  [&](int most) { return rows <= most; });
  TallLaunch l{.n_tiles = width / 8, .rows_per_launch = width};
  l.row_groups = static_cast<int>(ceil_div(padded_row_tiles(shape.rows), 4));
  l.grid = std::min(l.row_groups, device.multiprocessors);
  l.ring_offset = static_cast<size_t>(2 * split.shard_blocks) * wide_block_bytes(l.n_tiles);
  constexpr size_t kBarriers = static_cast<size_t>(kWarps * kMaxTallSlots) * 8;
  const auto slot_bytes = static_cast<size_t>(kWarps * kTallSlotTiles * tile_bytes);
  const size_t taken = l.ring_offset + kBarriers + kReserved;
  if (taken > device.shared_bytes) return std::nullopt;
  l.slots = static_cast<int>(std::min<size_t>(kMaxTallSlots, (device.shared_bytes - taken) / slot_bytes));
  if (l.slots < 2) return std::nullopt;
  l.barrier_offset = l.ring_offset + static_cast<size_t>(l.slots) * slot_bytes;
  l.shared_bytes = l.barrier_offset + kBarriers;
  return l;
}

}  // namespace spark::engine::cuda
