// The routed experts in one launch: gate and up with the fused activation, then down with the fixed-order
// combine, for devices whose multiprocessors have the shared memory for it.
//
// A block a multiprocessor. Every warp streams what it needs of the weights through a ring of its own by the
// copy engine, gate and up first and down behind it without a gap: an item's part of down begins when a
// counter says that the item's activations are complete, and by then its weights have long been on the way.
// Units of gate and up (an item's 32 columns) go round the blocks in order, so that early items are complete
// early; a block's warps share a unit's columns out among them (the shards of the sum), and one more warp
// joins the shards, so that nobody else waits for that. Units of down (an item and 32 channels) belong to a
// warp alone, all items of a channel group side by side; blocks with one unit of gate and up less take more
// of them.
#include "engine/kernels/cuda/fp4_step.cuh"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/swiglu.cuh"

namespace spark::engine::cuda {
namespace {

constexpr int kTransferBytes = 2 * fp4_stage_bytes(2);  // 128 columns of gate and up, 256 of down
constexpr int kHalves = 2;                              // of the partial sums
static_assert(kTransferBytes == 4 * fp4_stage_bytes(1));

struct ExpertStreamParams {
  const uint8_t* gate_up;
  const uint8_t* down;
  size_t gate_up_bytes;  // of an expert
  size_t down_bytes;
  const uint8_t* x_codes;
  const uint8_t* x_scales;
  int rows;
  int hidden;
  int top_k;
  int up_steps;       // 128 columns of the hidden width each
  int up_stages;      // 64
  int column_blocks;  // 32 columns of the width each
  int down_steps;
  int down_stages;
  int channel_groups;
  int slots;   // of a ring
  int halves;  // of a warp's activations of down: 2 where there is room
  float limit;
  // Where things lie in shared memory.
  int warp_bytes;  // of a warp's activations
  int activations_at;
  int partial_at;
  int table_at;
  int destinations_at;
  int barriers_at;
  ExpertWorkspace work;
};

// What every warp knows of an item: x = expert | rows << 16, y = first place | row 0 << 16 | row 1 << 24.
__device__ __forceinline__ int item_expert(const uint2& e) {
  return static_cast<int>(e.x & 0xFFFFu);
}
__device__ __forceinline__ int item_rows(const uint2& e) {
  return static_cast<int>(e.x >> 16);
}
__device__ __forceinline__ int item_first(const uint2& e) {
  return static_cast<int>(e.y & 0xFFFFu);
}
__device__ __forceinline__ int item_row(const uint2& e, int r) {
  return static_cast<int>(e.y >> (16 + 8 * r) & 0xFFu);
}

// Two stages of the weights at `at` into the tiles' sums: the lane's codes of these columns and its two
// scales. Not `whole`: the second stage does not exist, and what lies there is stale.
template <int kMatrices>
__device__ __forceinline__ void multiply_stages(float (&sum)[kMatrices * 2][2], const uint8_t* at,
                                                const uint2& codes, const float2& scales,
                                                const uint32_t (&mine)[4], bool whole) {
  constexpr int kTiles = kMatrices * 2;
  constexpr int kStage = fp4_stage_bytes(kMatrices);
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int g = lane >> 2, t = lane & 3;
  uint32_t v[4];
  fp4_stage_activations(codes, v);
  float d[kTiles][4] = {};
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    if (step == 1 && !whole) break;
    uint32_t b[2][4];
#pragma unroll
    for (int block = 0; block < 2; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) b[block][i] = v[i] * mine[step * 2 + block];
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const uint4 w = *reinterpret_cast<const uint4*>(at + step * kStage + i * kTileBytes + lane * 16);
      fp4_block_step(d[i], w.x, w.y, b[0]);
      fp4_block_step(d[i], w.z, w.w, b[1]);
    }
  }
  const uint32_t* words = reinterpret_cast<const uint32_t*>(at + (t & 1) * kStage + kTiles * kTileBytes) + g;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const uint32_t word = whole || (t & 1) == 0 ? words[i * (kFp4ScaleTileBytes / 4)] : 0u;
    fp4_stage_sum(sum[i], d[i], word, scales.x, scales.y);
  }
}

