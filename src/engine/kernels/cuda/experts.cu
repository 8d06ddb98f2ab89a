// The routed experts: work list, gate/up with the fused activation, down with the fixed-order combine.
//
// Assignments (row, slot) are sorted by expert; up to eight of one expert form a work item, so an expert's
// weights are read once per eight rows. Gate and up of 32 columns meet in one block, which applies the
// clamps, the routing weight and the quantiser and leaves codes in the order in which the down projection
// reads them. The down kernel gives a block 16 output channels and all items: a row's expert outputs meet in
// its shared memory and are added by ascending expert. The order of assignments inside an item changes
// nothing: columns of the matrix instruction are independent.
#include "engine/kernels/cuda/fp4_step.cuh"
#include "engine/kernels/cuda/launch.h"

namespace spark::engine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// ---- work list
// ------------------------------------------------------------------------------------------------------

constexpr int kPlanThreads = 1024;
constexpr int kMaxPlanExperts = 512;

__device__ __forceinline__ int exclusive_scan(int v, int* scratch, int* total) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x / 32);
  int inclusive = v;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(~0u, inclusive, offset);
    if (lane >= offset) inclusive += other;
  }
  if (lane == 31) scratch[warp] = inclusive;
  __syncthreads();
  int before = 0;
  int all = 0;
  for (int i = 0; i < kPlanThreads / 32; ++i) {
    if (i < warp) before += scratch[i];
    all += scratch[i];
  }
  __syncthreads();
  *total = all;
  return before + inclusive - v;
}

__global__ void __launch_bounds__(kPlanThreads)
    plan_kernel(const int32_t* ids, const int32_t* sequence, int rows, int top_k, int experts,
                ExpertWorkspace work) {
  __shared__ int count[kMaxPlanExperts];
  __shared__ int start[kMaxPlanExperts];
  __shared__ int scratch[kPlanThreads / 32];
  launch_dependents();
  wait_for_inputs();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kMaxPlanExperts) count[thread] = 0;
  __syncthreads();
  const int assignments = rows * top_k;
  int place = 0, expert = -1, rank = 0;
  if (thread < assignments) {
    const int row = thread / top_k;
    if (sequence[row] >= 0) {
      expert = ids[thread];
      for (int k = 0; k < top_k; ++k) rank += ids[row * top_k + k] < expert;
      if (expert >= 0 && expert < experts) place = atomicAdd(&count[expert], 1);
      if (expert >= experts) expert = -1;
    }
  }
  __syncthreads();
  int all = 0;
  const int mine = thread < kMaxPlanExperts ? count[thread] : 0;
  const int first = exclusive_scan(mine, scratch, &all);
  if (thread < kMaxPlanExperts) start[thread] = first;
  int items = 0;
  int item = exclusive_scan((mine + kExpertRows - 1) / kExpertRows, scratch, &items);
  for (int done = 0; done < mine; done += kExpertRows) {
    work.items[item++] = {thread, first + done, min(kExpertRows, mine - done)};
  }
  if (thread == 0) *work.item_count = items;
  __syncthreads();
  if (expert >= 0) {
    const int at = start[expert] + place;
    work.assignment[at] = thread;
    work.destination[at] = thread / top_k * top_k + rank;
  }
}

// ---- shared pieces
// --------------------------------------------------------------------------------------------------

// silu(min(a, limit)) * clamp(b), FP32, of BF16-rounded inputs.
__device__ __forceinline__ float clamped_swiglu(float a, float b, float limit) {
  b = fminf(fmaxf(b, -limit), limit);
  a = fminf(a, limit);
  return a / (1.0f + expf(-a)) * b;
}

// ---- gate and up ---------------------------------------------------------------------------------------

struct GateUpParams {
  const uint8_t* tiles;
  const uint8_t* scales;
  size_t matrix_bytes;  // tiles of one [width, hidden] matrix
  size_t matrix_scale_bytes;
  const uint8_t* x_codes;  // of the launch's first row
  const uint8_t* x_scales;
  const float* weights;
  int hidden;
  int top_k;
  int double_blocks;  // of hidden
  int codes_stride;
  float limit;
  ExpertWorkspace work;
};

// A stage is two tiles and their scales.
constexpr int kGateUpStageBytes = 2 * (kTileBytes + kFp4ScaleTileBytes);
constexpr int kGateUpStages = 5;
constexpr int kGateUpRingBytes = kGateUpStageBytes * kGateUpStages;

