// The routed experts on SM121: gate/up with the fused activation, and down. Work list and combine are those
// of kernels/cuda.
//
// An item's rows are the columns of the block-scaled instruction, so one instruction does 16 weight rows, 32
// columns and all rows of the item, scales included; weights cost three logic operations a word. Warps of a
// gate/up block share the columns out among them (the shards of the sum); a warp of the down projection does
// 32 output channels of an item alone. GB10 reads 5 KB per multiprocessor in the time of one access to its
// memory, so short rings are enough, and small blocks leave room for a second one to cover the barriers.
#include "engine/kernels/cuda/experts_parts.cuh"
#include "engine/kernels/cuda/sm121/fp4_stage.cuh"
#include "engine/kernels/cuda/sm121/fp4_step.cuh"
#include "engine/kernels/cuda/sm121/launch.h"

namespace spark::engine::cuda::sm121 {
namespace {

static_assert(kExpertRows <= 8, "an item's rows are columns of the matrix instruction");

// ---- a place of a ring: one 64-column stage of the weights, the rows' codes for it and their scales
// --------

template <int kMatrices>
struct Place {
  static constexpr int kTiles = 2 * kMatrices;
  static constexpr int kWeightBytes = fp4_stage_bytes(kMatrices);
  static constexpr int kScalesAt = kTiles * kTileBytes;                     // of the weights
  static constexpr int kCodesAt = kWeightBytes;                             // [row][64]
  static constexpr int kXScalesAt = kCodesAt + kExpertRows * kFp4TileCols;  // [row][4]: two are used
  static constexpr int kBytes = static_cast<int>(round_up(kXScalesAt + kExpertRows * 4, 16));
};

// Copies the rows' codes of 64 columns and the word of their scales. `codes` and `scales` are those of the
// lane's row (lane / 8 of the item's; eight lanes carry eight codes each), which may be absent.
template <int kMatrices>
__device__ __forceinline__ void fetch_rows(uint8_t* place, const uint8_t* codes, int columns_left,
                                           const uint8_t* scales, bool present) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int row = lane >> 3, piece = (lane & 7) * 8;
  static_assert(kExpertRows <= 4, "eight lanes a row");
  const bool mine = row < kExpertRows;
  const bool valid = present && piece < columns_left;
  copy_async_8_if(mine, place + Place<kMatrices>::kCodesAt + row * kFp4TileCols + piece,
                  valid ? codes + piece : codes, valid);
  copy_async_4_if(mine && piece == 0 && present, place + Place<kMatrices>::kXScalesAt + row * 4, scales);
}

template <int kMatrices>
__device__ __forceinline__ void multiply_place(float (&sum)[Place<kMatrices>::kTiles][4], const uint8_t* at,
                                               int odd_stage) {
  using P = Place<kMatrices>;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int g = lane >> 2, t = lane & 3;
  uint2 x0 = make_uint2(0, 0), x1 = make_uint2(0, 0);
  uint32_t x_scales = 0;
  if (g < kExpertRows) {
    const uint8_t* codes = at + P::kCodesAt + g * kFp4TileCols + t * 8;
    x0 = *reinterpret_cast<const uint2*>(codes);
    x1 = *reinterpret_cast<const uint2*>(codes + 32);
    x_scales = *reinterpret_cast<const uint32_t*>(at + P::kXScalesAt + g * 4) >> (16 * odd_stage);
  }
#pragma unroll
  for (int i = 0; i < P::kTiles; ++i) {
    const uint4 w = reinterpret_cast<const uint4*>(at + i * kTileBytes)[lane];
    const uint32_t w_scales = *reinterpret_cast<const uint16_t*>(at + P::kScalesAt + i * kFp4ScaleTileBytes +
                                                                 fp4_lane_scales(lane));
    fp4_tile_step(sum[i], w, w_scales, x0, x1, x_scales);
  }
}

// ---- gate and up
// -------------------------------------------------------------------------------------------

constexpr int kUpWarps = kUpShards;
constexpr int kUpThreads = 32 * kUpWarps;
constexpr int kUpPlaces = 2;
constexpr int kUpRingBytes = kUpPlaces * Place<2>::kBytes;
constexpr size_t kUpSharedBytes = kUpWarps * kUpRingBytes + sizeof(float) * 2 * kUpWarps * kExpertRows * 64;
static_assert(2 * (kUpSharedBytes + 1024) <= kMaxSharedBytes, "two blocks share a multiprocessor");

struct GateUpParams {
  const uint8_t* stages;
  size_t expert_bytes;
  const uint8_t* x_codes;  // of the launch's first row
  int hidden;
  int steps;          // 64-column stages of hidden
  int column_blocks;  // of the width
  int codes_stride;
  float limit;
  ExpertWorkspace work;
};

// Joins the shards of one row's 32 gate and 32 up columns, applies the activation and leaves the codes.
__device__ __forceinline__ void finish_columns(const GateUpParams& p, const float* sums, int m,
                                               const ExpertItem& item, float weight, int column_block) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  float a = 0.0f, b = 0.0f;
#pragma unroll
  for (int shard = 0; shard < kUpWarps; ++shard) {
    a += sums[(shard * kExpertRows + m) * 64 + lane];
    b += sums[(shard * kExpertRows + m) * 64 + 32 + lane];
  }
  store_expert_code(p.work, expert_code(a, b, weight, p.limit), item.first + m, p.codes_stride, column_block,
                    p.column_blocks);
}

