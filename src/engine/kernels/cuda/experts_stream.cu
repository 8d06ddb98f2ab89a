// The routed experts in one launch: gate and up with the fused activation and down, for devices whose
// multiprocessors have the shared memory for it. experts_combine.cu adds up what it leaves.
//
// A block a multiprocessor. Every warp streams what it needs of the weights through a ring of its own by the
// copy engine, unit after unit of the block's work (plan/expert_schedule.h) without a gap. Of a unit of gate
// and up (an item's 32 columns) the warps share the columns of the weights out among them (the shards of the
// sum); of a unit of down each takes 32 output channels. Two more warps do what would hold the others up: one
// joins the shards, the other waits for items whose activations are complete and lays these out for down.
#include "engine/kernels/cuda/experts_stream.cuh"

namespace spark::engine::cuda {
namespace {

// As many warps as divide the real width's forty places evenly and keep the instruction slots busy.
constexpr int kStreamWarps = 20;
constexpr int kStreamThreads = 32 * (kStreamWarps + 2);

// What the warps of a block share.
struct StreamBlock {
  uint8_t* shared;
  StreamUnit* units;
  int unit_count;
  int up_count;  // of them gate and up, which come first
  StreamList list;
  float* partial;        // of gate and up: [half][warp][row][matrix, column]
  uint64_t* full;        // [half]: all shards of a unit are written
  uint64_t* empty;       // and have been read
  uint64_t* rows_full;   // the rows of a unit of down are there
  uint64_t* rows_empty;  // and have been read
};

// Phases of the barriers of the halves: of the n-th unit that uses them.
__device__ __forceinline__ uint32_t written_phase(int n) {
  return static_cast<uint32_t>(n >> 1) & 1;
}
__device__ __forceinline__ uint32_t read_phase(int n) {
  return written_phase(n) ^ 1;
}

// Whether a warp has channels of a unit of down.
__device__ __forceinline__ bool has_channels(const ExpertStreamParams& p, int part, int warp) {
  return warp < p.set_groups && part * p.set_groups + warp < p.channel_groups;
}

// The columns of gate and up that a warp takes, 128 each.
struct UpShard {
  int first, last;
};
template <int kUpWarps>
__device__ __forceinline__ UpShard shard_of(const ExpertStreamParams& p, int warp) {
  const int steps = (p.up_steps + kUpWarps - 1) / kUpWarps;
  return {min(warp * steps, p.up_steps), min((warp + 1) * steps, p.up_steps)};
}

// A warp's weights, unit after unit of the block without a gap.
class WeightRing {
 public:
  __device__ __forceinline__ WeightRing(const ExpertStreamParams& p, const StreamBlock& block,
                                        uint64_t* arrived, int warp, const UpShard& shard)
      : p_(p),
        block_(block),
        arrived_(arrived),
        ring_(block.shared + warp * p.slots * kTransferBytes),
        warp_(warp),
        shard_(shard) {
    aim();
    for (int i = 0; i < p.slots; ++i) fetch(i);
  }

  // Waits for the next transfer and says where it lies.
  __device__ __forceinline__ const uint8_t* next() const {
    barrier_wait(arrived_ + slot_, parity_);
    return ring_ + slot_ * kTransferBytes;
  }
  // It has been read: its place is filled again.
  __device__ __forceinline__ void release() {
    __syncwarp();
    fetch(slot_);
    if (++slot_ == p_.slots) slot_ = 0, parity_ ^= 1;
  }

 private:
  __device__ __forceinline__ void aim() {
    while (left_ == 0 && ++unit_ < block_.unit_count) {
      const StreamUnit unit = block_.units[unit_];
      if (unit.down != 0) {
        if (!has_channels(p_, unit.part, warp_)) continue;
        from_ = unit.weights + static_cast<size_t>(warp_ * p_.down_stages) * kDownStageBytes;
        left_ = p_.down_stages;
      } else {
        from_ = unit.weights + static_cast<size_t>(shard_.first) * kUpStepBytes;
        left_ = (shard_.last - shard_.first) * kUpStepStages;
      }
    }
  }
  __device__ __forceinline__ void fetch(int slot) {
    if (left_ == 0) return;
    const int stages = next_stages(left_);
    const uint32_t bytes = static_cast<uint32_t>(stages) * kDownStageBytes;
    if ((threadIdx.x & 31) == 0) copy_bulk(ring_ + slot * kTransferBytes, from_, bytes, arrived_ + slot);
    from_ += bytes;
    left_ -= stages;
    aim();
  }