__global__ void __launch_bounds__(kThreads, 2) gate_up_kernel(const __grid_constant__ GateUpParams p) {
  SPARK_DYNAMIC_SHARED(uint8_t, shared);  // rings, codes of the rows in lane order, their scales [block][8]
  launch_dependents();
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int g = lane >> 2, t = lane & 3;
  const int matrix = warp & 1;
  const int half = (warp >> 1) & 1;  // row tile of the 32 columns
  const int shard = warp >> 2;

  wait_for_inputs();  // the work list decides which weights to read
  const int column_block = static_cast<int>(blockIdx.x);
  if (static_cast<int>(blockIdx.y) >= *p.work.item_count) return;
  const ExpertItem item = p.work.items[blockIdx.y];

  const int shard_tiles = (p.double_blocks + 1) / 2;
  const int tile0 = shard * shard_tiles;
  const int tile1 = min(tile0 + shard_tiles, p.double_blocks);
  const int stages = (shard_tiles + 1) / 2;
  const size_t row_tile = static_cast<size_t>(column_block * 2 + half) * p.double_blocks;
  const size_t which = static_cast<size_t>(item.expert) * 2 + matrix;
  const uint8_t* tiles = p.tiles + which * p.matrix_bytes + row_tile * kTileBytes;
  const uint8_t* scales = p.scales + which * p.matrix_scale_bytes + row_tile * kFp4ScaleTileBytes;
  uint8_t* ring = shared + warp * kGateUpRingBytes;
  const auto fetch = [&](int stage) {
    uint8_t* to = ring + stage % kGateUpStages * kGateUpStageBytes;
    const int tile = tile0 + stage * 2;
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      if (tile + u < tile1) {
        copy_async_16(to + u * kTileBytes + lane * 16,
                      tiles + static_cast<size_t>(tile + u) * kTileBytes + lane * 16);
      }
    }
    // Lanes 0..3: half a tile's scales each.
    if (lane < 4 && tile + lane / 2 < tile1) {
      copy_async_16(to + 2 * kTileBytes + lane * 16,
                    scales + static_cast<size_t>(tile) * kFp4ScaleTileBytes + lane * 16);
    }
    copy_async_commit();
  };
#pragma unroll
  for (int i = 0; i < kGateUpStages - 1; ++i) fetch(i);

  // The item's rows. What lies in the places of absent rows does not matter: columns are independent.
  uint8_t* x_codes = shared + kWarps * kGateUpRingBytes;
  float* x_scale = reinterpret_cast<float*>(x_codes + static_cast<size_t>(p.double_blocks) * 512);
  const int blocks = p.hidden / 32;
  constexpr int kAtOnce = 5;
  if (g < item.count) {
    const uint8_t* row =
        p.x_codes + static_cast<size_t>(p.work.assignment[item.first + g] / p.top_k) * p.hidden;
    for (int tile = warp; tile < p.double_blocks; tile += kWarps * kAtOnce) {
      uint2 x[kAtOnce][2];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int block = (tile + j * kWarps) * 2;
#pragma unroll
        for (int u = 0; u < 2; ++u) {
          x[j][u] = make_uint2(0, 0);
          if (block + u < blocks) x[j][u] = *reinterpret_cast<const uint2*>(row + (block + u) * 32 + t * 8);
        }
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (tile + j * kWarps >= p.double_blocks) continue;
        *reinterpret_cast<uint4*>(x_codes + (tile + j * kWarps) * 512 + lane * 16) =
            make_uint4(x[j][0].x, x[j][0].y, x[j][1].x, x[j][1].y);
      }
    }
  }
  // Warp m takes the scales of row m.
  if (warp < item.count) {
    const uint8_t* row =
        p.x_scales + static_cast<size_t>(p.work.assignment[item.first + warp] / p.top_k) * blocks;
    for (int first = lane; first < p.double_blocks * 2; first += 32 * kAtOnce) {
      uint32_t byte[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) byte[j] = first + j * 32 < blocks ? row[first + j * 32] : 0u;
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int block = first + j * 32;
        if (block < p.double_blocks * 2)
          x_scale[block * 8 + warp] = block < blocks ? ue8m0_to_float(byte[j]) : 0.0f;
      }
    }
  }
  __syncthreads();

  float sum[4] = {};
  for (int stage = 0; stage < stages; ++stage) {
    copy_async_wait<kGateUpStages - 2>();
    __syncwarp();  // scales were copied by other lanes
    const uint8_t* at = ring + stage % kGateUpStages * kGateUpStageBytes;
    uint4 w[2];
    uint32_t s[2];
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      w[u] = reinterpret_cast<const uint4*>(at + u * kTileBytes)[lane];
      s[u] = reinterpret_cast<const uint32_t*>(at + 2 * kTileBytes + u * kFp4ScaleTileBytes)[g];
    }
    fetch(stage + kGateUpStages - 1);
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int tile = tile0 + stage * 2 + u;
      if (tile >= tile1) continue;
      const uint4 x = *reinterpret_cast<const uint4*>(x_codes + tile * 512 + lane * 16);
      const float2 first = *reinterpret_cast<const float2*>(x_scale + tile * 16 + t * 2);
      const float2 second = *reinterpret_cast<const float2*>(x_scale + tile * 16 + 8 + t * 2);
      const float xs[2][2] = {{first.x, first.y}, {second.x, second.y}};
      fp4_tile_step(sum, w[u], s[u], x, xs);
    }
  }
  // The partial sums take the place of the codes.
  __syncthreads();
  float* partial = reinterpret_cast<float*>(x_codes);  // [warp][128]
