// Gate and up of a prompt's rows, with the activation and the quantiser behind them.
//
// A block takes an item and six units of 32 columns; two warps share a unit, 16 columns of gate and up each.
// Weights and rows come 128 columns at a time, three ahead; rows become FP16 one step ahead. The shards of
// the streaming kernel's sum come one after the other here.
#include "engine/kernels/cuda/sm90/experts_prefill.cuh"

namespace spark::engine::cuda {
namespace {

constexpr int kUnits = kItemWarps / 2;  // of a block
constexpr int kStages = 4;
constexpr int kAhead = kStages - 1;
constexpr int kUnitBytes = 2 * fp4_stage_bytes(2);  // 128 columns of gate and up
constexpr int kCodesStride = 128 + 16;
constexpr int kRowBytes = item_row_bytes(4);
constexpr int kPieces = kPrefillItemRows * 8;  // 16 codes of a row
static_assert(kPieces + kPrefillItemRows <= kItemThreads);

// What a block keeps in shared memory.
struct alignas(16) GateUpShared {
  uint8_t weights[kStages][kUnits][kUnitBytes];
  uint8_t codes[kStages][kPrefillItemRows][kCodesStride];
  uint8_t rows[2][kPrefillItemRows][kRowBytes];          // as FP16
  float scales[2][4][kPrefillItemRows];                  // [step][block]
  float4 sums[kItemWarps][kWarpTiles][kItemEights][32];  // of the shards before, as the lanes hold them
  uint32_t scale_words[kStages][kPrefillItemRows];
  uint64_t arrived[kStages][kUnits];
};

struct PrefillGateUpParams {
  const uint8_t* stages;
  size_t expert_bytes;
  const uint8_t* x_codes;  // of the launch's first row
  const uint8_t* x_scales;
  int hidden;
  int steps;        // 128 columns of hidden
  int shard_steps;  // of a shard of the sum
  int column_blocks;
  int groups;  // of kUnits column blocks
  int codes_stride;
  float limit;
  PrefillExperts work;
};

// What a block brings next: its items' steps one after the other.
class Fetch {
 public:
  __device__ __forceinline__ Fetch(const PrefillGateUpParams& p, GateUpShared& shared, int count)
      : p_(p), shared_(shared), count_(count), work_(static_cast<int>(blockIdx.x)) {
    aim();
  }
  __device__ __forceinline__ void next() {
    if (work_ < count_) {
      const int thread = static_cast<int>(threadIdx.x);
      if (weights_ != nullptr) {
        copy_bulk(shared_.weights[stage_][thread >> 6], weights_ + static_cast<size_t>(step_) * kUnitBytes,
                  kUnitBytes, &shared_.arrived[stage_][thread >> 6]);
      } else if ((thread & 63) == 0) {
        barrier_arrive(&shared_.arrived[stage_][thread >> 6]);  // no such unit: the barriers keep step
      }
      if (thread < kPieces) {
        copy_async_16(&shared_.codes[stage_][thread >> 3][(thread & 7) * 16],
                      row_ + static_cast<size_t>(step_) * 128);
      } else if (thread < kPieces + kPrefillItemRows) {
        copy_async_4(&shared_.scale_words[stage_][thread - kPieces], row_ + static_cast<size_t>(step_) * 4);
      }
      if (++step_ == p_.steps) step_ = 0, work_ += static_cast<int>(gridDim.x), aim();
    }
    stage_ = stage_ + 1 == kStages ? 0 : stage_ + 1;
    copy_async_commit();
  }