  const ExpertStreamParams& p_;
  const StreamBlock& block_;
  uint64_t* const arrived_;  // of the places
  uint8_t* const ring_;
  const int warp_;
  const UpShard shard_;
  int unit_ = -1;  // that is fetched
  const uint8_t* from_ = nullptr;
  int left_ = 0;  // of it, in stages of one matrix
  int slot_ = 0;  // that is read next
  uint32_t parity_ = 0;
};

// A lane's part of a row for 128 columns of gate and up. A row that an item does not have counts as its
// first: its columns of the products are nobody's.
struct UpInput {
  uint2 codes;      // its column's eight
  uint32_t scales;  // of its two blocks
};
__device__ __forceinline__ UpInput read_input(const ExpertStreamParams& p, const StreamBlock& block, int unit,
                                              int step) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int g = lane >> 2, t = lane & 3;
  const uint8_t* row = block.list.items[block.units[unit].item].row;
  const uint8_t* codes = p.x_codes + static_cast<size_t>(row[g >> 2]) * p.hidden + step * 128;
  const uint8_t* scales = p.x_scales + static_cast<size_t>(row[t >> 1]) * (p.hidden / 32) + step * 4;
  return {*reinterpret_cast<const uint2*>(codes + (g & 3) * 32 + t * 8),
          *reinterpret_cast<const uint16_t*>(scales + (t & 1) * 2)};
}

// A warp's shard of the block's units of gate and up. The rows are read from L2, 128 columns ahead.
template <int kUpWarps>
__device__ __forceinline__ void multiply_gate_up(const ExpertStreamParams& p, const StreamBlock& block,
                                                 int warp, const UpShard& shard, WeightRing& ring) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int g = lane >> 2, t = lane & 3;
  UpInput next = {};
  if (block.up_count > 0 && shard.first < shard.last) next = read_input(p, block, 0, shard.first);
  uint32_t mine[4];
#pragma unroll
  for (int b = 0; b < 4; ++b) mine[b] = opaque((g & 3) == b ? 1u : 0u);  // or the product becomes a selection
  for (int n = 0; n < block.up_count; ++n) {
    float sum[4][2] = {};
    for (int s = shard.first; s < shard.last; ++s) {
      uint32_t v[4];
      fp4_stage_activations(next.codes, v);
      // The upper byte's lowest bit lands in the sign of the first.
      const float2 scales = make_float2(fabsf(__uint_as_float(next.scales << 23)),
                                        __uint_as_float((next.scales << 15) & 0x7F800000u));
      if (s + 1 < shard.last) {
        next = read_input(p, block, n, s + 1);
      } else if (n + 1 < block.up_count) {
        next = read_input(p, block, n + 1, shard.first);
      }
      multiply_stages<2>(
          sum, ring.next(),
          [&](int column, uint32_t(&b)[4]) {
#pragma unroll
            for (int i = 0; i < 4; ++i) b[i] = v[i] * mine[column];
          },
          scales, true);
      ring.release();
    }
    const int half = n & 1;
    if (n >= kHalves) barrier_wait(block.empty + half, read_phase(n));
    float* const shards = block.partial + half * (kUpWarps * kExpertRows * 64);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float v = sum[i][h] + __shfl_xor_sync(~0u, sum[i][h], 1);
        if ((t & 1) == 0) shards[(warp * kExpertRows + (t >> 1)) * 64 + i * 16 + h * 8 + g] = v;
      }
    }
    barrier_arrive(block.full + half);
  }
}

// A warp's 32 channels of an item, whose rows lie in half `half`.
__device__ __forceinline__ void multiply_channels(const ExpertStreamParams& p, const StreamBlock& block,
                                                  const StreamUnit& unit, int group, int half,
                                                  WeightRing& ring) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int g = lane >> 2, t = lane & 3;
  const StreamItem item = block.list.items[unit.item];
  // A lane reads its own block of the four, and zeros for the others.
  const int own = p.rows_at + (half * kExpertRows + (g >> 2)) * p.down_steps * 256 + t * 16;
  int from_row[4];
#pragma unroll
  for (int b = 0; b < 4; ++b)
    from_row[b] = ((g & 3) == b && (g >> 2) < item.rows ? own : p.zeros_at) + b * 64;
  const float2* scales = reinterpret_cast<const float2*>(block.shared + p.row_scales_at) +
                         (half * kExpertRows + (t >> 1)) * p.down_steps * 2 + (t & 1);
  float sum[2][2] = {};
  for (int stages = p.down_stages; stages > 0;) {
    const int count = next_stages(stages);
    const uint8_t* at = ring.next();
    for (int i = 0; i < count; i += 2) {
      multiply_stages<1>(
          sum, at,
          [&](int column, uint32_t(&b)[4]) {
            const uint4 v = *reinterpret_cast<const uint4*>(block.shared + from_row[column]);
            b[0] = v.x, b[1] = v.y, b[2] = v.z, b[3] = v.w;
          },
          *scales, i + 1 < count);
      at += 2 * kDownStageBytes;
      scales += 2;
#pragma unroll
      for (int b = 0; b < 4; ++b) from_row[b] += 256;
    }
    stages -= count;
    ring.release();
  }
  const int destination = (t >> 1) < item.rows ? block.list.destinations[item.first + (t >> 1)] : -1;
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

