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
constexpr int kStreamWarps = kExpertShards;
constexpr int kEvenSetWarps = 16;
constexpr int kStreamThreads = 32 * (kStreamWarps + 2);
static_assert(kMaxListed <= kStreamThreads && kListedRows <= kMaxListedRows);

// The columns of gate and up that a warp takes, 128 each: so many from the first one on.
__device__ __forceinline__ int first_step(const ExpertStreamParams& p, int warp) {
  return min(warp * p.warp_steps, p.up_steps);
}
__device__ __forceinline__ int steps_of(const ExpertStreamParams& p, int warp) {
  return first_step(p, warp + 1) - first_step(p, warp);
}

// A warp's weights, unit after unit of the block without a gap.
class WeightRing {
 public:
  __device__ __forceinline__ WeightRing(const ExpertStreamParams& p, const StreamBlock& block,
                                        uint64_t* arrived, int warp)
      : p_(p),
        block_(block),
        arrived_(arrived),
        ring_(block.shared + warp * p.slots * kTransferBytes),
        warp_(warp) {}

  // Starts with the block's first unit, of gate and up, before the table of units is there. No weights: not
  // known. Not `run`: a rehearsal.
  __device__ __forceinline__ void begin(const uint8_t* weights, bool run) {
    unit_ = -1, left_ = 0, filled_ = 0;
    if (weights == nullptr) return;
    unit_ = 0;
    from_ = weights + up_first();
    left_ = up_stages();
    for (; filled_ < p_.slots && left_ > 0; ++filled_) copy(filled_, run);
  }
  // The table is there.
  __device__ __forceinline__ void go_on() {
    if (left_ == 0) aim();
    for (; filled_ < p_.slots; ++filled_) fetch(filled_);
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
  // Bytes of a unit of gate and up before the warp's, and its stages.
  __device__ __forceinline__ uint32_t up_first() const {
    return static_cast<uint32_t>(first_step(p_, warp_)) * kUpStepBytes;
  }
  __device__ __forceinline__ int up_stages() const { return steps_of(p_, warp_) * kUpStepStages; }
  __device__ __forceinline__ void aim() {
    while (left_ == 0 && ++unit_ < block_.unit_count) {
      const StreamUnit unit = block_.units[unit_];
      const bool down = unit.groups != 0;
      from_ = unit.weights +
              (down ? static_cast<uint32_t>(warp_ * p_.down_stages) * kDownStageBytes : up_first());
      left_ = !down ? up_stages() : warp_ < static_cast<int>(unit.groups) ? p_.down_stages : 0;
    }
  }
  __device__ __forceinline__ void copy(int slot, bool run) {
    const int stages = next_stages(left_);
    const uint32_t bytes = static_cast<uint32_t>(stages) * kDownStageBytes;
    if (run && (threadIdx.x & 31) == 0)
      copy_bulk(ring_ + slot * kTransferBytes, from_, bytes, arrived_ + slot);
    from_ += bytes;
    left_ -= stages;
  }
  __device__ __forceinline__ void fetch(int slot) {
    if (left_ == 0) return;
    copy(slot, true);
    aim();
  }

  const ExpertStreamParams& p_;
  const StreamBlock& block_;
  uint64_t* const arrived_;  // of the places
  uint8_t* const ring_;
  const int warp_;
  int unit_ = -1;  // that is fetched
  const uint8_t* from_ = nullptr;
  int left_ = 0;    // of it, in stages of one matrix
  int filled_ = 0;  // places, at the beginning
  int slot_ = 0;    // that is read next
  uint32_t parity_ = 0;
};

// A lane's part of a row for 128 columns of gate and up. A row that an item does not have counts as its
// first: its columns of the products are nobody's.
struct UpInput {
  uint2 codes;      // its column's eight
  uint32_t scales;  // of its two blocks
};
// Where they come from, one 128 columns after the other.
struct UpRows {
  uint32_t codes = 0, scales = 0;  // bytes from the launch's first row

