// The routed experts of a prompt's rows on SM121: gate/up and down. Work list and combine are those of
// kernels/cuda.
//
// An item is up to 32 rows of one expert (prefill_plan_kernel): four times the eight columns of the
// block-scaled instruction, so a stage of weights is brought in and decoded once for all of them. GB10 reads
// 2.5 bytes a cycle and multiprocessor, and a stage takes a warp a few hundred cycles: what counts is that
// weights come from memory once. So the blocks work side by side on neighbouring units, and an expert of two
// items finds its weights in L2 the second time.
//
// The sums are those of the kernels for few rows (experts.cu), bit for bit: the same shards of the hidden
// dimension, a warp each, added in the same order; of the width one sum.
#include "engine/kernels/cuda/experts_parts.cuh"
#include "engine/kernels/cuda/sm121/fp4_stage.cuh"
#include "engine/kernels/cuda/sm121/fp4_step.cuh"
#include "engine/kernels/cuda/sm121/launch.h"

namespace spark::engine::cuda::sm121 {
namespace {

constexpr int kWarps = kUpShards;
constexpr int kThreads = 32 * kWarps;
constexpr int kEights = kPrefillItemRows / 8;
static_assert(kPrefillItemRows == 32, "a lane brings in a row's scales");
constexpr size_t kReserved = 1024;  // of a block's shared memory, by the system

// The rows' operands of 64 columns: eight codes of either 32-block, and two scales in the low bytes.
struct RowOperand {
  uint2 x0, x1;
  uint32_t scales;
};

// One stage of `kTiles` weight tiles with the first kCount eights of rows. No branch stands between the
// products, which wait for each other's results only.
template <int kTiles, int kCount, class Row>
__device__ __forceinline__ void multiply(float (&sum)[kTiles][kEights][4], const uint8_t* stage,
                                         const Row& row_operand) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  RowOperand row[kCount];
#pragma unroll
  for (int e = 0; e < kCount; ++e) row[e] = row_operand(e);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const uint4 w = reinterpret_cast<const uint4*>(stage + i * kTileBytes)[lane];
    const uint32_t w_scales = *reinterpret_cast<const uint16_t*>(
        stage + kTiles * kTileBytes + i * kFp4ScaleTileBytes + fp4_lane_scales(lane));
#pragma unroll
    for (int e = 0; e < kCount; ++e)
      fp4_tile_step(sum[i][e], w, w_scales, row[e].x0, row[e].x1, row[e].scales);
  }
}
template <int kTiles, class Row>
__device__ __forceinline__ void multiply_eights(int eights, float (&sum)[kTiles][kEights][4],
                                                const uint8_t* stage, const Row& row_operand) {
  switch (eights) {
    case 1:
      return multiply<kTiles, 1>(sum, stage, row_operand);
    case 2:
      return multiply<kTiles, 2>(sum, stage, row_operand);
    case 3:
      return multiply<kTiles, 3>(sum, stage, row_operand);
    default:
      return multiply<kTiles, 4>(sum, stage, row_operand);
  }
}

__device__ __forceinline__ int4 item_at(const PrefillExperts& work, int item) {
  return load_shared_by_blocks(reinterpret_cast<const int4*>(work.items) + item);
}

// ---- gate and up
// -------------------------------------------------------------------------------------------

// A place of a warp's ring: a stage of both matrices, the rows' codes for it, and a word of scales a row.
constexpr int kUpPlaces = 2;
constexpr int kCodesAt = fp4_stage_bytes(2);
constexpr int kScalesAt = kCodesAt + kPrefillItemRows * kFp4TileCols;
constexpr int kUpPlaceBytes = kScalesAt + kPrefillItemRows * 4;
constexpr int kUpRingBytes = kUpPlaces * kUpPlaceBytes;
static_assert(kUpPlaceBytes % 16 == 0);
// Partial sums of eight rows [warp][row][matrix, column]; four floats more a row, so that a warp's stores
// meet all banks.
constexpr int kPartialRow = 64 + 4;
constexpr size_t kUpSharedBytes = kWarps * kUpRingBytes + sizeof(float) * kWarps * 8 * kPartialRow;
static_assert(kUpSharedBytes + kReserved <= kMaxSharedBytes);

// Where the 16 bytes `part` of a row's 64 codes lie: rows whose numbers differ by two exchange their halves,
// so that a read by the lanes of four rows meets all banks.
__device__ __forceinline__ int code_place(int row, int part) {
  return row * kFp4TileCols + (((part >> 1) ^ (row >> 1)) & 1) * 32 + (part & 1) * 16;
}