// The first unit of down of block `b`: all blocks' bytes are equal, and gate and up are dealt out already.
__device__ __forceinline__ uint32_t first_down_unit(const ExpertStreamParams& p, uint32_t b, uint32_t blocks,
                                                    uint32_t up_units, uint32_t down_units) {
  const uint32_t up_cost = 2 * static_cast<uint32_t>(p.up_stages);  // in stages of one matrix
  const uint32_t down_cost = static_cast<uint32_t>(p.down_stages);
  if (down_units * down_cost < up_cost * blocks) return b * down_units / blocks;
  const uint32_t before = b * (up_units / blocks) + min(b, up_units % blocks);
  return (b * (up_units * up_cost + down_units * down_cost) / blocks - before * up_cost) / down_cost;
}

// Waits until so many of the first items are complete that this one is. One lane asks, for all must know the
// same.
__device__ __forceinline__ void await_item(uint32_t* ready, int item) {
  uint32_t complete = 0;
  while (true) {
    if ((threadIdx.x & 31) == 0) complete = read_shared_counter(ready);
    complete = __shfl_sync(~0u, complete, 0);
    if (complete > static_cast<uint32_t>(item)) break;
    pause_thread();
  }
  __syncwarp();
}

// Joins the shards of the block's units of gate and up, then watches for complete items.
template <int kUpWarps>
__device__ __forceinline__ void join_shards(const ExpertStreamParams& p, const uint2* table,
                                            const float* partial, uint64_t* full, uint64_t* empty,
                                            uint32_t* ready, int items, int up_count, bool has_down) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const size_t position_bytes = static_cast<size_t>(p.down_steps) * kRowBlockBytes;
  for (int n = 0; n < up_count; ++n) {
    const int unit = static_cast<int>(blockIdx.x) + n * static_cast<int>(gridDim.x);
    const int item = unit / p.column_blocks;
    const int column = unit - item * p.column_blocks;
    const uint2 entry = table[item];
    float weight[kExpertRows] = {};
#pragma unroll
    for (int m = 0; m < kExpertRows; ++m) {
      if (m < item_rows(entry))
        weight[m] = load_shared_by_blocks(p.work.item_weight + item * kExpertRows + m);
    }
    const int half = n & 1;
    barrier_wait(full + half, static_cast<uint32_t>(n >> 1) & 1);
    const float* shards = partial + half * (kUpWarps * kExpertRows * 64) + lane;
    float a[kExpertRows] = {}, b[kExpertRows] = {};
#pragma unroll
    for (int m = 0; m < kExpertRows; ++m) {
      if (m >= item_rows(entry)) break;
#pragma unroll
      for (int shard = 0; shard < kUpWarps; ++shard) {
        a[m] += shards[(shard * kExpertRows + m) * 64];
        b[m] += shards[(shard * kExpertRows + m) * 64 + 32];
      }
    }
    barrier_arrive(empty + half);
#pragma unroll
    for (int m = 0; m < kExpertRows; ++m) {
      if (m >= item_rows(entry)) break;
      const float gate = round_to_bf16(a[m] * kFp4EmbedScale);
      const float up = round_to_bf16(b[m] * kFp4EmbedScale);
      const float v = round_to_bf16(weight[m] * clamped_swiglu(gate, up, p.limit));
      const uint32_t scale = fp8_block_scale(group_amax<32>(v));
      uint8_t* row = p.work.codes + static_cast<size_t>(item_first(entry) + m) * position_bytes +
                     static_cast<size_t>(column >> 2) * kRowBlockBytes;
      row[(column & 3) * 32 + lane] = static_cast<uint8_t>(fp8_block_code(v, scale));
      float* scales = reinterpret_cast<float*>(row + 128);
      if (lane == 0) scales[column & 3] = __uint_as_float(scale << 23);
      if (column == p.column_blocks - 1) {
        // Behind the last block: what others left there must read as zero.
        for (int behind = (column & 3) + 1; behind < 4; ++behind) {
          row[behind * 32 + lane] = 0;
          if (lane == 0) scales[behind] = 0.0f;
        }
      }
    }
    __syncwarp();
    if (lane == 0) add_release(p.work.item_done + item);
  }
  if (!has_down) return;
  for (int complete = 0; complete < items;) {
    const int mine = complete + lane;
    const bool done =
        mine < items && load_acquire(p.work.item_done + mine) == static_cast<uint32_t>(p.column_blocks);
    const uint32_t missing = ~__ballot_sync(~0u, done);
    const int more = missing == 0 ? 32 : __ffs(missing) - 1;
    if (more == 0) {
      pause_thread();
      continue;
    }
    complete += more;
    __syncwarp();
    if (lane == 0) add_shared_counter(ready, static_cast<uint32_t>(more));
  }
}