  UpRows() = default;
  // Of the two rows for the lane's column of the products, and for its scales.
  __device__ __forceinline__ UpRows(const ExpertStreamParams& p, uint32_t column_row, uint32_t scale_row,
                                    int first) {
    const int lane = static_cast<int>(threadIdx.x & 31);
    const int g = lane >> 2, t = lane & 3;
    codes = column_row * static_cast<uint32_t>(p.hidden) +
            static_cast<uint32_t>(first * 128 + (g & 3) * 32 + t * 8);
    scales =
        scale_row * static_cast<uint32_t>(p.hidden / 32) + static_cast<uint32_t>(first * 4 + (t & 1) * 2);
  }
  __device__ __forceinline__ UpRows(const ExpertStreamParams& p, const StreamItem& item, int first)
      : UpRows(p, item.row[threadIdx.x >> 4 & 1], item.row[threadIdx.x >> 1 & 1], first) {}
  __device__ __forceinline__ UpInput next(const ExpertStreamParams& p) {
    const UpInput in = {*reinterpret_cast<const uint2*>(p.x_codes + codes),
                        *reinterpret_cast<const uint16_t*>(p.x_scales + scales)};
    codes += 128;
    scales += 4;
    return in;
  }
};

// What a warp reads of rows before it knows its units: behind the weights of all blocks a read takes
// microseconds, so the first one goes ahead of them.
struct EarlyRows {
  int row = -1;  // that both rows are expected to be; -1: nothing was read
  UpRows rows = {};
  UpInput next = {};
};

// A warp's shard of the block's units of gate and up. The rows are read from L2, 128 columns ahead.
template <int kUpWarps>
__device__ __forceinline__ void multiply_gate_up(const ExpertStreamParams& p, const StreamBlock& block,
                                                 int warp, const EarlyRows& early, WeightRing& ring) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int g = lane >> 2, t = lane & 3;
  if (block.up_count == 0) return;
  const int steps = steps_of(p, warp);
  const auto item = [&](int n) -> const StreamItem& { return block.list.items[block.units[n].item]; };
  UpRows rows = early.rows;
  UpInput next = early.next;
  if (steps > 0 && (item(0).row[0] != early.row || item(0).row[1] != early.row)) {
    rows = UpRows(p, item(0), first_step(p, warp));
    next = rows.next(p);
  }
  for (int n = 0; n < block.up_count; ++n) {
    float sum[4][2] = {};
    for (int s = 0; s < steps; ++s) {
      uint32_t v[4];
      fp4_stage_activations(next.codes, v);
      // The upper byte's lowest bit lands in the sign of the first.
      const float2 scales = make_float2(fabsf(__uint_as_float(next.scales << 23)),
                                        __uint_as_float((next.scales << 15) & 0x7F800000u));
      if (s + 1 == steps) rows = UpRows(p, item(min(n + 1, block.up_count - 1)), first_step(p, warp));
      next = rows.next(p);
      multiply_stages<2>(
          sum, ring.next(),
          [&](int column, uint32_t(&b)[4]) {
#pragma unroll
            for (int i = 0; i < 4; ++i) b[i] = (g & 3) == column ? v[i] : 0u;
          },
          scales, true);
      ring.release();
    }
    wait_for_place(block.empty, n, p.place_shift);
    const int place = turn_place(n, p.place_shift);
    float* const shards = block.partial + place * (kUpWarps * kExpertRows * 64);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float v = sum[i][h] + __shfl_xor_sync(~0u, sum[i][h], 1);
        if ((t & 1) == 0) shards[(warp * kExpertRows + (t >> 1)) * 64 + i * 16 + h * 8 + g] = v;
      }
    }
    barrier_arrive(block.full + place);
  }
}

// A warp's 32 channels of an item, whose rows lie in place `place`.
__device__ __forceinline__ void multiply_channels(const ExpertStreamParams& p, const StreamBlock& block,
                                                  const StreamUnit& unit, int group, int place,
                                                  WeightRing& ring) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int g = lane >> 2, t = lane & 3;
  const StreamItem item = block.list.items[unit.item];
  // A lane reads its own block of the four, and zeros for the others.
  const int own = p.rows_at + (place * kExpertRows + (g >> 2)) * p.down_steps * 256 + t * 16;
  int from_row[4];
