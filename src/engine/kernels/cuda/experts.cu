// The routed experts as two launches, gate/up with the fused activation and down with the fixed-order
// combine, for devices or shapes that the streaming kernel (experts_stream.cu) has no room for.
//
// Gate and up of 32 columns meet in one block, which applies the clamps, the routing weight and the quantiser
// and leaves codes for the down projection. Both kernels are persistent: as many blocks as multiprocessors
// hold, each with an equal run of units of work. The order of assignments inside an item changes nothing:
// columns of the matrix instruction are independent.
#include "engine/kernels/cuda/experts_parts.cuh"
#include "engine/kernels/cuda/fp4_step.cuh"
#include "engine/kernels/cuda/launch.h"

namespace spark::engine::cuda {
namespace {

// ---- gate and up ---------------------------------------------------------------------------------------

// A unit of work is an item's 32 columns: two row tiles of gate, two of up. The warps of a block share the
// columns of the weights out among them (the shards of the sum) and walk over the block's units without ever
// letting their rings run dry: while a unit's sums are joined, the next unit's weights travel.

struct GateUpParams {
  const uint8_t* stages;
  size_t expert_bytes;
  const uint8_t* x_codes;  // of the launch's first row
  int hidden;
  int double_blocks;  // of hidden
  int column_blocks;  // of the width
  int codes_stride;
  float limit;
  ExpertWorkspace work;
};

// A place of a ring: two 64-column stages of the weights, which lie side by side, the rows' codes for them (a
// lane's eight bytes each) and their scales.
template <int kMatrices>
struct ExpertPlace {
  static constexpr int kStageBytes = fp4_stage_bytes(kMatrices);
  static constexpr int kScalesAt = kMatrices * 2 * kTileBytes;  // in a stage
  static constexpr int kWeightBytes = 2 * kStageBytes;
  static constexpr int kCodesAt = kWeightBytes;
  static constexpr int kXScalesAt = kCodesAt + 256;
  static constexpr int kBytes = kXScalesAt + 16;
};

// Starts the copy of a place's weights; beyond `bytes` there are none and zeros are written (kWhole: all are
// there).
template <int kMatrices, bool kWhole>
__device__ __forceinline__ void fetch_expert_weights(uint8_t* place, const uint8_t* from, int bytes) {
  constexpr int kPieces = ExpertPlace<kMatrices>::kWeightBytes / 16;
  const int lane = static_cast<int>(threadIdx.x & 31);
#pragma unroll
  for (int i = 0; i < kPieces / 32; ++i) {
    const bool valid = kWhole || i * 512 + lane * 16 < bytes;
    copy_async_16(place + i * 512 + lane * 16, valid ? from + i * 512 : from, valid);
  }
  constexpr int kRest = kPieces % 32;
  constexpr int kRestAt = kPieces / 32 * 512;
  const bool valid = kWhole || kRestAt + lane * 16 < bytes;
  copy_async_16_if(lane < kRest, place + kRestAt + lane * 16, valid ? from + kRestAt : from, valid);
}

// Multiplies a place into the tiles' sums.
template <int kMatrices>
__device__ __forceinline__ void multiply_expert_place(float (&sum)[kMatrices * 2][2], const uint8_t* at,
                                                      const uint32_t (&mine)[4]) {
  using Place = ExpertPlace<kMatrices>;
  constexpr int kTiles = kMatrices * 2;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int g = lane >> 2, t = lane & 3;
  uint32_t v[4];
  fp4_stage_activations(reinterpret_cast<const uint2*>(at + Place::kCodesAt)[lane], v);
  const uint32_t word = reinterpret_cast<const uint32_t*>(at + Place::kXScalesAt)[t >> 1] >> (16 * (t & 1));
  const float x0 = fabsf(__uint_as_float(word << 23));
  const float x1 = __uint_as_float((word << 15) & 0x7F800000u);
  float d[kTiles][4] = {};
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    uint32_t b[2][4];
#pragma unroll
    for (int block = 0; block < 2; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) b[block][i] = v[i] * mine[step * 2 + block];
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const uint4 w =
          *reinterpret_cast<const uint4*>(at + step * Place::kStageBytes + i * kTileBytes + lane * 16);
      fp4_block_step(d[i], w.x, w.y, b[0]);
      fp4_block_step(d[i], w.z, w.w, b[1]);
    }
  }
  const uint32_t* scales =
      reinterpret_cast<const uint32_t*>(at + (t & 1) * Place::kStageBytes + Place::kScalesAt) + g;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) fp4_stage_sum(sum[i], d[i], scales[i * (kFp4ScaleTileBytes / 4)], x0, x1);
}