template <int kUpWarps>
__global__ void __launch_bounds__(32 * kUpWarps + 32, 1)
    expert_stream_kernel(const __grid_constant__ ExpertStreamParams p) {
  constexpr int kThreads = 32 * kUpWarps + 32;
  SPARK_DYNAMIC_SHARED(uint8_t, shared);
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int g = lane >> 2, t = lane & 3;
  uint64_t* const barriers = reinterpret_cast<uint64_t*>(shared + p.barriers_at);
  uint64_t* const arrived = barriers + warp * p.slots;                   // of the ring's places
  uint64_t* const full = barriers + kUpWarps * p.slots;                  // all shards of a unit are written
  uint64_t* const empty = full + kHalves;                                // and have been read
  uint32_t* const ready = reinterpret_cast<uint32_t*>(empty + kHalves);  // items that are complete
  uint2* const table = reinterpret_cast<uint2*>(shared + p.table_at);
  int32_t* const destinations = reinterpret_cast<int32_t*>(shared + p.destinations_at);
  float* const partial = reinterpret_cast<float*>(shared + p.partial_at);
  for (int i = static_cast<int>(threadIdx.x); i < kUpWarps * p.slots + 2 * kHalves; i += kThreads) {
    // Every lane arrives at those of the units, for what it has written or read itself.
    const int of_units = i - kUpWarps * p.slots;
    barrier_init(barriers + i, of_units < 0 ? 1 : of_units < kHalves ? 32 * kUpWarps : 32);
  }
  if (threadIdx.x == 0) *ready = 0;
  barrier_init_done();
  launch_dependents();
  wait_for_inputs();

  const int items = load_shared_by_blocks(p.work.item_count);
  for (int i = static_cast<int>(threadIdx.x); i < p.rows * p.top_k; i += kThreads) {
    const int4 item = load_shared_by_blocks(reinterpret_cast<const int4*>(p.work.items) + i);
    const uint2 rows = load_shared_by_blocks(reinterpret_cast<const uint2*>(p.work.item_row) + i);
    destinations[i] = load_shared_by_blocks(p.work.destination + i);
    table[i] = make_uint2(static_cast<uint32_t>(item.x & 0xFFFF) | static_cast<uint32_t>(item.z) << 16,
                          static_cast<uint32_t>(item.y & 0xFFFF) | (rows.x & 0xFFu) << 16 | rows.y << 24);
  }
  __syncthreads();

  // ---- this block's work
  const uint32_t blocks = gridDim.x;
  const uint32_t up_units = static_cast<uint32_t>(items * p.column_blocks);
  const uint32_t down_units = static_cast<uint32_t>(items * p.channel_groups);
  const int up_count = blockIdx.x < up_units ? static_cast<int>((up_units - 1 - blockIdx.x) / blocks) + 1 : 0;
  const int down0 = static_cast<int>(first_down_unit(p, blockIdx.x, blocks, up_units, down_units));
  const int down1 = static_cast<int>(first_down_unit(p, blockIdx.x + 1, blocks, up_units, down_units));
  if (warp == kUpWarps) {
    join_shards<kUpWarps>(p, table, partial, full, empty, ready, items, up_count, down1 > down0);
    return;
  }
  const int down_count = down0 + warp < down1 ? (down1 - 1 - down0 - warp) / kUpWarps + 1 : 0;
  const int shard_steps = (p.up_steps + kUpWarps - 1) / kUpWarps;
  const int s0 = min(warp * shard_steps, p.up_steps);
  const int s1 = min(s0 + shard_steps, p.up_steps);
  const auto up_unit = [&](int n, int& item, int& column) {
    const int unit = static_cast<int>(blockIdx.x) + n * static_cast<int>(blocks);
    item = unit / p.column_blocks;
    column = unit - item * p.column_blocks;
  };
  const auto down_unit = [&](int n, int& item, int& group) {
    const int unit = down0 + warp + n * kUpWarps;
    group = unit / items;
    item = unit - group * items;
  };

  // ---- fetching the weights: the units one after the other, kTransferBytes at a time
  uint8_t* const ring = shared + warp * p.slots * kTransferBytes;
  int fetch_unit = s0 < s1 ? 0 : up_count;
  const int fetch_count = up_count + down_count;
  const uint8_t* from = nullptr;
  uint32_t left = 0;
  const auto aim = [&] {
    int item = 0, part = 0;
    if (fetch_unit < up_count) {
      up_unit(fetch_unit, item, part);
      from = p.gate_up + static_cast<size_t>(item_expert(table[item])) * p.gate_up_bytes +
             (static_cast<size_t>(part) * p.up_steps + s0) * kTransferBytes;
      left = static_cast<uint32_t>(s1 - s0) * kTransferBytes;
    } else if (fetch_unit < fetch_count) {
      down_unit(fetch_unit - up_count, item, part);
      from = p.down + static_cast<size_t>(item_expert(table[item])) * p.down_bytes +
             static_cast<size_t>(part) * p.down_stages * fp4_stage_bytes(1);
      left = static_cast<uint32_t>(p.down_stages) * fp4_stage_bytes(1);
    }
  };
  const auto fetch = [&](int slot) {
    if (fetch_unit >= fetch_count) return;
    const uint32_t bytes = min(left, static_cast<uint32_t>(kTransferBytes));
    if (lane == 0) copy_bulk(ring + slot * kTransferBytes, from, bytes, arrived + slot);
    from += bytes;
    left -= bytes;
    if (left == 0) ++fetch_unit, aim();
  };
  aim();
  for (int i = 0; i < p.slots; ++i) fetch(i);

  // ---- activations: of the next unit of gate and up, of this or the next one of down. A row that an item
  // does not have is left as it is: its columns of the products are nobody's.
  uint8_t* const activations = shared + p.activations_at + warp * p.warp_bytes;
  const int up_row = shard_steps * kRowBlockBytes;
  const int down_row = p.down_steps * kRowBlockBytes;
  const auto request_up = [&](int n) {
    if (n < up_count) {
      int item = 0, column = 0;
      up_unit(n, item, column);
      const uint2 entry = table[item];
      uint8_t* to = activations + (n & 1) * 2 * up_row;
      const int steps = s1 - s0;
      for (int i = lane; i < item_rows(entry) * steps * 8; i += 32) {
        const int r = i >= steps * 8 ? 1 : 0;
        const int piece = i - r * steps * 8;
        copy_async_16(to + r * up_row + (piece >> 3) * kRowBlockBytes + (piece & 7) * 16,
                      p.x_codes + static_cast<size_t>(item_row(entry, r)) * p.hidden + s0 * 128 + piece * 16);
      }
      if (lane < item_rows(entry) * steps) {
        const int r = lane >= steps ? 1 : 0;
        const int step = lane - r * steps;
        copy_async_4(
            to + r * up_row + step * kRowBlockBytes + 128,
            p.x_scales + static_cast<size_t>(item_row(entry, r)) * (p.hidden / 32) + (s0 + step) * 4);
      }
    }
    copy_async_commit();
  };
  const auto request_down = [&](int n) {
    if (n < down_count) {
      int item = 0, group = 0;
      down_unit(n, item, group);
      await_item(ready, item);
      const uint2 entry = table[item];
      const uint8_t* rows = p.work.codes + static_cast<size_t>(item_first(entry)) * down_row;
      uint8_t* to = activations + (p.halves == 2 ? n & 1 : 0) * 2 * down_row;
      for (int i = lane; i < item_rows(entry) * (down_row / 16); i += 32)
        copy_async_16(to + i * 16, rows + i * 16);
    }
    copy_async_commit();
  };

  // ---- gate and up
  uint32_t mine[4];
#pragma unroll
  for (int b = 0; b < 4; ++b) mine[b] = opaque((g & 3) == b ? 1u : 0u);  // or the product becomes a selection
  const int my_codes = (g & 3) * 32 + t * 8;                             // in a block of row g >> 2
  int slot = 0;
  uint32_t parity = 0;
  const auto advance = [&] {
    __syncwarp();  // all lanes have read the place
    fetch(slot);
    if (++slot == p.slots) slot = 0, parity ^= 1;
  };
  request_up(0);
  for (int n = 0; n < up_count; ++n) {
    request_up(n + 1);
    copy_async_wait<1>();
    __syncwarp();
    const uint8_t* codes = activations + ((n & 1) * 2 + (g >> 2)) * up_row + my_codes;
    const uint8_t* scales = activations + ((n & 1) * 2 + (t >> 1)) * up_row + 128 + (t & 1) * 2;
    float sum[4][2] = {};
    for (int s = s0; s < s1; ++s) {
      barrier_wait(arrived + slot, parity);
      const uint32_t word = *reinterpret_cast<const uint16_t*>(scales);
      // The upper byte's lowest bit lands in the sign of the first.
      const float2 scale =
          make_float2(fabsf(__uint_as_float(word << 23)), __uint_as_float((word << 15) & 0x7F800000u));
      multiply_stages<2>(sum, ring + slot * kTransferBytes, *reinterpret_cast<const uint2*>(codes), scale,
                         mine, true);
      codes += kRowBlockBytes;
      scales += kRowBlockBytes;
      advance();
    }
    const int half = n & 1;
    if (n >= kHalves) barrier_wait(empty + half, (static_cast<uint32_t>(n >> 1) & 1) ^ 1);
    float* const shards = partial + half * (kUpWarps * kExpertRows * 64);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float v = sum[i][h] + __shfl_xor_sync(~0u, sum[i][h], 1);
        if ((t & 1) == 0) shards[(warp * kExpertRows + (t >> 1)) * 64 + i * 16 + h * 8 + g] = v;
      }
    }
    barrier_arrive(full + half);
  }

  // ---- down
  __syncwarp();  // all lanes have read the rows of the last unit
  request_down(0);
  for (int n = 0; n < down_count; ++n) {
    if (p.halves == 2) {
      request_down(n + 1);
      copy_async_wait<1>();
    } else {
      copy_async_wait<0>();
    }
    __syncwarp();
    int item = 0, group = 0;
    down_unit(n, item, group);
    const uint2 entry = table[item];
    const int destination = (t >> 1) < item_rows(entry) ? destinations[item_first(entry) + (t >> 1)] : -1;
    const uint8_t* half = activations + (p.halves == 2 ? n & 1 : 0) * 2 * down_row;
    const uint8_t* codes = half + (g >> 2) * down_row + my_codes;
    const uint8_t* scales = half + (t >> 1) * down_row + 128 + (t & 1) * 8;
    float sum[2][2] = {};
    for (int s = 0; s < p.down_steps; s += 2) {
      barrier_wait(arrived + slot, parity);
      const uint8_t* at = ring + slot * kTransferBytes;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (s + i < p.down_steps) {
          multiply_stages<1>(sum, at + i * (kTransferBytes / 2), *reinterpret_cast<const uint2*>(codes),
                             *reinterpret_cast<const float2*>(scales), mine, 2 * (s + i) + 1 < p.down_stages);
          codes += kRowBlockBytes;
          scales += kRowBlockBytes;
        }
      }
      advance();
    }
    if (p.halves == 1) request_down(n + 1);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float v = sum[i][h] + __shfl_xor_sync(~0u, sum[i][h], 1);
        const int64_t channel = static_cast<int64_t>(group) * kDownChannels + i * 16 + h * 8 + g;
        if ((t & 1) == 0 && destination >= 0 && channel < p.hidden) {
          p.work.outputs[static_cast<int64_t>(destination) * p.hidden + channel] =
              float_to_bf16(v * kFp4EmbedScale);
        }
      }
    }
  }
  copy_async_wait<0>();
}