#pragma unroll
  for (int b = 0; b < 4; ++b)
    from_row[b] = ((g & 3) == b && (g >> 2) < item.rows ? own : p.zeros_at) + b * 64;
  const float2* scales = reinterpret_cast<const float2*>(block.shared + p.row_scales_at) +
                         (place * kExpertRows + (t >> 1)) * p.down_steps * 2 + (t & 1);
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
  const int destination = (t >> 1) < item.rows ? item.place_of(t >> 1) : -1;
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

// A thread's part of what happens once in a block before its units.
template <int kUpWarps>
__device__ __forceinline__ void set_up(const ExpertStreamParams& p, const StreamBlock& block, int thread) {
  // Every lane arrives for what it has written or read itself.
  if (thread < kMaxPlaces) {
    barrier_init(block.full + thread, 32 * kUpWarps);
    barrier_init(block.empty + thread, 32);
    barrier_init(block.rows_full + thread, 32);
    barrier_init(block.rows_empty + thread, 32 * kUpWarps);
  }
  const uint4 zero = make_uint4(0, 0, 0, 0);
  for (int i = thread; i < p.down_steps * 16 + 4; i += 64)
    reinterpret_cast<uint4*>(block.shared + p.zeros_at)[i] = zero;
  auto& scratch = *reinterpret_cast<ListScratch*>(block.partial);
  for (int i = thread; i < kMaxListedExperts / 4; i += 64) reinterpret_cast<uint4*>(scratch.rows)[i] = zero;
}

// Fills in the block's units. Whole blocks must call.
__device__ __forceinline__ void deal_out(const ExpertStreamParams& p, StreamBlock& block) {
  const ExpertSchedule schedule = {static_cast<uint32_t>(*block.list.count), p.ups, p.downs};
  const auto units_below = [&](uint32_t end) {
    return static_cast<int>(p.blocks.quotient(end + p.blocks.divisor - 1 - blockIdx.x));
  };
  block.unit_count = units_below(schedule.size());
  block.up_count = units_below(schedule.up_count());
  for (int n = static_cast<int>(threadIdx.x); n < block.unit_count; n += static_cast<int>(blockDim.x)) {
    const ExpertUnit unit = schedule.at(blockIdx.x + static_cast<uint32_t>(n) * p.blocks.divisor);
    const size_t expert = block.list.items[unit.item].expert;
    const int part = static_cast<int>(unit.part) * (unit.down ? p.set_groups : 1);
    const uint8_t* weights =
        unit.down
            ? p.down + expert * p.down_bytes + static_cast<size_t>(part * p.down_stages) * kDownStageBytes
            : p.gate_up + expert * p.gate_up_bytes + static_cast<size_t>(part * p.up_steps) * kUpStepBytes;
    const int groups = unit.down ? min(p.set_groups, p.channel_groups - part) : 0;
    block.units[n] = {weights, static_cast<uint16_t>(unit.item), static_cast<uint16_t>(part),
                      static_cast<uint32_t>(groups)};
  }
  __syncthreads();
}