struct GateUpParams {
  const uint8_t* stages;
  size_t expert_bytes;
  const uint8_t* x_codes;   // of the launch's first row
  const uint8_t* x_scales;  // likewise
  int hidden;
  int steps;          // 64-column stages of hidden
  int column_blocks;  // of the width
  int codes_stride;
  float limit;
  PrefillExperts work;
};

// A unit of work is an item's 32 columns: two row tiles of gate, two of up.
__global__ void __launch_bounds__(kThreads, 1)
    prefill_gate_up_kernel(const __grid_constant__ GateUpParams p) {
  SPARK_DYNAMIC_SHARED(uint8_t, shared);  // rings, partial sums
  wait_for_inputs();                      // the work list decides which weights to read
  launch_dependents();
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int g = lane >> 2, t = lane & 3;
  const int units = load_shared_by_blocks(p.work.item_count) * p.column_blocks;
  const int stride = static_cast<int>(gridDim.x);
  const int shard_steps = (p.steps + kWarps - 1) / kWarps;
  const int s0 = min(warp * shard_steps, p.steps);
  const int s1 = min(s0 + shard_steps, p.steps);
  uint8_t* const ring = shared + warp * kUpRingBytes;
  float* const partial = reinterpret_cast<float*>(shared + kWarps * kUpRingBytes);

  // What is fetched next. Rows beyond an item's last are its last one's again: nobody reads their sums.
  int fetch_unit = s0 < s1 ? static_cast<int>(blockIdx.x) : units;
  int fetch_step = s0;
  const uint8_t* weights = nullptr;  // of column step 0
  int codes[4] = {};                 // of the rows lane / 4 of each eight
  int scales = 0;                    // of row `lane`
  const auto aim = [&] {
    const int4 item = item_at(p.work, fetch_unit / p.column_blocks);
    const auto row_of = [&](int i) { return __ldcg(p.work.row + item.y + min(i, item.z - 1)); };
    weights = p.stages + static_cast<size_t>(item.x) * p.expert_bytes +
              static_cast<size_t>(fetch_unit % p.column_blocks) * p.steps * fp4_stage_bytes(2);
#pragma unroll
    for (int e = 0; e < kEights; ++e) codes[e] = row_of(e * 8 + g) * p.hidden + t * 16;
    scales = row_of(lane) * (p.hidden / 32);
  };
  const auto fetch_next = [&](uint8_t* place) {
    if (fetch_unit < units) {
      if (fetch_step == s0) aim();
      copy_fp4_stage<2>(place, weights + static_cast<size_t>(fetch_step) * fp4_stage_bytes(2));
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        copy_async_16(place + kCodesAt + code_place(e * 8 + g, t),
                      p.x_codes + codes[e] + fetch_step * kFp4TileCols);
      }
      copy_async_4(place + kScalesAt + lane * 4, p.x_scales + scales + (fetch_step >> 1) * 4);
      if (++fetch_step == s1) fetch_step = s0, fetch_unit += stride;
    }
    copy_async_commit();
  };
#pragma unroll
  for (int i = 0; i < kUpPlaces - 1; ++i) fetch_next(ring + i * kUpPlaceBytes);

  int place = 0;
  for (int unit = static_cast<int>(blockIdx.x); unit < units; unit += stride) {
    const int4 item = item_at(p.work, unit / p.column_blocks);
    const int column_block = unit % p.column_blocks;
    const int eights = (item.z + 7) / 8;
    float sum[4][kEights][4] = {};
    for (int s = s0; s < s1; ++s) {
      copy_async_wait<kUpPlaces - 2>();
      __syncwarp();  // other lanes copied some of it; and all have read the place that is filled next
      fetch_next(ring + (place == 0 ? kUpPlaces - 1 : place - 1) * kUpPlaceBytes);
      const uint8_t* at = ring + place * kUpPlaceBytes;
      multiply_eights(eights, sum, at, [&](int e) {
        const int row = e * 8 + g;
        const uint8_t* const own = at + kCodesAt + row * kFp4TileCols + t * 8;
        const int first = (row >> 1 & 1) * 32;
        return RowOperand{*reinterpret_cast<const uint2*>(own + first),
                          *reinterpret_cast<const uint2*>(own + (first ^ 32)),
                          *reinterpret_cast<const uint32_t*>(at + kScalesAt + row * 4) >> (16 * (s & 1))};
      });
      if (++place == kUpPlaces) place = 0;
    }
    // Eight rows after eight: a warp adds up the shards of one of them.
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      if (e >= eights) break;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int q = 0; q < 4; ++q)
          partial[(warp * 8 + 2 * t + (q & 1)) * kPartialRow + i * 16 + (q >> 1) * 8 + g] = sum[i][e][q];
      }
      __syncthreads();
      const int row = e * 8 + warp;
      if (row < item.z) {
        float a = 0.0f, b = 0.0f;
#pragma unroll
        for (int shard = 0; shard < kWarps; ++shard) {
          const float* const from = partial + (shard * 8 + warp) * kPartialRow;
          a += from[lane];
          b += from[32 + lane];
        }
        const int position = item.y + row;
        store_expert_code(p.work, expert_code(a, b, __ldcg(p.work.weight + position), p.limit), position,
                          p.codes_stride, column_block, p.column_blocks);
      }
      __syncthreads();  // the sums have been read
    }
  }
}