// Places in shared memory; false when a ring of two places does not fit.
template <int kUpWarps>
bool lay_out(ExpertStreamParams& p, size_t limit, size_t& bytes) {
  const int shard_steps = (p.up_steps + kUpWarps - 1) / kUpWarps;
  for (p.slots = 4; p.slots >= 2; --p.slots) {
    for (p.halves = 2; p.halves >= 1; --p.halves) {
      p.warp_bytes = std::max(4 * shard_steps, 2 * p.halves * p.down_steps) * kRowBlockBytes;
      p.activations_at = kUpWarps * p.slots * kTransferBytes;
      p.partial_at = p.activations_at + kUpWarps * p.warp_bytes;
      p.table_at = p.partial_at + kHalves * kUpWarps * kExpertRows * 64 * 4;
      p.destinations_at = p.table_at + 8 * p.rows * p.top_k;
      p.barriers_at = static_cast<int>(round_up(p.destinations_at + 4 * p.rows * p.top_k, 8));
      bytes =
          static_cast<size_t>(p.barriers_at) + 8 * static_cast<size_t>(kUpWarps * p.slots + 2 * kHalves + 1);
      if (bytes + 1024 <= limit) return true;
    }
  }
  return false;
}

// As many warps as divide the real width's forty places evenly and keep the instruction slots busy.
constexpr int kStreamWarps = 20;