// A unit of work is an item's 32 columns: two row tiles of gate, two of up. Every block has an equal run of
// units, whose weights follow each other through the rings without a pause.
__global__ void __launch_bounds__(kUpThreads, 2) gate_up_kernel(const __grid_constant__ GateUpParams p) {
  SPARK_DYNAMIC_SHARED(uint8_t, shared);  // rings, partial sums [2][warp][row][matrix, column]
  wait_for_inputs();                      // the work list decides which weights to read
  launch_dependents();
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int g = lane >> 2, t = lane & 3;
  const int64_t units = static_cast<int64_t>(*p.work.item_count) * p.column_blocks;
  const int first_unit = static_cast<int>(blockIdx.x * units / gridDim.x);
  const int last_unit = static_cast<int>((blockIdx.x + 1) * units / gridDim.x);
  if (first_unit >= last_unit) return;

  const int shard_steps = (p.steps + kUpWarps - 1) / kUpWarps;
  const int s0 = min(warp * shard_steps, p.steps);
  const int s1 = min(s0 + shard_steps, p.steps);
  const int scale_words = (p.hidden / 32 + 3) / 4;
  uint8_t* const ring = shared + warp * kUpRingBytes;
  float* const partial = reinterpret_cast<float*>(shared + kUpWarps * kUpRingBytes);

  int fetch_unit = s0 < s1 ? first_unit : last_unit;
  int fetch_step = s0;
  const uint8_t* weights = nullptr;  // of column step 0
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
  bool present = false;
  const auto aim = [&] {
    const int item = fetch_unit / p.column_blocks;
    const int column = fetch_unit - item * p.column_blocks;
    const int slot = lane >> 3;
    const int row = slot < kExpertRows ? p.work.item_row[item * kExpertRows + slot] : -1;
    weights = p.stages + static_cast<size_t>(p.work.items[item].expert) * p.expert_bytes +
              static_cast<size_t>(column) * p.steps * Place<2>::kWeightBytes;
    present = row >= 0;
    codes = p.x_codes + static_cast<size_t>(max(row, 0)) * p.hidden;
    scales =
        reinterpret_cast<const uint8_t*>(p.work.x_scales + static_cast<size_t>(max(row, 0)) * scale_words);
  };
  const auto fetch_next = [&](uint8_t* place) {
    if (fetch_unit < last_unit) {
      if (fetch_step == s0) aim();
      copy_fp4_stage<2>(place, weights + static_cast<size_t>(fetch_step) * Place<2>::kWeightBytes);
      fetch_rows<2>(place, codes + fetch_step * kFp4TileCols, p.hidden - fetch_step * kFp4TileCols,
                    scales + (fetch_step >> 1) * 4, present);
      if (++fetch_step == s1) fetch_step = s0, ++fetch_unit;
    }
    copy_async_commit();
  };
#pragma unroll
  for (int i = 0; i < kUpPlaces - 1; ++i) fetch_next(ring + i * Place<2>::kBytes);

  int place = 0;
  int turn = warp;  // the row of the unit that this warp finishes; the work goes round
  for (int unit = first_unit; unit < last_unit; ++unit) {
    const int item_index = unit / p.column_blocks;
    const ExpertItem item = p.work.items[item_index];
    const int m = turn;
    turn = turn < kExpertRows ? turn + kUpWarps - kExpertRows : turn - kExpertRows;
    float sum[4][4] = {};
    for (int s = s0; s < s1; ++s) {
      copy_async_wait<kUpPlaces - 2>();
      __syncwarp();  // other lanes copied some of it; and all have read the place that is filled next
      fetch_next(ring + (place == 0 ? kUpPlaces - 1 : place - 1) * Place<2>::kBytes);
      multiply_place<2>(sum, ring + place * Place<2>::kBytes, s & 1);
      if (++place == kUpPlaces) place = 0;
    }
    // Two halves take turns: who writes one again has passed the barrier that its readers reached later.
    float* half = partial + (unit & 1) * (kUpWarps * kExpertRows * 64);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const int row = 2 * t + (q & 1);
        if (row < kExpertRows) half[(warp * kExpertRows + row) * 64 + i * 16 + (q >> 1) * 8 + g] = sum[i][q];
      }
    }
    __syncthreads();
    if (m < item.count) {
      finish_columns(p, half, m, item, p.work.item_weight[item_index * kExpertRows + m],
                     unit - item_index * p.column_blocks);
    }
  }
}