// Which of a stage's four blocks is this lane's column.
__device__ __forceinline__ void own_block(uint32_t (&mine)[4]) {
  const int g = static_cast<int>(threadIdx.x & 31) >> 2;
#pragma unroll
  for (int b = 0; b < 4; ++b) mine[b] = (g & 3) == b ? 1u : 0u;
}

template <int kUpWarps, int kPlaces>
struct GateUpShape {
  static constexpr int kThreads = 32 * kUpWarps;
  static constexpr int kRingBytes = kPlaces * ExpertPlace<2>::kBytes;
  static constexpr size_t kSharedBytes =
      static_cast<size_t>(kUpWarps * kRingBytes) + sizeof(float) * 2 * kUpWarps * kExpertRows * 64;
};

template <int kUpWarps, int kPlaces, bool kWhole>
__global__ void __launch_bounds__(32 * kUpWarps, 1) gate_up_kernel(const __grid_constant__ GateUpParams p) {
  using Shape = GateUpShape<kUpWarps, kPlaces>;
  using Place = ExpertPlace<2>;
  SPARK_DYNAMIC_SHARED(uint8_t, shared);  // rings, partial sums [2][warp][row][matrix, column]
  wait_for_inputs();                      // the work list decides which weights to read
  launch_dependents();                    // and whoever comes next may read that list at once
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int g = lane >> 2, t = lane & 3;
  const int64_t units = static_cast<int64_t>(*p.work.item_count) * p.column_blocks;
  const int first_unit = static_cast<int>(blockIdx.x * units / gridDim.x);
  const int last_unit = static_cast<int>((blockIdx.x + 1) * units / gridDim.x);
  if (first_unit >= last_unit) return;

  const int steps = (p.double_blocks + 1) / 2;  // places that a unit takes
  const int shard_steps = (steps + kUpWarps - 1) / kUpWarps;
  const int s0 = min(warp * shard_steps, steps);
  const int s1 = min(s0 + shard_steps, steps);
  const int blocks = p.hidden / 32;
  uint8_t* const ring = shared + warp * Shape::kRingBytes;
  uint8_t* const ring_end = ring + Shape::kRingBytes;
  float* partial = reinterpret_cast<float*>(shared + kUpWarps * Shape::kRingBytes);

  // ---- fetching. What a unit needs to know is read one unit ahead.
  int fetch_unit = s0 < s1 ? first_unit : last_unit;
  int fetch_step = s0;
  int fetch_item = first_unit / p.column_blocks;
  int fetch_column = first_unit - fetch_item * p.column_blocks;
  int next_expert = p.work.items[fetch_item].expert;
  int next_row = p.work.item_row[fetch_item * kExpertRows + (g >> 2)];
  const uint8_t* weights = nullptr;  // of column step 0
  const uint8_t* x = nullptr;
  const uint32_t* x_scales = nullptr;
  bool row_valid = false;
  const auto aim = [&] {
    weights = p.stages + static_cast<size_t>(next_expert) * p.expert_bytes +
              static_cast<size_t>(fetch_column) * p.double_blocks * Place::kStageBytes + lane * 16;
    row_valid = next_row >= 0;
    x = p.x_codes + static_cast<size_t>(max(next_row, 0)) * p.hidden + (g & 3) * 32 + t * 8;
    x_scales = p.work.x_scales + static_cast<size_t>(max(next_row, 0)) * steps;
    if (++fetch_column == p.column_blocks) fetch_column = 0, ++fetch_item;
    if (fetch_unit + 1 < last_unit) {
      next_expert = p.work.items[fetch_item].expert;
      next_row = p.work.item_row[fetch_item * kExpertRows + (g >> 2)];
    }
  };
  aim();
  const auto fetch_next = [&](uint8_t* place) {
    if (fetch_unit < last_unit) {
      const uint64_t s = static_cast<uint32_t>(fetch_step);
      fetch_expert_weights<2, kWhole>(place, weights + s * Place::kWeightBytes,
                                      (p.double_blocks - 2 * fetch_step) * Place::kStageBytes);
      const bool valid = row_valid && (kWhole || fetch_step * 4 + (g & 3) < blocks);
      copy_async_8(place + Place::kCodesAt + lane * 8, valid ? x + s * 128 : p.x_codes, valid);
      copy_async_4_if(row_valid && (lane & 15) == 0, place + Place::kXScalesAt + (lane >> 4) * 4,
                      x_scales + s);
      if (++fetch_step == s1) {
        fetch_step = s0;
        if (++fetch_unit < last_unit) aim();
      }
    }
    copy_async_commit();
  };
  for (int i = 0; i < kPlaces - 1; ++i) fetch_next(ring + i * Place::kBytes);

  // ---- computing
  uint32_t mine[4];
  own_block(mine);
  uint8_t* at = ring;
  uint8_t* used = ring_end - Place::kBytes;  // the place that was read last
  int item_index = first_unit / p.column_blocks;
  int column_block = first_unit - item_index * p.column_blocks;
  int turn = warp;  // the row of the unit that this warp finishes; the work goes round
  ExpertItem next_item = p.work.items[item_index];
  float next_weight = turn < kExpertRows ? p.work.item_weight[item_index * kExpertRows + turn] : 0.0f;
  for (int unit = first_unit; unit < last_unit; ++unit) {
    const ExpertItem item = next_item;
    const float weight = next_weight;
    const int column_of_unit = column_block;
    const int m = turn;
    turn = turn < kExpertRows ? turn + kUpWarps - kExpertRows : turn - kExpertRows;
    if (++column_block == p.column_blocks) column_block = 0, ++item_index;
    if (unit + 1 < last_unit) {
      next_item = p.work.items[item_index];
      if (turn < kExpertRows) next_weight = p.work.item_weight[item_index * kExpertRows + turn];
    }
    float sum[4][2] = {};
    for (int s = s0; s < s1; ++s) {
      copy_async_wait<kPlaces - 2>();
      __syncwarp();  // some of it was copied by other lanes; and all have read the place that is filled next
      fetch_next(used);
      multiply_expert_place<2>(sum, at, mine);
      used = at;
      at += Place::kBytes;
      if (at == ring_end) at = ring;
    }
    // Two halves take turns: who writes one again has passed the barrier that its readers reached later.
    float* half = partial + (unit & 1) * (kUpWarps * kExpertRows * 64);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float v = sum[i][h] + __shfl_xor_sync(~0u, sum[i][h], 1);
        if ((t & 1) == 0) half[(warp * kExpertRows + (t >> 1)) * 64 + i * 16 + h * 8 + g] = v;
      }
    }
    __syncthreads();
    if (m >= item.count) continue;
    float a = 0.0f, b = 0.0f;