#pragma unroll
  for (int q = 0; q < 4; ++q) partial[warp * 128 + q * 32 + lane] = sum[q];
  __syncthreads();

  // Thread = (row m of the item, column of the 32): the warp holds one quantisation block.
  const int m = warp;
  const int column = lane;
  if (m >= item.count) return;
  const int r = column & 15;
  const int at = ((r >> 3) * 2 + (m & 1)) * 32 + (r & 7) * 4 + (m >> 1);
  const auto total = [&](int which_matrix) {
    const int first = which_matrix + (column >> 4) * 2;
    return round_to_bf16((partial[first * 128 + at] + partial[(first + 4) * 128 + at]) * kFp4EmbedScale);
  };
  const float a = total(0);
  const float b = total(1);
  const int assignment = p.work.assignment[item.first + m];
  const float v = round_to_bf16(p.weights[assignment] * clamped_swiglu(a, b, p.limit));
  const uint32_t scale = fp8_block_scale(group_amax<32>(v));
  const int64_t position = item.first + m;
  const int64_t channel = column_block * 32 + column;
  p.work.codes[position * p.codes_stride + down_activation_offset(channel)] =
      static_cast<uint8_t>(fp8_block_code(v, scale));
  uint8_t* scales_at = p.work.scales + (position * (p.codes_stride / 64) + column_block / 2) * 4;
  if (lane == 0) scales_at[column_block & 1] = static_cast<uint8_t>(scale);
  // An odd last block leaves half a tile: whatever other shapes left there must read as zero.
  if (column_block == static_cast<int>(gridDim.x) - 1 && (column_block & 1) == 0) {
    p.work.codes[position * p.codes_stride + down_activation_offset(channel + 32)] = 0;
    if (lane == 0) scales_at[1] = 0;
  }
}

// ---- down and combine ----------------------------------------------------------------------------------

struct DownParams {
  const uint8_t* tiles;
  const uint8_t* scales;
  size_t matrix_bytes;
  size_t matrix_scale_bytes;
  const int32_t* sequence;
  const uint16_t* shared_expert;
  uint16_t* y;
  int rows;
  int hidden;
  int top_k;
  int double_blocks;  // of the width
  int codes_stride;
  ExpertWorkspace work;
};

// A stage is one tile, its scales, and the item's activations and scales for it.
constexpr int kDownScalesAt = kTileBytes;
constexpr int kDownCodesAt = kDownScalesAt + kFp4ScaleTileBytes;
constexpr int kDownXScalesAt = kDownCodesAt + 512;
constexpr int kDownStageBytes = kDownXScalesAt + 32;
constexpr int kDownStages = 6;
constexpr int kDownRingBytes = kDownStageBytes * kDownStages;