bool choose(ExpertStreamParams& p, size_t limit, size_t& bytes) {
  return lay_out<kStreamWarps>(p, limit, bytes);
}

ExpertStreamParams stream_params(const ExpertsArgs& args, int first_row, int rows,
                                 const PreparedExperts& bank) {
  ExpertStreamParams p = {};
  p.gate_up = bank.gate_up;
  p.down = bank.down;
  p.gate_up_bytes = static_cast<size_t>(2 * prepared_bytes(Layout::kFp4, bank.width, bank.hidden));
  p.down_bytes = static_cast<size_t>(prepared_bytes(Layout::kFp4, bank.hidden, bank.width));
  p.x_codes = args.x_q.codes + static_cast<int64_t>(first_row) * args.hidden;
  p.x_scales = args.x_q.scales + static_cast<int64_t>(first_row) * (args.hidden / 32);
  p.rows = rows;
  p.hidden = static_cast<int>(bank.hidden);
  p.top_k = args.top_k;
  p.up_steps = static_cast<int>(bank.hidden / 128);
  p.up_stages = 2 * p.up_steps;
  p.column_blocks = static_cast<int>(bank.width / 32);
  p.down_stages = static_cast<int>(ceil_div(bank.width, kFp4TileCols));
  p.down_steps = (p.down_stages + 1) / 2;
  p.channel_groups = static_cast<int>(ceil_div(bank.hidden, kDownChannels));
  p.limit = args.limit;
  return p;
}

}  // namespace