// ---- down
// --------------------------------------------------------------------------------------------------

constexpr int kDownWarps = 8;
constexpr int kDownPlaces = 3;
constexpr int kDownRingBytes = kDownPlaces * Place<1>::kBytes;
static_assert(3 * (kDownWarps * kDownRingBytes + 1024) <= kMaxSharedBytes,
              "three blocks on a multiprocessor");

struct DownParams {
  const uint8_t* stages;
  size_t expert_bytes;
  int hidden;
  int width;
  int steps;  // 64-column stages of the width
  int channel_groups;
  int codes_stride;
  ExpertWorkspace work;
};

// A unit of work is an item and 32 output channels; a warp does it alone.
__global__ void __launch_bounds__(32 * kDownWarps, 3) down_kernel(const __grid_constant__ DownParams p) {
  SPARK_DYNAMIC_SHARED(uint8_t, shared);  // rings
  launch_dependents();
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int g = lane >> 2, t = lane & 3;
  // The work list was complete before this kernel could start (gate_up_kernel waits before it lets it go):
  // weights may travel.
  const int items = load_shared_by_blocks(p.work.item_count);
  const int64_t units = static_cast<int64_t>(items) * p.channel_groups;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kDownWarps;
  const int64_t me = static_cast<int64_t>(blockIdx.x) * kDownWarps + warp;
  const int first_unit = static_cast<int>(me * units / warps);
  const int last_unit = static_cast<int>((me + 1) * units / warps);
  if (first_unit >= last_unit) {
    wait_for_inputs();
    return;
  }
  uint8_t* const ring = shared + warp * kDownRingBytes;
  const auto item_of = [&](int unit) {
    return load_shared_by_blocks(reinterpret_cast<const int4*>(p.work.items) + unit / p.channel_groups);
  };

  int fetch_unit = first_unit, fetch_step = 0;
  const uint8_t* weights = nullptr;  // of column step 0
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
  bool present = false;
  const auto aim = [&] {
    const int4 item = item_of(fetch_unit);
    weights = p.stages + static_cast<size_t>(item.x) * p.expert_bytes +
              static_cast<size_t>(fetch_unit % p.channel_groups) * p.steps * Place<1>::kWeightBytes;
    present = (lane >> 3) < item.z;
    const size_t position = static_cast<size_t>(item.y + (present ? lane >> 3 : 0));
    codes = p.work.codes + position * p.codes_stride;
    scales = p.work.scales + position * (p.codes_stride / 32);
  };
  const auto fetch_weights_at = [&](uint8_t* place, int step) {
    copy_fp4_stage<1>(place, weights + static_cast<size_t>(step) * Place<1>::kWeightBytes);
  };
  const auto fetch_rows_at = [&](uint8_t* place, int step) {
    fetch_rows<1>(place, codes + step * kFp4TileCols, p.width - step * kFp4TileCols, scales + (step >> 1) * 4,
                  present);
  };
  const auto advance = [&] {
    if (++fetch_step == p.steps) fetch_step = 0, ++fetch_unit;
  };
  // Weights of the first places travel while gate and up finish; the rows come after that.
  aim();
  const int early = min(kDownPlaces - 1, p.steps);
  for (int i = 0; i < early; ++i) fetch_weights_at(ring + i * Place<1>::kBytes, i);
  wait_for_inputs();
  const auto fetch_next = [&](uint8_t* place, bool weights_there) {
    if (fetch_unit < last_unit) {
      if (fetch_step == 0) aim();
      if (!weights_there) fetch_weights_at(place, fetch_step);
      fetch_rows_at(place, fetch_step);
      advance();
    }
    copy_async_commit();
  };
#pragma unroll
  for (int i = 0; i < kDownPlaces - 1; ++i) fetch_next(ring + i * Place<1>::kBytes, i < early);

  int place = 0;
  for (int unit = first_unit; unit < last_unit; ++unit) {
    const int4 item = item_of(unit);
    float sum[2][4] = {};
    for (int s = 0; s < p.steps; ++s) {
      copy_async_wait<kDownPlaces - 2>();
      __syncwarp();
      fetch_next(ring + (place == 0 ? kDownPlaces - 1 : place - 1) * Place<1>::kBytes, false);
      multiply_place<1>(sum, ring + place * Place<1>::kBytes, s & 1);
      if (++place == kDownPlaces) place = 0;
    }
    const int64_t channel0 = static_cast<int64_t>(unit % p.channel_groups) * kDownChannels + g;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int row = 2 * t + (q & 1);
      if (row >= item.z) continue;
      const int64_t at = static_cast<int64_t>(p.work.destination[item.y + row]) * p.hidden;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int64_t channel = channel0 + i * 16 + (q >> 1) * 8;
        if (channel < p.hidden) p.work.outputs[at + channel] = float_to_bf16(sum[i][q]);
      }
    }
  }
}