#pragma unroll
    for (int shard = 0; shard < kUpWarps; ++shard) {
      a += half[(shard * kExpertRows + m) * 64 + lane];
      b += half[(shard * kExpertRows + m) * 64 + 32 + lane];
    }
    const ExpertCode code = expert_code(a * kFp4EmbedScale, b * kFp4EmbedScale, weight, p.limit);
    store_expert_code(p.work, code, item.first + m, p.codes_stride, column_of_unit, p.column_blocks);
  }
}

// ---- down and combine ----------------------------------------------------------------------------------

// A unit of work is an item and 32 output channels; a warp does it alone. The warp that finishes the last
// item of its channels adds up the rows' experts in ascending order.

struct DownParams {
  const uint8_t* stages;
  size_t expert_bytes;
  const int32_t* sequence;
  const uint16_t* shared_expert;
  uint16_t* y;
  int rows;
  int hidden;
  int top_k;
  int blocks;  // of the width
  int double_blocks;
  int channel_groups;
  int codes_stride;
  ExpertWorkspace work;
};

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kDownPlaces = 3;
constexpr int kDownRingBytes = ExpertPlace<1>::kBytes * kDownPlaces;

// Adds the rows' expert outputs of 32 channels and the shared expert's: a lane takes four channels of every
// fourth row.
__device__ __forceinline__ void combine_channels(const DownParams& p, int group) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int64_t channel = static_cast<int64_t>(group) * kDownChannels + (lane & 7) * 4;
  if (channel >= p.hidden) return;
  for (int row = lane >> 3; row < p.rows; row += 4) {
    if (p.sequence[row] >= 0)
      add_experts(p.work.outputs, p.shared_expert, row, channel, p.hidden, p.top_k, p.y);
  }
}