// ---- down
// --------------------------------------------------------------------------------------------------

constexpr int kDownPlaces = 2;
constexpr int kDownRingBytes = kDownPlaces * fp4_stage_bytes(1);

// An item's rows in shared memory: 32 bytes more each, so that the lanes of four rows meet all banks.
__host__ __device__ constexpr int down_row_bytes(int codes_stride) {
  return codes_stride + 32;
}
size_t down_shared_bytes(int codes_stride) {
  return static_cast<size_t>(kWarps * kDownRingBytes) +
         static_cast<size_t>(kPrefillItemRows * (down_row_bytes(codes_stride) + codes_stride / 32));
}

struct DownParams {
  const uint8_t* stages;
  size_t expert_bytes;
  int hidden;
  int width;
  int steps;  // 64-column stages of the width
  int channel_groups;
  int codes_stride;
  PrefillExperts work;
};

// A unit of work is an item and kWarps groups of 32 output channels, one for each warp.
__global__ void __launch_bounds__(kThreads) prefill_down_kernel(const __grid_constant__ DownParams p) {
  SPARK_DYNAMIC_SHARED(uint8_t, shared);  // rings, the item's codes, their scales
  launch_dependents();
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int g = lane >> 2, t = lane & 3;
  const int row_bytes = down_row_bytes(p.codes_stride), row_scales = p.codes_stride / 32;
  uint8_t* const ring = shared + warp * kDownRingBytes;
  uint8_t* const codes = shared + kWarps * kDownRingBytes;
  uint8_t* const scales = codes + kPrefillItemRows * row_bytes;
  // The work list was complete before this kernel could start (the one before waits before it lets it go):
  // weights may travel.
  const int item_units = (p.channel_groups + kWarps - 1) / kWarps;
  const int units = load_shared_by_blocks(p.work.item_count) * item_units;
  const int stride = static_cast<int>(gridDim.x);
  const auto group_of = [&](int unit) { return unit % item_units * kWarps + warp; };
  const auto next_of = [&](int unit) {  // the first from `unit` on in which this warp has channels
    while (unit < units && group_of(unit) >= p.channel_groups) unit += stride;
    return unit;
  };

  int fetch_unit = next_of(static_cast<int>(blockIdx.x)), fetch_step = 0;
  const uint8_t* weights = nullptr;  // of column step 0
  const auto fetch_next = [&](uint8_t* place) {
    if (fetch_unit < units) {
      if (fetch_step == 0) {
        weights = p.stages +
                  static_cast<size_t>(item_at(p.work, fetch_unit / item_units).x) * p.expert_bytes +
                  static_cast<size_t>(group_of(fetch_unit)) * p.steps * fp4_stage_bytes(1);
      }
      copy_fp4_stage<1>(place, weights + static_cast<size_t>(fetch_step) * fp4_stage_bytes(1));
      if (++fetch_step == p.steps) fetch_step = 0, fetch_unit = next_of(fetch_unit + stride);
    }
    copy_async_commit();
  };
#pragma unroll
  for (int i = 0; i < kDownPlaces - 1; ++i) fetch_next(ring + i * fp4_stage_bytes(1));
  wait_for_inputs();

  int place = 0;
  for (int unit = static_cast<int>(blockIdx.x); unit < units; unit += stride) {
    const int4 item = item_at(p.work, unit / item_units);
    __syncthreads();  // the unit before has been read
    // Codes behind the width are nobody's: zero, lest one of them is a NaN.
    const int pieces = p.codes_stride / 16;
    for (int i = static_cast<int>(threadIdx.x); i < item.z * pieces; i += kThreads) {
      const int row = i / pieces, at = (i - row * pieces) * 16;
      const int64_t position = item.y + row;
      const uint4* from = reinterpret_cast<const uint4*>(p.work.codes + position * p.codes_stride + at);
      *reinterpret_cast<uint4*>(codes + row * row_bytes + at) =
          at < p.width ? __ldcg(from) : make_uint4(0, 0, 0, 0);
    }
    for (int i = static_cast<int>(threadIdx.x); i < item.z * row_scales / 4; i += kThreads) {
      reinterpret_cast<uint32_t*>(scales)[i] =
          __ldcg(reinterpret_cast<const uint32_t*>(p.work.scales + int64_t{item.y} * row_scales) + i);
    }
    __syncthreads();
    const int group = group_of(unit);
    if (group >= p.channel_groups) continue;
    const int eights = (item.z + 7) / 8;
    float sum[2][kEights][4] = {};
    for (int s = 0; s < p.steps; ++s) {
      copy_async_wait<kDownPlaces - 2>();
      __syncwarp();
      fetch_next(ring + (place == 0 ? kDownPlaces - 1 : place - 1) * fp4_stage_bytes(1));
      multiply_eights(eights, sum, ring + place * fp4_stage_bytes(1), [&](int e) {
        const int row = min(e * 8 + g, item.z - 1);
        const uint8_t* const own = codes + row * row_bytes + s * kFp4TileCols + t * 8;
        return RowOperand{
            *reinterpret_cast<const uint2*>(own), *reinterpret_cast<const uint2*>(own + 32),
            *reinterpret_cast<const uint32_t*>(scales + row * row_scales + (s >> 1) * 4) >> (16 * (s & 1))};
      });
      if (++place == kDownPlaces) place = 0;
    }
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const int row = e * 8 + 2 * t + (q & 1);
        if (row >= item.z) continue;
        const int64_t at = int64_t{__ldcg(p.work.destination + item.y + row)} * p.hidden;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int64_t channel = int64_t{group} * kDownChannels + i * 16 + (q >> 1) * 8 + g;
          if (channel < p.hidden) p.work.outputs[at + channel] = float_to_bf16(sum[i][e][q]);
        }
      }
    }
  }
}

}  // namespace

