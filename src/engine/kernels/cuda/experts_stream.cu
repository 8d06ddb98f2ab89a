// The routed experts in one launch: gate and up with the fused activation and down, for devices whose
// multiprocessors have the shared memory for it. experts_combine.cu adds up what it leaves.
//
// A block a multiprocessor. Every warp streams what it needs of the weights through a ring of its own by the
// copy engine, unit after unit of the block's work (plan/expert_schedule.h) without a gap. Of a unit of gate and up
// (an item's 32 columns) the warps share the columns of the weights out among them (the shards of the sum); of a
// unit of down each takes 32 output channels. Two more warps do what would hold the others up: one joins the
// shards, the other waits for items whose activations are complete and lays these out for down.
#include "engine/kernels/cuda/experts_stream.cuh"

#include <cstdlib>

namespace spark::engine::cuda {
namespace {

// As many warps as divide the real width's forty places evenly and keep the instruction slots busy.
constexpr int kStreamWarps = 20;
constexpr int kStreamThreads = 32 * (kStreamWarps + 2);

__device__ __forceinline__ ExpertSchedule schedule_of(const ExpertStreamParams& p, int items, int blocks) {
  return {.items = static_cast<uint32_t>(items),
          .ups = static_cast<uint32_t>(p.column_blocks),
          .downs = static_cast<uint32_t>(p.channel_groups),
          .up_cost = static_cast<uint32_t>(p.up_steps * kTransferStages),
          .down_cost = static_cast<uint32_t>(p.down_stages),
          .blocks = static_cast<uint32_t>(blocks)};
}

// A lane's part of a row for 128 columns of gate and up.
struct UpInput {
  uint2 codes;      // its column's eight
  uint32_t scales;  // of its two blocks
};

template <int kUpWarps>
__global__ void __launch_bounds__(32 * (kUpWarps + 2), 1)
    expert_stream_kernel(const __grid_constant__ ExpertStreamParams p) {
  constexpr int kThreads = 32 * (kUpWarps + 2);
  SPARK_DYNAMIC_SHARED(uint8_t, shared);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int warp = thread >> 5;
  const int g = lane >> 2, t = lane & 3;
  uint64_t* const barriers = reinterpret_cast<uint64_t*>(shared + p.barriers_at);
  uint64_t* const arrived = barriers + warp * p.slots;   // of the ring's places
  uint64_t* const full = barriers + kUpWarps * p.slots;  // all shards of a unit are written
  uint64_t* const empty = full + kHalves;                // and have been read
  uint64_t* const rows_full = empty + kHalves;           // the rows of a unit of down are there
  uint64_t* const rows_empty = rows_full + kHalves;      // and have been read
  StreamUnit* const units = reinterpret_cast<StreamUnit*>(shared + p.units_at);
  const StreamList list = {reinterpret_cast<StreamItem*>(shared + p.items_at),
                           reinterpret_cast<int32_t*>(shared + p.destinations_at),
                           reinterpret_cast<float*>(shared + p.weights_at)};
  float* const partial = reinterpret_cast<float*>(shared + p.partial_at);
  LAB_STAMP(thread == 0, 0);
  for (int i = thread; i < kUpWarps * p.slots + 4 * kHalves; i += kThreads) {
    // Every lane arrives at those of the units, for what it has written or read itself.
    const int of_units = (i - kUpWarps * p.slots) / kHalves;
    const bool by_all = of_units == 0 || of_units == 3;
    barrier_init(barriers + i, i < kUpWarps * p.slots ? 1 : by_all ? 32 * kUpWarps : 32);
  }
  for (int i = thread; i < p.down_steps * 16 + 4; i += kThreads)
    reinterpret_cast<uint4*>(shared + p.zeros_at)[i] = make_uint4(0, 0, 0, 0);
  barrier_init_done();
  launch_dependents();

  wait_for_inputs();
  LAB_STAMP(thread == 0, 1);
  // The next combine waits for the shared expert of this launch.
  if (p.counts_shared && blockIdx.x == 0 && thread == 0) ++*p.work.shared_wanted;

  // ---- this block's work
  const int items = p.listed ? read_list(p.work, list, p.inputs.rows * p.inputs.top_k)
                             : list_experts(p.inputs, list, reinterpret_cast<int32_t*>(partial));
  LAB_STAMP(thread == 0, 27);
  const ExpertSchedule schedule = schedule_of(p, items, static_cast<int>(gridDim.x));
  const auto up_count = static_cast<int>(schedule.up_count(blockIdx.x));
  const uint32_t last_down = schedule.first_down(blockIdx.x + 1);
  int unit_count = up_count;
  for (int n = thread; n < up_count; n += kThreads) {
    const int unit = static_cast<int>(blockIdx.x) + n * static_cast<int>(gridDim.x);
    const int item = unit / p.column_blocks;
    const int part = unit - item * p.column_blocks;
    units[n] = {p.gate_up + list.items[item].expert * p.gate_up_bytes +
                    static_cast<size_t>(part) * p.up_steps * kTransferBytes,
                nullptr, static_cast<uint16_t>(item), static_cast<uint16_t>(part), 0, 0};
  }
  for (uint32_t at = schedule.first_down(blockIdx.x); at < last_down; ++unit_count) {
    const uint32_t count = schedule.round(at, last_down, kUpWarps);
    if (thread == unit_count % kThreads) {
      const uint32_t item = at / schedule.downs, group = at - item * schedule.downs;
      const uint32_t of_first = min(count, schedule.downs - group);
      units[unit_count] = {p.down + list.items[item].expert * p.down_bytes +
                               static_cast<size_t>(group) * p.down_stages * fp4_stage_bytes(1),
                           of_first < count ? p.down + list.items[item + 1].expert * p.down_bytes : nullptr,
                           static_cast<uint16_t>(item), static_cast<uint16_t>(group),
                           static_cast<uint16_t>(of_first), static_cast<uint16_t>(count)};
    }
    at += count;
  }
  __syncthreads();
  LAB_STAMP(thread == 0, 2);
  if (warp == kUpWarps) {
    join_shards<kUpWarps>(p, list, units, unit_count, partial, full, empty);
    LAB_STAMP(lane == 0, 3);
    return;
  }
  if (warp == kUpWarps + 1) {
    stage_rows(p, list, units, unit_count, shared, rows_full, rows_empty);
    return;
  }
  const int shard_steps = (p.up_steps + kUpWarps - 1) / kUpWarps;
  const int s0 = min(warp * shard_steps, p.up_steps);
  const int s1 = min(s0 + shard_steps, p.up_steps);

  // ---- fetching the weights: the units one after the other, a transfer at a time
  uint8_t* const ring = shared + warp * p.slots * kTransferBytes;
  int fetch_unit = -1;
  const uint8_t* from = nullptr;
  int left = 0;  // stages of one matrix
  const auto aim = [&] {
    while (left == 0 && ++fetch_unit < unit_count) {
      const StreamUnit unit = units[fetch_unit];
      if (unit.count != 0) {
        if (warp >= unit.count) continue;
        const bool second = warp >= unit.of_first;
        from = (second ? unit.second : unit.weights) +
               static_cast<size_t>((second ? warp - unit.of_first : warp) * p.down_stages) * fp4_stage_bytes(1);
        left = p.down_stages;
      } else {
        from = unit.weights + static_cast<size_t>(s0) * kTransferBytes;
        left = (s1 - s0) * kTransferStages;
      }
    }
  };
  const auto fetch = [&](int slot) {
    if (left == 0) return;
    const int stages = next_stages(left);
    const uint32_t bytes = static_cast<uint32_t>(stages) * fp4_stage_bytes(1);
    if (lane == 0) copy_bulk(ring + slot * kTransferBytes, from, bytes, arrived + slot);
    from += bytes;
    left -= stages;
    aim();
  };
  aim();
  for (int i = 0; i < p.slots; ++i) fetch(i);
  int slot = 0;
  uint32_t parity = 0;
  const auto advance = [&] {
    __syncwarp();  // all lanes have read the place
    fetch(slot);
    if (++slot == p.slots) slot = 0, parity ^= 1;
  };

  // ---- the rows of gate and up: read from L2, 128 columns ahead. A row that an item does not have counts as
  // its first: its columns of the products are nobody's.
  const auto read_input = [&](int unit, int step) {
    const uint8_t* row = list.items[units[unit].item].row;
    const uint8_t* codes = p.x_codes + static_cast<size_t>(row[g >> 2]) * p.hidden + step * 128;
    const uint8_t* scales = p.x_scales + static_cast<size_t>(row[t >> 1]) * (p.hidden / 32) + step * 4;
    return UpInput{*reinterpret_cast<const uint2*>(codes + (g & 3) * 32 + t * 8),
                   *reinterpret_cast<const uint16_t*>(scales + (t & 1) * 2)};
  };
  UpInput next = {};
  if (up_count > 0 && s0 < s1) next = read_input(0, s0);

  uint32_t mine[4];
#pragma unroll
  for (int b = 0; b < 4; ++b) mine[b] = opaque((g & 3) == b ? 1u : 0u);  // or the product becomes a selection
  for (int n = 0; n < up_count; ++n) {
      float sum[4][2] = {};
      for (int s = s0; s < s1; ++s) {
        uint32_t v[4];
        fp4_stage_activations(next.codes, v);
        // The upper byte's lowest bit lands in the sign of the first.
        const float2 scales = make_float2(fabsf(__uint_as_float(next.scales << 23)),
                                          __uint_as_float((next.scales << 15) & 0x7F800000u));
        if (s + 1 < s1) {
          next = read_input(n, s + 1);
        } else {
          if (n + 1 < up_count) next = read_input(n + 1, s0);
        }
        barrier_wait(arrived + slot, parity);
        LAB_STAMP(thread == 0 && n == 0 && s == s0, 4);
        if (LAB_MODE(1)) multiply_stages<2>(
            sum, ring + slot * kTransferBytes,
            [&](int block, uint32_t (&b)[4]) {
#pragma unroll
              for (int i = 0; i < 4; ++i) b[i] = v[i] * mine[block];
            },
            scales, true);
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
      LAB_STAMP(thread == 0, 5 + min(n, 12));
  }
  for (int n = up_count; n < unit_count; ++n) {
    const int half = (n - up_count) & 1;
    barrier_wait(rows_full + half, static_cast<uint32_t>((n - up_count) >> 1) & 1);
    LAB_STAMP(thread == 0, 18 + min(n - up_count, 6));
    const StreamUnit unit = units[n];
    if (warp < unit.count) {
      const bool second = warp >= unit.of_first;
      const int group = second ? warp - unit.of_first : unit.part + warp;
      const StreamItem item = list.items[unit.item + (second ? 1 : 0)];
      const int destination = (t >> 1) < item.rows ? list.destinations[item.first + (t >> 1)] : -1;
      const int place = (half * 2 + (second ? 1 : 0)) * kExpertRows;
      // A lane reads its own block of the four, and zeros for the others.
      const int row_bytes = p.down_steps * 256;
      const int own = p.rows_at + (place + (g >> 2)) * row_bytes + t * 16;
      int from_row[4];
#pragma unroll
      for (int b = 0; b < 4; ++b)
        from_row[b] = ((g & 3) == b && (g >> 2) < item.rows ? own : p.zeros_at) + b * 64;
      const float2* scales = reinterpret_cast<const float2*>(shared + p.row_scales_at) +
                             (place + (t >> 1)) * p.down_steps * 2 + (t & 1);
      float sum[2][2] = {};
      for (int stages = p.down_stages; stages > 0;) {
        const int count = next_stages(stages);
        barrier_wait(arrived + slot, parity);
        const uint8_t* at = ring + slot * kTransferBytes;
        for (int i = 0; i < count; i += 2) {
          if (LAB_MODE(1)) multiply_stages<1>(
              sum, at,
              [&](int block, uint32_t (&b)[4]) {
                const uint4 v = *reinterpret_cast<const uint4*>(shared + from_row[block]);
                b[0] = v.x, b[1] = v.y, b[2] = v.z, b[3] = v.w;
              },
              *scales, i + 1 < count);
          at += 2 * fp4_stage_bytes(1);
          scales += 2;
#pragma unroll
          for (int b = 0; b < 4; ++b) from_row[b] += 256;
        }
        stages -= count;
        advance();
      }
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
    barrier_arrive(rows_empty + half);
  }
  LAB_STAMP(thread == 0, 30);
}

// Rounds of down of a block, at most: a run is no longer than what the others leave to a block without gate
// and up, and a round is no shorter than an item unless it ends the run.
int64_t most_rounds(const ExpertStreamParams& p, int blocks) {
  const int64_t assignments = int64_t{p.inputs.rows} * p.inputs.top_k;
  const int64_t up_cost = int64_t{p.up_steps} * kTransferStages, down_cost = p.down_stages;
  const int64_t cost = assignments * (p.column_blocks * up_cost + p.channel_groups * down_cost);
  const int64_t run = ceil_div(ceil_div(cost, blocks), down_cost) + 1;
  return ceil_div(run, std::min(kStreamWarps, p.channel_groups)) + 2;
}

// Places in shared memory; false when a ring of two places does not fit.
bool lay_out(ExpertStreamParams& p, int blocks, size_t limit, size_t& bytes) {
  const int64_t assignments = int64_t{p.inputs.rows} * p.inputs.top_k;
  // Rounds: one more than the units fill at the ends of the run, and where it passes from item to item.
  const int64_t units = ceil_div(assignments * p.column_blocks, blocks) + most_rounds(p, blocks);
  for (p.slots = 4; p.slots >= 2; --p.slots) {
    int64_t at = int64_t{kStreamWarps} * p.slots * kTransferBytes;
    const auto take = [&](int& place, int64_t size) {
      at = round_up(at, 16);
      place = static_cast<int>(at);
      at += size;
    };
    at = round_up(at, 128);
    take(p.rows_at, int64_t{kHalves} * 2 * kExpertRows * p.down_steps * 256);
    at += 64;  // so that those who read zeros meet other banks than those who read a row
    take(p.zeros_at, int64_t{p.down_steps} * 256 + 64);
    take(p.row_scales_at, int64_t{kHalves} * 2 * kExpertRows * p.down_steps * 16);
    take(p.partial_at, std::max<int64_t>(kHalves * kStreamWarps * kExpertRows * 64 * 4, kMaxListed * 4 * 4));
    take(p.units_at, units * static_cast<int64_t>(sizeof(StreamUnit)));
    take(p.items_at, assignments * static_cast<int64_t>(sizeof(StreamItem)));
    take(p.weights_at, assignments * kExpertRows * 4);
    take(p.destinations_at, assignments * 4);
    take(p.barriers_at, 8 * (int64_t{kStreamWarps} * p.slots + 4 * kHalves));
    bytes = static_cast<size_t>(at);
    if (bytes + 1024 <= limit) return true;
  }
  return false;
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
  p.listed = expert_stream_needs_list(args, rows);
  p.inputs = {.ids = args.ids + static_cast<int64_t>(first_row) * args.top_k,
              .sequence = args.step.sequence + first_row,
              .weights = args.weights + static_cast<int64_t>(first_row) * args.top_k,
              .rows = rows,
              .top_k = args.top_k,
              .experts = bank.experts};
  p.hidden = static_cast<int>(bank.hidden);
  p.up_steps = static_cast<int>(bank.hidden / 128);
  p.column_blocks = static_cast<int>(bank.width / 32);
  p.down_stages = static_cast<int>(ceil_div(bank.width, kFp4TileCols));
  p.down_steps = (p.down_stages + 1) / 2;
  p.channel_groups = static_cast<int>(ceil_div(bank.hidden, kDownChannels));
  p.limit = args.limit;
  return p;
}

// All at once, on the device as in the emulator (where they form a cluster for this).
int block_count(const ExpertStreamParams& p, const DeviceLimits& device) {
  const int64_t most = int64_t{p.inputs.rows} * p.inputs.top_k *
                       std::max<int64_t>(p.column_blocks, ceil_div(p.channel_groups, kStreamWarps));
#ifdef SPARK_CUDA_EMULATION
  return static_cast<int>(std::min<int64_t>(most, 3));
#else
  return static_cast<int>(std::min<int64_t>(most, device.multiprocessors));
#endif
}

}  // namespace

bool expert_stream_fits(const DeviceLimits& device, const ExpertsArgs& args, const PreparedExperts& bank) {
  if (bank.hidden % 128 != 0 || device.block_scaled_mma) return false;
  const int rows = std::min(args.step.rows, kMaxLinearRows);
  ExpertStreamParams p = stream_params(args, 0, rows, bank);
  // Items and parts are counted in 16 bits, units and their bytes in 32.
  const int64_t assignments = int64_t{rows} * args.top_k;
  const double cost = static_cast<double>(assignments) *
                      (1.0 * p.up_steps * kTransferStages * p.column_blocks + 1.0 * p.down_stages * p.channel_groups);
  if (assignments > 0xFFFF || p.column_blocks > 0xFFFF || p.channel_groups > 0xFFFF || bank.experts > 0xFFFF ||
      cost * device.multiprocessors > 4e9)
    return false;
  size_t bytes = 0;
  return lay_out(p, block_count(p, device), device.shared_bytes, bytes);
}

bool expert_stream_needs_list(const ExpertsArgs& args, int rows) {
  return rows > kListedRows || rows * args.top_k > kMaxListed;
}

void launch_expert_stream(const Launch& on, const ExpertsArgs& args, int first_row, int rows,
                          const PreparedExperts& bank, const ExpertWorkspace& work) {
  ExpertStreamParams p = stream_params(args, first_row, rows, bank);
  p.work = work;
  const int blocks = block_count(p, on.device);
  size_t bytes = 0;
  SPARK_CHECK(lay_out(p, blocks, on.device.shared_bytes, bytes));
  p.counts_shared = first_row == 0;
#ifdef SPARK_LAB
  if (const char* v = getenv("LAB_COPY")) p.lab = atoi(v);
#endif
#ifdef SPARK_CUDA_EMULATION
  const int cluster = blocks;
#else
  const int cluster = 1;
#endif
  launch_kernel(on, expert_stream_kernel<kStreamWarps>, dim3(static_cast<unsigned>(blocks)), kStreamThreads,
                bytes, cluster, p);
}

#ifdef SPARK_LAB
void lab_set_stamps(void* memory) {
  unsigned long long* p = static_cast<unsigned long long*>(memory);
  cudaMemcpyToSymbol(lab_stamps, &p, sizeof p);
}
#endif

}  // namespace spark::engine::cuda