__global__ void __launch_bounds__(kThreads, 3) down_kernel(const __grid_constant__ DownParams p) {
  SPARK_DYNAMIC_SHARED(uint8_t, shared);  // rings
  launch_dependents();
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int g = lane >> 2, t = lane & 3;
  // The work list was complete before this kernel could start (see gate_up_kernel): weights may travel.
  const int items = load_shared_by_blocks(p.work.item_count);
  const int64_t units = static_cast<int64_t>(items) * p.channel_groups;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kWarps;
  const int64_t me = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  const int first_unit = static_cast<int>(me * units / warps);
  const int last_unit = static_cast<int>((me + 1) * units / warps);
  if (first_unit >= last_unit) {
    wait_for_inputs();
    return;
  }
  uint8_t* ring = shared + warp * kDownRingBytes;
  const auto item_at = [&](int i) {
    return i < items ? load_shared_by_blocks(reinterpret_cast<const int4*>(p.work.items) + i) : int4{};
  };

  // ---- fetching: weights of the first places, then, when the activations exist, those too.
  using Place = ExpertPlace<1>;
  const int steps = (p.double_blocks + 1) / 2;
  const int blocks = p.blocks;
  uint8_t* const ring_end = ring + kDownRingBytes;
  int fetch_unit = first_unit, fetch_step = 0;
  int fetch_item = first_unit / p.channel_groups;
  int fetch_group = first_unit - fetch_item * p.channel_groups;
  int4 next_item = item_at(fetch_item);
  const uint8_t* weights = nullptr;  // of column step 0
  const uint8_t* codes = nullptr;
  const uint8_t* x_scales = nullptr;
  bool row_valid = false;
  const auto aim = [&] {
    weights = p.stages + static_cast<size_t>(next_item.x) * p.expert_bytes +
              static_cast<size_t>(fetch_group) * p.double_blocks * Place::kStageBytes + lane * 16;
    row_valid = (g >> 2) < next_item.z;
    const size_t position = static_cast<size_t>(next_item.y + (row_valid ? g >> 2 : 0));
    codes = p.work.codes + position * p.codes_stride + (g & 3) * 32 + t * 8;
    x_scales = p.work.scales + position * (p.codes_stride / 32);
    if (++fetch_group == p.channel_groups) fetch_group = 0, next_item = item_at(++fetch_item);
  };
  const auto fetch_weights = [&](uint8_t* place, int step) {
    fetch_expert_weights<1, false>(
        place, weights + static_cast<uint64_t>(static_cast<uint32_t>(step)) * Place::kWeightBytes,
        (p.double_blocks - 2 * step) * Place::kStageBytes);
  };
  const auto fetch_activations = [&](uint8_t* place) {
    const uint64_t s = static_cast<uint32_t>(fetch_step);
    const bool valid = row_valid && fetch_step * 4 + (g & 3) < blocks;
    copy_async_8(place + Place::kCodesAt + lane * 8, valid ? codes + s * 128 : p.work.codes, valid);
    copy_async_4_if(row_valid && (lane & 15) == 0, place + Place::kXScalesAt + (lane >> 4) * 4,
                    x_scales + s * 4);
  };
  const auto advance = [&] {
    if (++fetch_step == steps) {
      fetch_step = 0;
      if (++fetch_unit < last_unit) aim();
    }
  };
  aim();
  const int early = min(kDownPlaces - 1, steps);
  for (int i = 0; i < early; ++i) fetch_weights(ring + i * Place::kBytes, i);
  wait_for_inputs();
  for (int i = 0; i < kDownPlaces - 1; ++i) {
    if (fetch_unit < last_unit) {
      uint8_t* place = ring + i * Place::kBytes;
      if (i >= early) fetch_weights(place, fetch_step);
      fetch_activations(place);
      advance();
    }
    copy_async_commit();
  }

  // ---- computing
  uint32_t mine[4];
  own_block(mine);
  uint8_t* at = ring;
  uint8_t* used = ring_end - Place::kBytes;  // the place that was read last
  int item_index = first_unit / p.channel_groups;
  int group = first_unit - item_index * p.channel_groups;
  int4 item = item_at(item_index);
  for (int unit = first_unit; unit < last_unit; ++unit) {
    const int destination = (t >> 1) < item.z ? p.work.destination[item.y + (t >> 1)] : -1;
    float sum[2][2] = {};
    for (int s = 0; s < steps; ++s) {
      copy_async_wait<kDownPlaces - 2>();
      __syncwarp();  // some of it was copied by other lanes; and all have read the place that is filled next
      if (fetch_unit < last_unit) {
        fetch_weights(used, fetch_step);
        fetch_activations(used);
        advance();
      }
      copy_async_commit();
      multiply_expert_place<1>(sum, at, mine);
      used = at;
      at += Place::kBytes;
      if (at == ring_end) at = ring;
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
    __syncwarp();
    uint32_t arrived = 0;
    if (lane == 0) arrived = arrive(p.work.arrivals + group);
    if (__shfl_sync(~0u, arrived, 0) == static_cast<uint32_t>(items - 1)) {
      combine_channels(p, group);
      if (lane == 0) p.work.arrivals[group] = 0;
    }
    if (++group == p.channel_groups) group = 0, item = item_at(++item_index);
  }
}

}  // namespace