 private:
  __device__ __forceinline__ void aim() {
    if (work_ >= count_) return;
    const int thread = static_cast<int>(threadIdx.x);
    const int item_index = work_ / p_.groups, group = work_ - item_index * p_.groups;
    const ExpertItem item = p_.work.items[item_index];
    const int unit = group * kUnits + (thread >> 6);
    weights_ = (thread & 63) == 0 && unit < p_.column_blocks
                   ? p_.stages + static_cast<size_t>(item.expert) * p_.expert_bytes +
                         static_cast<size_t>(unit) * p_.steps * kUnitBytes
                   : nullptr;
    // Rows that the item does not have are copies of its last: what they give is nobody's.
    const int slot = thread < kPieces ? thread >> 3 : thread - kPieces;
    if (slot >= kPrefillItemRows) return;
    const auto row = static_cast<size_t>(p_.work.row[item.first + min(slot, item.count - 1)]);
    row_ = thread < kPieces ? p_.x_codes + row * static_cast<size_t>(p_.hidden) + (thread & 7) * 16
                            : p_.x_scales + row * static_cast<size_t>(p_.hidden / 32);
  }

  const PrefillGateUpParams& p_;
  GateUpShared& shared_;
  const int count_;
  int work_;
  int step_ = 0;
  int stage_ = 0;
  const uint8_t* weights_ = nullptr;  // of the thread that asks for a unit's
  const uint8_t* row_ = nullptr;      // the thread's piece of its row, or the row's scales
};

__device__ __forceinline__ void convert(GateUpShared& shared, int stage, int half) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kPieces) {
    const int row = thread >> 3, piece = thread & 7;
    store_sixteen(shared.rows[half][row] + piece * 32,
                  *reinterpret_cast<const uint4*>(&shared.codes[stage][row][piece * 16]));
  } else if (thread < kPieces + kPrefillItemRows) {
    const int row = thread - kPieces;
    const uint32_t word = shared.scale_words[stage][row];
#pragma unroll
    for (int b = 0; b < 4; ++b) shared.scales[half][b][row] = item_scale((word >> (8 * b)) & 0xFFu);
  }
}

// A unit's sum of a row and this lane's column: of gate or up.
__device__ __forceinline__ float sum_of(const GateUpShared& shared, int unit, int matrix, int row) {
  const int column = static_cast<int>(threadIdx.x & 31);
  const float4* const sums = shared.sums[unit * 2 + (column >> 4)][matrix][row >> 3];
  const int owner = (column & 7) * 4 + ((row & 7) >> 1);
  return reinterpret_cast<const float*>(sums + owner)[(column >> 3 & 1) * 2 + (row & 1)];
}