__global__ void __launch_bounds__(kThreads, 3) down_kernel(const __grid_constant__ DownParams p) {
  SPARK_DYNAMIC_SHARED(uint8_t, shared);  // rings, then the rows' expert outputs [rows * top_k][16]
  launch_dependents();
  wait_for_inputs();
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int g = lane >> 2, t = lane & 3;
  const int items = *p.work.item_count;
  const size_t row_tile = static_cast<size_t>(blockIdx.x) * p.double_blocks;
  uint8_t* ring = shared + warp * kDownRingBytes;
  float* outputs = reinterpret_cast<float*>(shared + kWarps * kDownRingBytes);
  const auto item_at = [&](int i) { return i < items ? p.work.items[i] : ExpertItem{}; };

  // The next tile to fetch; the item after its own is read one item ahead.
  int fetch_index = warp, fetch_tile = 0, fetch_slot = 0;
  ExpertItem fetch_item = item_at(warp), fetch_following = item_at(warp + kWarps);
  const auto fetch_next = [&] {
    if (fetch_item.count > 0) {
      uint8_t* to = ring + fetch_slot * kDownStageBytes;
      const size_t at = row_tile + static_cast<size_t>(fetch_tile);
      copy_async_16(to + lane * 16,
                    p.tiles + fetch_item.expert * p.matrix_bytes + at * kTileBytes + lane * 16);
      if (lane < 2) {
        copy_async_16(to + kDownScalesAt + lane * 16, p.scales + fetch_item.expert * p.matrix_scale_bytes +
                                                          at * kFp4ScaleTileBytes + lane * 16);
      }
      if (g < fetch_item.count) {
        const size_t position = static_cast<size_t>(fetch_item.first + g);
        copy_async_16(to + kDownCodesAt + lane * 16,
                      p.work.codes + position * p.codes_stride + fetch_tile * 64 + t * 16);
        if (t == 0) {
          copy_async_4(to + kDownXScalesAt + g * 4,
                       p.work.scales + (position * (p.codes_stride / 64) + fetch_tile) * 4);
        }
      }
    }
    copy_async_commit();
    if (++fetch_slot == kDownStages) fetch_slot = 0;
    if (++fetch_tile == p.double_blocks) {
      fetch_tile = 0;
      fetch_index += kWarps;
      fetch_item = fetch_following;
      fetch_following = item_at(fetch_index + kWarps);
    }
  };
#pragma unroll
  for (int i = 0; i < kDownStages - 1; ++i) fetch_next();

  int slot = 0;
  ExpertItem following = item_at(warp);
  for (int i = warp; i < items; i += kWarps) {
    const ExpertItem item = following;
    following = item_at(i + kWarps);
    int destination[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      destination[c] = 2 * t + c < item.count ? p.work.destination[item.first + 2 * t + c] : -1;
    }
    float sum[4] = {};
    for (int tile = 0; tile < p.double_blocks; ++tile) {
      copy_async_wait<kDownStages - 2>();
      __syncwarp();  // scales were copied by other lanes
      const uint8_t* at = ring + slot * kDownStageBytes;
      const uint4 w = reinterpret_cast<const uint4*>(at)[lane];
      const uint32_t s = reinterpret_cast<const uint32_t*>(at + kDownScalesAt)[g];
      const uint4 x = reinterpret_cast<const uint4*>(at + kDownCodesAt)[lane];
      const uint2 xs = reinterpret_cast<const uint2*>(at + kDownXScalesAt)[t];
      if (++slot == kDownStages) slot = 0;
      fetch_next();
      // As scales of rows: blocks 0 and 1 of column 2t, then of column 2t + 1.
      const RowScales scale = row_scales((xs.x & 0xFFFFu) | xs.y << 16);
      const float x_scale[2][2] = {{scale.x0, scale.y0}, {scale.x1, scale.y1}};
      fp4_tile_step(sum, w, s, x, x_scale);
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (destination[c] < 0) continue;
      float* out = outputs + destination[c] * 16;
      out[g] = round_to_bf16(sum[c] * kFp4EmbedScale);
      out[g + 8] = round_to_bf16(sum[2 + c] * kFp4EmbedScale);
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < p.rows * 16; i += kThreads) {
    const int row = i / 16;
    const int64_t channel = static_cast<int64_t>(blockIdx.x) * 16 + (i & 15);
    if (channel >= p.hidden || p.sequence[row] < 0) continue;
    float total = 0.0f;
    for (int k = 0; k < p.top_k; ++k) total += outputs[(row * p.top_k + k) * 16 + (i & 15)];
    total += bf16_to_float(p.shared_expert[static_cast<int64_t>(row) * p.hidden + channel]);
    p.y[static_cast<int64_t>(row) * p.hidden + channel] = float_to_bf16(total);
  }
}

// ---- the shared expert's activation
// ---------------------------------------------------------------------------------

__global__ void swiglu_kernel(const uint16_t* gate, const uint16_t* up, int64_t blocks, float limit,
                              uint8_t* codes, uint8_t* scales) {
  launch_dependents();
  wait_for_inputs();
  const int64_t block = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x & 31);
  if (block >= blocks) return;
  const int64_t at = block * 32 + lane;
  const float v = round_to_bf16(clamped_swiglu(bf16_to_float(gate[at]), bf16_to_float(up[at]), limit));
  const uint32_t scale = fp8_block_scale(group_amax<32>(v));
  codes[at] = static_cast<uint8_t>(fp8_block_code(v, scale));
  if (lane == 0) scales[block] = static_cast<uint8_t>(scale);
}

}  // namespace