bool expert_stream_fits(const DeviceLimits& device, const ExpertsArgs& args, const PreparedExperts& bank) {
  if (bank.hidden % 128 != 0 || device.block_scaled_mma) return false;
  const int rows = std::min(args.step.rows, kMaxLinearRows);
  ExpertStreamParams p = stream_params(args, 0, rows, bank);
  // Unit numbers and their bytes are counted in 32 bits on the device.
  const double cost = 1.0 * rows * args.top_k *
                      (2.0 * p.up_stages * p.column_blocks + 1.0 * p.down_stages * p.channel_groups);
  size_t bytes = 0;
  return cost * device.multiprocessors < 4e9 && choose(p, device.shared_bytes, bytes);
}

void launch_expert_stream(const Launch& on, const ExpertsArgs& args, int first_row, int rows,
                          const PreparedExperts& bank, const ExpertWorkspace& work) {
  ExpertStreamParams p = stream_params(args, first_row, rows, bank);
  p.work = work;
  size_t bytes = 0;
  SPARK_CHECK(choose(p, on.device.shared_bytes, bytes));
  const int64_t most = std::max(int64_t{rows} * args.top_k * p.column_blocks,
                                ceil_div(int64_t{rows} * args.top_k * p.channel_groups, 10));
#ifdef SPARK_CUDA_EMULATION
  const int blocks = static_cast<int>(std::min<int64_t>(most, 3));  // all at once, as on the device
  const int cluster = blocks;
#else
  const int blocks = static_cast<int>(std::min<int64_t>(most, on.device.multiprocessors));
  const int cluster = 1;
#endif
  launch_kernel(on, expert_stream_kernel<kStreamWarps>, dim3(static_cast<unsigned>(blocks)),
                32 * kStreamWarps + 32, bytes, cluster, p);
}

}  // namespace spark::engine::cuda