__global__ void __launch_bounds__(kItemThreads, 1)
    prefill_gate_up_kernel(const __grid_constant__ PrefillGateUpParams p) {
  SPARK_DYNAMIC_SHARED(uint8_t, raw);
  GateUpShared& shared = *reinterpret_cast<GateUpShared*>(raw);
  launch_dependents();
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int g = lane >> 2, t = lane & 3;
  const int unit = warp >> 1, half_unit = warp & 1;
  if (threadIdx.x < kStages * kUnits) barrier_init(&shared.arrived[0][0] + threadIdx.x, 1);
  barrier_init_done();
  wait_for_inputs();
  __syncthreads();
  const int count = *p.work.item_count * p.groups;
  Fetch fetch(p, shared, count);
#pragma unroll
  for (int i = 0; i < kAhead; ++i) fetch.next();
  copy_async_wait<kAhead - 1>();
  __syncthreads();
  convert(shared, 0, 0);

  int stage = 0, half = 0;
  uint32_t parity = 0;
  for (int work = static_cast<int>(blockIdx.x); work < count; work += static_cast<int>(gridDim.x)) {
    const int item_index = work / p.groups, group = work - item_index * p.groups;
    const ExpertItem item = p.work.items[item_index];
    const int eights = (item.count + 7) >> 3;
    const bool live = group * kUnits + unit < p.column_blocks;
    ItemSums sum = {};
    int shard_left = p.shard_steps;
    for (int step = 0; step < p.steps; ++step) {
      const int next_stage = stage + 1 == kStages ? 0 : stage + 1;
      copy_async_wait<kAhead - 2>();
      __syncthreads();  // the next step's rows are there; all have used what is overwritten now
      fetch.next();
      convert(shared, next_stage, half ^ 1);
      if (live) {
        barrier_wait(&shared.arrived[stage][unit], parity);
        const uint8_t* const at = shared.weights[stage][unit];
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          const uint8_t* tiles[kWarpTiles];
          const uint32_t* words[kWarpTiles];
#pragma unroll
          for (int i = 0; i < kWarpTiles; ++i) {
            const int matrix_tile = i * 2 + half_unit;
            tiles[i] = at + s * fp4_stage_bytes(2) + matrix_tile * kTileBytes + lane * 16;
            words[i] = reinterpret_cast<const uint32_t*>(at + s * fp4_stage_bytes(2) + 4 * kTileBytes +
                                                         matrix_tile * kFp4ScaleTileBytes) +
                       g;
          }
          multiply_item(sum[s], tiles, words, shared.rows[half][g] + s * 128 + t * 16, kRowBytes,
                        &shared.scales[half][2 * s][2 * t], eights);
        }
        if (--shard_left == 0 || step + 1 == p.steps) {
          shard_left = p.shard_steps;
#pragma unroll
          for (int i = 0; i < kWarpTiles; ++i) {
#pragma unroll
            for (int n = 0; n < kItemEights; ++n) {
              float4& at_lane = shared.sums[warp][i][n][lane];
              float4 total = step < p.shard_steps ? make_float4(0, 0, 0, 0) : at_lane;
              total.x += sum[0][i][n][0] + sum[1][i][n][0];
              total.y += sum[0][i][n][1] + sum[1][i][n][1];
              total.z += sum[0][i][n][2] + sum[1][i][n][2];
              total.w += sum[0][i][n][3] + sum[1][i][n][3];
              at_lane = total;
#pragma unroll
              for (int q = 0; q < 4; ++q) sum[0][i][n][q] = sum[1][i][n][q] = 0.0f;
            }
          }
        }
      }
      if (next_stage == 0) parity ^= 1;
      stage = next_stage, half ^= 1;
    }

    __syncthreads();
    const int units = min(kUnits, p.column_blocks - group * kUnits);
    for (int i = warp; i < units * item.count; i += kItemWarps) {
      const int u = i / item.count, row = i - u * item.count;
      const ExpertCode code =
          expert_code(sum_of(shared, u, 0, row) * kFp4EmbedScale, sum_of(shared, u, 1, row) * kFp4EmbedScale,
                      p.work.weight[item.first + row], p.limit);
      store_expert_code(p.work, code, item.first + row, p.codes_stride, group * kUnits + u, p.column_blocks);
    }
  }
}

}  // namespace

void launch_prefill_gate_up(const Launch& on, const ExpertsArgs& args, int first_row,
                            const PreparedExperts& bank, const PrefillExperts& work) {
  PrefillGateUpParams p = {};
  p.stages = bank.gate_up;
  p.expert_bytes = static_cast<size_t>(2 * prepared_bytes(Layout::kFp4, bank.width, bank.hidden));
  p.x_codes = args.x_q.codes + static_cast<int64_t>(first_row) * args.hidden;
  p.x_scales = args.x_q.scales + static_cast<int64_t>(first_row) * (args.hidden / 32);
  p.hidden = static_cast<int>(bank.hidden);
  p.steps = static_cast<int>(bank.hidden / 128);
  p.shard_steps = static_cast<int>(ceil_div(p.steps, kExpertShards));
  p.column_blocks = static_cast<int>(bank.width / 32);
  p.groups = static_cast<int>(ceil_div(p.column_blocks, kUnits));
  p.codes_stride = static_cast<int>(expert_codes_stride(bank.width));
  p.limit = args.limit;
  p.work = work;
  launch_kernel(on, prefill_gate_up_kernel, dim3(static_cast<unsigned>(on.device.multiprocessors)),
                kItemThreads, sizeof(GateUpShared), 1, p);
}

size_t prefill_gate_up_shared_bytes() {
  return sizeof(GateUpShared);
}

}  // namespace spark::engine::cuda