// Fills in the block's units. Whole blocks must call.
__device__ __forceinline__ void deal_out(const ExpertStreamParams& p, StreamBlock& block, int items) {
  const ExpertSchedule schedule = {static_cast<uint32_t>(items), p.ups, p.downs};
  const int first = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  const auto count_below = [&](uint32_t end) {
    return first < static_cast<int>(end) ? (static_cast<int>(end) - 1 - first) / blocks + 1 : 0;
  };
  block.unit_count = count_below(schedule.size());
  block.up_count = count_below(schedule.up_count());
  for (int n = static_cast<int>(threadIdx.x); n < block.unit_count; n += static_cast<int>(blockDim.x)) {
    const ExpertUnit unit = schedule.at(static_cast<uint32_t>(first + n * blocks));
    const size_t expert = block.list.items[unit.item].expert, part = unit.part;
    const uint8_t* weights =
        unit.down ? p.down + expert * p.down_bytes + part * kDownStageBytes * p.down_stages * p.set_groups
                  : p.gate_up + expert * p.gate_up_bytes + part * kUpStepBytes * p.up_steps;
    block.units[n] = {weights, static_cast<uint16_t>(unit.item), static_cast<uint16_t>(unit.part),
                      unit.down ? 1u : 0u};
  }
  __syncthreads();
}

template <int kUpWarps>
__global__ void __launch_bounds__(32 * (kUpWarps + 2), 1)
    expert_stream_kernel(const __grid_constant__ ExpertStreamParams p) {
  constexpr int kThreads = 32 * (kUpWarps + 2);
  SPARK_DYNAMIC_SHARED(uint8_t, shared);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread >> 5;
  const int places = kUpWarps * p.slots;
  uint64_t* const barriers =
      reinterpret_cast<uint64_t*>(shared + p.barriers_at);  // of the rings' places first
  for (int i = thread; i < places + 4 * kHalves; i += kThreads) {
    // Every lane arrives at those of the halves, for what it has written or read itself.
    const int kind = (i - places) / kHalves;  // full, empty, rows_full, rows_empty
    const bool by_all = kind == 0 || kind == 3;
    barrier_init(barriers + i, i < places ? 1 : by_all ? 32 * kUpWarps : 32);
  }
  for (int i = thread; i < p.down_steps * 16 + 4; i += kThreads)
    reinterpret_cast<uint4*>(shared + p.zeros_at)[i] = make_uint4(0, 0, 0, 0);
  barrier_init_done();
  launch_dependents();
  wait_for_inputs();

  StreamBlock block = {.shared = shared,
                       .units = reinterpret_cast<StreamUnit*>(shared + p.units_at),
                       .unit_count = 0,
                       .up_count = 0,
                       .list = {.items = reinterpret_cast<StreamItem*>(shared + p.items_at),
                                .destinations = reinterpret_cast<int32_t*>(shared + p.destinations_at),
                                .weights = reinterpret_cast<float*>(shared + p.weights_at)},
                       .partial = reinterpret_cast<float*>(shared + p.partial_at),
                       .full = barriers + places,
                       .empty = barriers + places + kHalves,
                       .rows_full = barriers + places + 2 * kHalves,
                       .rows_empty = barriers + places + 3 * kHalves};
  const int items = p.listed ? read_list(p.work, block.list, p.inputs.rows * p.inputs.top_k)
                             : list_experts(p.inputs, block.list, reinterpret_cast<int32_t*>(block.partial));
  deal_out(p, block, items);
  if (warp == kUpWarps) {
    join_shards<kUpWarps>(p, block.list, block.units, block.unit_count, block.partial, block.full,
                          block.empty);
    return;
  }
  if (warp == kUpWarps + 1) {
    stage_rows(p, block.list, block.units, block.unit_count, shared, block.rows_full, block.rows_empty);
    return;
  }
  const UpShard shard = shard_of<kUpWarps>(p, warp);
  WeightRing ring(p, block, barriers + warp * p.slots, warp, shard);
  multiply_gate_up<kUpWarps>(p, block, warp, shard, ring);
  for (int n = block.up_count; n < block.unit_count; ++n) {
    const int use = n - block.up_count, half = use & 1;
    barrier_wait(block.rows_full + half, written_phase(use));
    const StreamUnit unit = block.units[n];
    if (has_channels(p, unit.part, warp))
      multiply_channels(p, block, unit, unit.part * p.set_groups + warp, half, ring);
    barrier_arrive(block.rows_empty + half);
  }
}