template <int kUpWarps>
__global__ void __launch_bounds__(32 * (kUpWarps + 2), 1)
    expert_stream_kernel(const __grid_constant__ ExpertStreamParams p) {
  SPARK_DYNAMIC_SHARED(uint8_t, shared);
  launch_dependents();
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread >> 5, lane = thread & 31;
  const bool streams = warp < kUpWarps;
  const int places = kUpWarps * p.slots;
  uint64_t* const barriers =
      reinterpret_cast<uint64_t*>(shared + p.barriers_at);  // of the rings' places first
  StreamBlock block = {.shared = shared,
                       .list = {.items = reinterpret_cast<StreamItem*>(shared + p.items_at),
                                .weights = reinterpret_cast<float*>(shared + p.weights_at),
                                .count = reinterpret_cast<int32_t*>(shared + p.count_at)},
                       .units = reinterpret_cast<StreamUnit*>(shared + p.units_at),
                       .unit_count = 0,
                       .up_count = 0,
                       .partial = reinterpret_cast<float*>(shared + p.partial_at),
                       .full = barriers + places,
                       .empty = barriers + places + kMaxPlaces,
                       .rows_full = barriers + places + 2 * kMaxPlaces,
                       .rows_empty = barriers + places + 3 * kMaxPlaces};
  WeightRing ring(p, block, barriers + warp * p.slots, warp);
  if (!streams) {
    set_up<kUpWarps>(p, block, thread - 32 * kUpWarps);
  } else if (lane < p.slots) {
    barrier_init(barriers + warp * p.slots + lane, 1);
  }
  barrier_init_done();
  __syncwarp();

  EarlyRows first_rows;
  if (p.listed) {
    wait_for_inputs();
    __syncthreads();
    read_list(p.work, block.list, reinterpret_cast<int32_t*>(block.partial), p.inputs.rows * p.inputs.top_k);
  } else {
    // Weights travel before the work list exists: a warp finds out by itself to which expert the block's
    // first unit belongs. One of the other warps rehearses this while the inputs do not exist yet: it brings
    // instructions and parameters into the caches. What the list is made of is read first: behind the weights
    // of all blocks a read takes microseconds.
    const uint32_t first_item = p.ups.quotient(blockIdx.x);
    const Assignment lanes(p.inputs, lane), threads(p.inputs, thread);
    const int32_t* const id_of_lane = opaque(p.inputs.ids + lanes.place);
    const int32_t* const id_of_thread = opaque(p.inputs.ids + threads.place);
    const float* const weight_of_thread = opaque(p.inputs.weights + threads.place);
    int expert = -1;
    float weight = 0.0f;
#pragma unroll 1
    for (int pass = warp == kUpWarps ? 0 : 1; pass < 2; ++pass) {
      int early = lane;
      if (pass == 1) {
        wait_for_inputs();
        const int32_t of_lane = load_shared_by_blocks(id_of_lane);
        const int32_t of_thread = load_shared_by_blocks(id_of_thread);
        weight = load_shared_by_blocks(weight_of_thread);
        early = lanes.expert(p.inputs, of_lane);
        expert = threads.expert(p.inputs, of_thread);
      }
      const int assignment = assignment_of_item(early, first_item);
      early = __shfl_sync(~0u, early, max(assignment, 0));
      if (pass == 1 && !streams) break;
      const uint8_t* weights = nullptr;
      if (assignment >= 0) {
        weights = p.gate_up + static_cast<size_t>(early) * p.gate_up_bytes +
                  static_cast<size_t>((blockIdx.x - first_item * p.ups.divisor) * p.up_steps) * kUpStepBytes;
        if (pass == 1 && steps_of(p, warp) > 0) {
          const uint32_t row = p.inputs.by_top_k.quotient(static_cast<uint32_t>(assignment));
          first_rows.row = static_cast<int>(row);
          first_rows.rows = UpRows(p, row, row, first_step(p, warp));
          first_rows.next = first_rows.rows.next(p);
        }
      }
      ring.begin(weights, pass == 1);
    }
    __syncthreads();
    list_experts(p.inputs, expert, weight, block.list, *reinterpret_cast<ListScratch*>(block.partial));
  }
  deal_out(p, block);
  if (warp == kUpWarps) return join_shards<kUpWarps>(p, block);
  if (warp == kUpWarps + 1) return stage_rows(p, block);
  ring.go_on();
  multiply_gate_up<kUpWarps>(p, block, warp, first_rows, ring);
  for (int n = 0; n < block.unit_count - block.up_count; ++n) {
    const int place = turn_place(n, p.place_shift);
    barrier_wait(block.rows_full + place, turn_phase(n, p.place_shift));
    const StreamUnit unit = block.units[block.up_count + n];
    if (warp < static_cast<int>(unit.groups))
      multiply_channels(p, block, unit, unit.part + warp, place, ring);
    barrier_arrive(block.rows_empty + place);
  }
}