unsigned blocks_for(int64_t units, int64_t most) {
  return static_cast<unsigned>(std::min(units, most));
}

}  // namespace

void launch_expert_gate_up(const Launch& on, const ExpertsArgs& args, int first_row, int rows,
                           const PreparedExperts& bank, const ExpertWorkspace& work) {
  GateUpParams p = {};
  p.stages = bank.gate_up;
  p.expert_bytes = static_cast<size_t>(2 * prepared_bytes(Layout::kFp4, bank.width, bank.hidden));
  p.x_codes = args.x_q.codes + static_cast<int64_t>(first_row) * args.hidden;
  p.hidden = static_cast<int>(bank.hidden);
  p.steps = static_cast<int>(ceil_div(bank.hidden, kFp4TileCols));
  p.column_blocks = static_cast<int>(bank.width / 32);
  p.codes_stride = static_cast<int>(expert_codes_stride(bank.width));
  p.limit = args.limit;
  p.work = work;
  const unsigned blocks =
      blocks_for(int64_t{rows} * args.top_k * p.column_blocks, 2 * int64_t{on.device.multiprocessors});
  launch_kernel(on, gate_up_kernel, dim3(blocks), kUpThreads, kUpSharedBytes, 1, p);
}

void launch_expert_down(const Launch& on, const ExpertsArgs& args, int first_row, int rows,
                        const PreparedExperts& bank, const ExpertWorkspace& work, const uint16_t* shared) {
  DownParams p = {};
  p.stages = bank.down;
  p.expert_bytes = static_cast<size_t>(prepared_bytes(Layout::kFp4, bank.hidden, bank.width));
  p.hidden = static_cast<int>(bank.hidden);
  p.width = static_cast<int>(bank.width);
  p.steps = static_cast<int>(ceil_div(bank.width, kFp4TileCols));
  p.channel_groups = static_cast<int>(ceil_div(bank.hidden, kDownChannels));
  p.codes_stride = static_cast<int>(expert_codes_stride(bank.width));
  p.work = work;
  const unsigned blocks = blocks_for(ceil_div(int64_t{rows} * args.top_k * p.channel_groups, kDownWarps),
                                     3 * int64_t{on.device.multiprocessors});
  launch_kernel(on, down_kernel, dim3(blocks), 32 * kDownWarps, kDownWarps * kDownRingBytes, 1, p);
  launch_expert_combine(on, args, first_row, rows, work, shared);
}

}  // namespace spark::engine::cuda::sm121