bool prefill_experts_fit(const DeviceLimits& device, const PreparedExperts& bank) {
  // Rows' scales are read a word at a time; offsets into a launch's codes have 31 bits.
  return bank.hidden % 128 == 0 && bank.width % 32 == 0 && bank.hidden * kMaxPrefillRows < int64_t{1} << 31 &&
         kUpSharedBytes + kReserved <= device.shared_bytes &&
         down_shared_bytes(static_cast<int>(expert_codes_stride(bank.width))) + kReserved <=
             device.shared_bytes;
}

void launch_prefill_gate_up(const Launch& on, const ExpertsArgs& args, int first_row,
                            const PreparedExperts& bank, const PrefillExperts& work) {
  const GateUpParams p = {
      .stages = bank.gate_up,
      .expert_bytes = static_cast<size_t>(2 * prepared_bytes(Layout::kFp4, bank.width, bank.hidden)),
      .x_codes = args.x_q.codes + static_cast<int64_t>(first_row) * bank.hidden,
      .x_scales = args.x_q.scales + static_cast<int64_t>(first_row) * (bank.hidden / 32),
      .hidden = static_cast<int>(bank.hidden),
      .steps = static_cast<int>(ceil_div(bank.hidden, kFp4TileCols)),
      .column_blocks = static_cast<int>(bank.width / 32),
      .codes_stride = static_cast<int>(expert_codes_stride(bank.width)),
      .limit = args.limit,
      .work = work};
  launch_kernel(on, prefill_gate_up_kernel, dim3(static_cast<unsigned>(on.device.multiprocessors)), kThreads,
                kUpSharedBytes, 1, p);
}

void launch_prefill_down(const Launch& on, const PreparedExperts& bank, const PrefillExperts& work) {
  const int codes_stride = static_cast<int>(expert_codes_stride(bank.width));
  const DownParams p = {
      .stages = bank.down,
      .expert_bytes = static_cast<size_t>(prepared_bytes(Layout::kFp4, bank.hidden, bank.width)),
      .hidden = static_cast<int>(bank.hidden),
      .width = static_cast<int>(bank.width),
      .steps = static_cast<int>(ceil_div(bank.width, kFp4TileCols)),
      .channel_groups = static_cast<int>(ceil_div(bank.hidden, kDownChannels)),
      .codes_stride = codes_stride,
      .work = work};
  const size_t shared_bytes = down_shared_bytes(codes_stride);
  const auto side_by_side = std::max<size_t>(1, on.device.shared_bytes / (shared_bytes + kReserved));
  launch_kernel(on, prefill_down_kernel,
                dim3(static_cast<unsigned>(on.device.multiprocessors) * static_cast<unsigned>(side_by_side)),
                kThreads, shared_bytes, 1, p);
}

}  // namespace spark::engine::cuda::sm121