// Places in shared memory; false when a ring of two places does not fit.
bool lay_out(ExpertStreamParams& p, int blocks, size_t limit, size_t& bytes) {
  const int64_t assignments = int64_t{p.inputs.rows} * p.inputs.top_k;
  const int64_t units = ceil_div(assignments * int64_t{p.ups.divisor + p.downs.divisor}, blocks);
  p.blocks = SmallDivisor::of(static_cast<uint32_t>(blocks));
  for (p.slots = 4; p.slots >= 2; --p.slots) {
    for (p.place_shift = kMaxPlaceShift; p.place_shift >= 1; --p.place_shift) {
      const int64_t rows = int64_t{kExpertRows} << p.place_shift;
      int64_t at = int64_t{kStreamWarps} * p.slots * kTransferBytes;
      const auto take = [&](int& place, int64_t size) {
        at = round_up(at, 16);
        place = static_cast<int>(at);
        at += size;
      };
      at = round_up(at, 128);
      take(p.rows_at, rows * p.down_steps * 256);
      at += 64;  // so that those who read zeros meet other banks than those who read a row
      take(p.zeros_at, int64_t{p.down_steps} * 256 + 64);
      take(p.row_scales_at, rows * p.down_steps * 16);
      take(p.partial_at, std::max<int64_t>(rows * kStreamWarps * 64 * 4, sizeof(ListScratch)));
      take(p.units_at, units * static_cast<int64_t>(sizeof(StreamUnit)));
      take(p.items_at, assignments * static_cast<int64_t>(sizeof(StreamItem)));
      take(p.weights_at, assignments * kExpertRows * 4);
      take(p.count_at, 4);
      take(p.barriers_at, 8 * (int64_t{kStreamWarps} * p.slots + 4 * kMaxPlaces));
      bytes = static_cast<size_t>(at);
      if (bytes + 1024 <= limit) return true;
    }
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
  p.warp_steps = static_cast<int>(ceil_div(p.up_steps, kStreamWarps));
  p.column_blocks = static_cast<int>(bank.width / 32);
  p.down_stages = static_cast<int>(ceil_div(bank.width, kFp4TileCols));
  p.down_steps = (p.down_stages + 1) / 2;
  p.channel_groups = static_cast<int>(ceil_div(bank.hidden, kDownChannels));
  p.ups = SmallDivisor::of(static_cast<uint32_t>(p.column_blocks));
  // A set of channel groups keeps all warps busy, unless there are too few sets for the blocks.
  const int64_t groups = int64_t{rows} * args.top_k * p.channel_groups;
  // Sixteen of twenty warps a set where that makes the number of units even out: 36 items of 18 + 10 are
  // eight units for most of 129 blocks, of 18 + 8 they are seven for some and eight for others.
  const int set_warps = expert_stream_frees(rows) ? kEvenSetWarps : kStreamWarps;
  p.set_groups = static_cast<int>(std::min<int64_t>(set_warps, ceil_div(groups, device.multiprocessors)));
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
  // Three suffice for the shared expert's last product, too.
  const int most_free = device.multiprocessors / (expert_stream_frees(p.inputs.rows) ? 44 : 22);
  const int free = p.inputs.rows <= kDirectRows ? std::min(p.inputs.rows, most_free) : 0;
  return static_cast<int>(std::min<int64_t>(most, device.multiprocessors - free));
#endif
}

}  // namespace

bool expert_stream_fits(const DeviceLimits& device, const ExpertsArgs& args, const PreparedExperts& bank) {
  if (bank.hidden % 128 != 0 || !device.sm90) return false;
  const int rows = std::min(args.step.rows, kMaxLinearRows);
  ExpertStreamParams p = stream_params(device, args, 0, rows, bank);
  // Items, parts and the places of units are counted in 16 bits.
  const int64_t assignments = int64_t{rows} * args.top_k;
  if (bank.experts > kMaxListedExperts) return false;
  const int64_t places = assignments * int64_t{p.ups.divisor + p.downs.divisor};
  if (places + device.multiprocessors > 0xFFFF) return false;
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