int64_t expert_codes_stride(int64_t width) {
  return round_up(width, kFp4TileCols);
}

void launch_expert_plan(const Launch& on, const ExpertsArgs& args, int first_row, int rows, int experts,
                        const ExpertWorkspace& work) {
  if (experts > kMaxPlanExperts || rows * args.top_k > kPlanThreads) {
    throw Error(std::to_string(experts) + " experts, top " + std::to_string(args.top_k), "CUDA backend",
                "at most 512 experts and top 10");
  }
  launch_kernel(on, plan_kernel, dim3(1), kPlanThreads, 0, 1,
                args.ids + static_cast<int64_t>(first_row) * args.top_k, args.step.sequence + first_row, rows,
                args.top_k, experts, work);
}

void launch_expert_gate_up(const Launch& on, const ExpertsArgs& args, int first_row, int rows,
                           const PreparedExperts& bank, const ExpertWorkspace& work) {
  GateUpParams p = {};
  p.tiles = bank.gate_up;
  p.scales = bank.gate_up_scales;
  p.matrix_bytes = static_cast<size_t>(prepared_bytes(Layout::kFp4, bank.width, bank.hidden));
  p.matrix_scale_bytes = static_cast<size_t>(fp4_scale_bytes(bank.width, bank.hidden));
  p.x_codes = args.x_q.codes + static_cast<int64_t>(first_row) * args.hidden;
  p.x_scales = args.x_q.scales + static_cast<int64_t>(first_row) * (args.hidden / 32);
  p.weights = args.weights + static_cast<int64_t>(first_row) * args.top_k;
  p.hidden = static_cast<int>(bank.hidden);
  p.top_k = args.top_k;
  p.double_blocks = static_cast<int>(ceil_div(bank.hidden, kFp4TileCols));
  p.codes_stride = static_cast<int>(expert_codes_stride(bank.width));
  p.limit = args.limit;
  p.work = work;
  // The partial sums need 4 KiB in the place of the codes.
  const size_t shared =
      kWarps * kGateUpRingBytes +
      std::max<size_t>(static_cast<size_t>(p.double_blocks) * (512 + 16 * sizeof(float)), 4096);
  if (shared > on.device.shared_bytes - 1024) {
    throw Error("experts of hidden width " + std::to_string(bank.hidden), "CUDA backend",
                "the rows of a work item must fit in shared memory");
  }
  launch_kernel(on, gate_up_kernel,
                dim3(static_cast<unsigned>(bank.width / 32), static_cast<unsigned>(rows * args.top_k)),
                kThreads, shared, 1, p);
}

void launch_expert_down(const Launch& on, const ExpertsArgs& args, int first_row, int rows,
                        const PreparedExperts& bank, const ExpertWorkspace& work, const uint16_t* shared) {
  DownParams p = {};
  p.tiles = bank.down;
  p.scales = bank.down_scales;
  p.matrix_bytes = static_cast<size_t>(prepared_bytes(Layout::kFp4, bank.hidden, bank.width));
  p.matrix_scale_bytes = static_cast<size_t>(fp4_scale_bytes(bank.hidden, bank.width));
  p.sequence = args.step.sequence + first_row;
  p.shared_expert = shared;
  p.y = args.y + static_cast<int64_t>(first_row) * args.hidden;
  p.rows = rows;
  p.hidden = static_cast<int>(bank.hidden);
  p.top_k = args.top_k;
  p.double_blocks = static_cast<int>(ceil_div(bank.width, kFp4TileCols));
  p.codes_stride = static_cast<int>(expert_codes_stride(bank.width));
  p.work = work;
  launch_kernel(on, down_kernel, dim3(static_cast<unsigned>(ceil_div(bank.hidden, kTileRows))), kThreads,
                kWarps * kDownRingBytes + static_cast<size_t>(rows) * args.top_k * 16 * sizeof(float), 1, p);
}

void launch_swiglu_quantise(const Launch& on, const uint16_t* gate, const uint16_t* up, int rows,
                            int64_t width, float limit, const QuantisedRows& out) {
  const int64_t blocks = static_cast<int64_t>(rows) * width / 32;
  launch_kernel(on, swiglu_kernel, dim3(static_cast<unsigned>(ceil_div(blocks, kWarps))), kThreads, 0, 1,
                gate, up, blocks, limit, out.codes, out.scales);
}

}  // namespace spark::engine::cuda