// Places in shared memory; false when a ring of two places does not fit.
bool lay_out(ExpertStreamParams& p, int blocks, size_t limit, size_t& bytes) {
  const int64_t assignments = int64_t{p.inputs.rows} * p.inputs.top_k;
  const int64_t units = ceil_div(assignments * int64_t{p.ups.divisor + p.downs.divisor}, blocks);
  for (p.slots = 4; p.slots >= 2; --p.slots) {
    int64_t at = int64_t{kStreamWarps} * p.slots * kTransferBytes;
    const auto take = [&](int& place, int64_t size) {
      at = round_up(at, 16);
      place = static_cast<int>(at);
      at += size;
    };
    at = round_up(at, 128);
    take(p.rows_at, int64_t{kHalves} * kExpertRows * p.down_steps * 256);
    at += 64;  // so that those who read zeros meet other banks than those who read a row
    take(p.zeros_at, int64_t{p.down_steps} * 256 + 64);
    take(p.row_scales_at, int64_t{kHalves} * kExpertRows * p.down_steps * 16);
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

ExpertStreamParams stream_params(const DeviceLimits& device, const ExpertsArgs& args, int first_row, int rows,
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
              .by_top_k = SmallDivisor::of(static_cast<uint32_t>(args.top_k)),
              .experts = bank.experts};
  p.hidden = static_cast<int>(bank.hidden);
  p.up_steps = static_cast<int>(bank.hidden / 128);
  p.column_blocks = static_cast<int>(bank.width / 32);
  p.down_stages = static_cast<int>(ceil_div(bank.width, kFp4TileCols));
  p.down_steps = (p.down_stages + 1) / 2;
  p.channel_groups = static_cast<int>(ceil_div(bank.hidden, kDownChannels));
  p.ups = SmallDivisor::of(static_cast<uint32_t>(p.column_blocks));
  // A set of channel groups keeps all warps busy, unless there are too few sets for the blocks.
  const int64_t groups = int64_t{rows} * args.top_k * p.channel_groups;
  p.set_groups = static_cast<int>(std::min<int64_t>(kStreamWarps, ceil_div(groups, device.multiprocessors)));
  p.downs = SmallDivisor::of(static_cast<uint32_t>(ceil_div(p.channel_groups, p.set_groups)));
  p.limit = args.limit;
  return p;
}

// All at once, on the device as in the emulator (where they form a cluster for this). With few rows the mHC
// coefficients start early and end beside the router and the choice, with a block a row that ends 7 us later
// than those: a block of the experts that gets its multiprocessor starts late and ends late, and all wait for
// it. So a few stay free, which costs nothing: memory is the bound.
int block_count(const ExpertStreamParams& p, [[maybe_unused]] const DeviceLimits& device) {
  const int64_t most = int64_t{p.inputs.rows} * p.inputs.top_k * int64_t{p.ups.divisor + p.downs.divisor};
#ifdef SPARK_CUDA_EMULATION
  return static_cast<int>(std::min<int64_t>(most, 3));
#else
  const int free = p.inputs.rows <= kDirectRows ? std::min(p.inputs.rows, device.multiprocessors / 22) : 0;
  return static_cast<int>(std::min<int64_t>(most, device.multiprocessors - free));
#endif
}

}  // namespace

bool expert_stream_fits(const DeviceLimits& device, const ExpertsArgs& args, const PreparedExperts& bank) {
  if (bank.hidden % 128 != 0 || !device.sm90) return false;
  const int rows = std::min(args.step.rows, kMaxLinearRows);
  ExpertStreamParams p = stream_params(device, args, 0, rows, bank);
  // Items, parts and units are counted in 16 bits.
  const int64_t assignments = int64_t{rows} * args.top_k;
  if (bank.experts > 0xFFFF || assignments * std::max(p.ups.divisor, p.downs.divisor) > 0xFFFF) return false;
  size_t bytes = 0;
  return lay_out(p, block_count(p, device), device.shared_bytes, bytes);
}

bool expert_stream_needs_list(const ExpertsArgs& args, int rows) {
  return rows > kListedRows || rows * args.top_k > kMaxListed || args.top_k > 32;
}

void launch_expert_stream(const Launch& on, const ExpertsArgs& args, int first_row, int rows,
                          const PreparedExperts& bank, const ExpertWorkspace& work) {
  ExpertStreamParams p = stream_params(on.device, args, first_row, rows, bank);
  p.work = work;
  const int blocks = block_count(p, on.device);
  size_t bytes = 0;
  SPARK_CHECK(lay_out(p, blocks, on.device.shared_bytes, bytes));
#ifdef SPARK_CUDA_EMULATION
  const int cluster = blocks;
#else
  const int cluster = 1;
#endif
  launch_kernel(on, expert_stream_kernel<kStreamWarps>, dim3(static_cast<unsigned>(blocks)), kStreamThreads,
                bytes, cluster, p);
}

}  // namespace spark::engine::cuda