void launch_expert_gate_up(const Launch& on, const ExpertsArgs& args, int first_row, int rows,
                           const PreparedExperts& bank, const ExpertWorkspace& work) {
  GateUpParams p = {};
  p.stages = bank.gate_up;
  p.expert_bytes = static_cast<size_t>(2 * prepared_bytes(Layout::kFp4, bank.width, bank.hidden));
  p.x_codes = args.x_q.codes + static_cast<int64_t>(first_row) * args.hidden;
  p.hidden = static_cast<int>(bank.hidden);
  p.double_blocks = static_cast<int>(ceil_div(bank.hidden, kFp4TileCols));
  p.column_blocks = static_cast<int>(bank.width / 32);
  p.codes_stride = static_cast<int>(expert_codes_stride(bank.width));
  p.limit = args.limit;
  p.work = work;
  const int64_t most =
      std::min<int64_t>(int64_t{rows} * args.top_k * p.column_blocks, on.device.multiprocessors);
  const auto with = [&](auto shape, auto kernel) {
    launch_kernel(on, kernel, dim3(static_cast<unsigned>(most)), decltype(shape)::kThreads,
                  decltype(shape)::kSharedBytes, 1, p);
  };
  // Ten warps share the real width's forty places evenly. An H200 has room for this and for two blocks of the
  // down projection beside it; GB10 for less.
  if (GateUpShape<10, 3>::kSharedBytes < on.device.shared_bytes - 1024) {
    const bool whole = bank.hidden % 128 == 0;
    with(GateUpShape<10, 3>{}, whole ? gate_up_kernel<10, 3, true> : gate_up_kernel<10, 3, false>);
  } else {
    with(GateUpShape<8, 2>{}, gate_up_kernel<8, 2, false>);
  }
}

void launch_expert_down(const Launch& on, const ExpertsArgs& args, int first_row, int rows,
                        const PreparedExperts& bank, const ExpertWorkspace& work, const uint16_t* shared) {
  DownParams p = {};
  p.stages = bank.down;
  p.expert_bytes = static_cast<size_t>(prepared_bytes(Layout::kFp4, bank.hidden, bank.width));
  p.sequence = args.step.sequence + first_row;
  p.shared_expert = shared;
  p.y = args.y + static_cast<int64_t>(first_row) * args.hidden;
  p.rows = rows;
  p.hidden = static_cast<int>(bank.hidden);
  p.top_k = args.top_k;
  p.double_blocks = static_cast<int>(ceil_div(bank.width, kFp4TileCols));
  p.blocks = static_cast<int>(bank.width / 32);
  p.channel_groups = static_cast<int>(ceil_div(bank.hidden, kDownChannels));
  p.codes_stride = static_cast<int>(expert_codes_stride(bank.width));
  p.work = work;
  const int64_t most = ceil_div(int64_t{rows} * args.top_k * p.channel_groups, kWarps);
  launch_kernel(on, down_kernel,
                dim3(static_cast<unsigned>(std::min<int64_t>(most, 3 * on.device.multiprocessors))), kThreads,
                kWarps * kDownRingBytes, 1, p);
}

}  // namespace spark::engine::cuda
