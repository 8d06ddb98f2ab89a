// Parts of the streaming kernel of the routed experts (experts_stream.cu): its parameters, the products of a
// place of a ring, and what the two warps beside the streaming ones do.
#pragma once

#include "engine/kernels/cuda/experts_list.cuh"
#include "engine/kernels/cuda/experts_parts.cuh"
#include "engine/kernels/cuda/fp4_step.cuh"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/plan/expert_schedule.h"

namespace spark::engine::cuda {

constexpr int kUpStepBytes = 2 * fp4_stage_bytes(2);  // 128 columns of gate and up
constexpr int kDownStageBytes = fp4_stage_bytes(1);   // 64 of down
constexpr int kUpStepStages = kUpStepBytes / kDownStageBytes;
constexpr int kTransferStages = 4;  // what is copied at once: a step of gate and up, two of down
constexpr int kTransferBytes = kTransferStages * kDownStageBytes;
static_assert(kUpStepStages == kTransferStages);
// log2 of the units whose partial sums, and of those whose activations of down, are there at once, at most.
constexpr int kMaxPlaceShift = 2;
constexpr int kMaxPlaces = 1 << kMaxPlaceShift;
static_assert(fp4_stage_bytes(2) == 2 * kDownStageBytes);

struct ExpertStreamParams {
  const uint8_t* gate_up;
  const uint8_t* down;
  size_t gate_up_bytes;  // of an expert
  size_t down_bytes;
  const uint8_t* x_codes;
  const uint8_t* x_scales;
  bool listed;  // the work list is in the workspace; else it is made from `inputs`
  ListInputs inputs;
  int hidden;
  int up_steps;       // 128 columns of the hidden width each
  int warp_steps;     // of them a warp's
  int column_blocks;  // 32 columns of the width each
  int down_steps;     // 128 columns of the width each
  int down_stages;    // 64
  int channel_groups;
  SmallDivisor ups;    // units of gate and up of an item
  SmallDivisor downs;  // units of down of an item
  SmallDivisor blocks;
  int set_groups;   // channel groups of a unit of down, one a warp
  int slots;        // of a ring
  int place_shift;  // log2 of the units whose shards, and whose rows, are there at once
  float limit;
  // Where things lie in shared memory.
  int rows_at;  // the rows of units of down: [place][row], as FP16
  int zeros_at;
  int row_scales_at;  // [place][row][down_steps][4]
  int partial_at;
  int units_at;
  int items_at;
  int weights_at;
  int count_at;
  int barriers_at;
  ExpertWorkspace work;
};

// A unit of the block's work.
struct alignas(16) StreamUnit {
  const uint8_t* weights;  // of its first stage
  uint16_t item;
  uint16_t part;    // column block of gate and up, or the first channel group of down
  uint32_t groups;  // warps with channels of down; 0: gate and up
};
static_assert(sizeof(StreamUnit) == 16);

// What the warps of a block share.
struct StreamBlock {
  uint8_t* shared;
  StreamList list;
  StreamUnit* units;
  int unit_count;
  int up_count;          // of them gate and up, which come first
  float* partial;        // of gate and up: [places][warp][row][matrix, column]
  uint64_t* full;        // [places]: all shards of a unit are written
  uint64_t* empty;       // and have been read
  uint64_t* rows_full;   // [places]: the rows of a unit of down are there
  uint64_t* rows_empty;  // and have been read
};

// Places that units take in turns, 2^shift of them, and the phase of their barriers, for the n-th unit.
__device__ __forceinline__ int turn_place(int n, int shift) {
  return n & ((1 << shift) - 1);
}
__device__ __forceinline__ uint32_t turn_phase(int n, int shift) {
  return static_cast<uint32_t>(n >> shift) & 1;
}
// Whoever fills the place again waits for the readers of the unit before.
__device__ __forceinline__ void wait_for_place(uint64_t* read, int n, int shift) {
  if (n >> shift != 0) barrier_wait(read + turn_place(n, shift), turn_phase(n, shift) ^ 1);
}

// Two stages of the weights at `at` into the tiles' sums. `operand(block)` gives the lane's codes of one of
// the four blocks as FP16, zero where the block is not the lane's column; `scales`: of the lane's two blocks.
// Not `whole`: the second stage does not exist, and what lies there is stale.
template <int kMatrices, class Operand>
__device__ __forceinline__ void multiply_stages(float (&sum)[kMatrices * 2][2], const uint8_t* at,
                                                const Operand& operand, const float2& scales, bool whole) {
  constexpr int kTiles = kMatrices * 2;
  constexpr int kStage = fp4_stage_bytes(kMatrices);
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int g = lane >> 2, t = lane & 3;
  float d[kTiles][4] = {};
  // Of gate and up a loop: its code fits in a multiprocessor partition's own cache, and nothing is spilled.
#pragma unroll(kMatrices == 2 ? 1 : 2)
  for (int step = 0; step < 2; ++step) {
    if (step == 1 && !whole) break;
    uint32_t b[2][4];
    operand(2 * step, b[0]);
    operand(2 * step + 1, b[1]);
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

// Stages of down that the next transfer takes of `left`: an even number unless it is the last one, and no
// crumbs.
__device__ __forceinline__ int next_stages(int left) {
  return left == kTransferStages + 1 ? kTransferStages / 2 : min(left, kTransferStages);
}

// ---- activations between blocks
//
// Gate and up hand their activations to down, in another block of the launch, through words of 64 bits in
// memory: four codes and their scale, which is never zero (fp8_block_scale). Zero: not there yet. No fence is
// needed on either side, because a reader uses nothing but what the word itself brings: a word is written
// once by one relaxed store of the device's scope and read by relaxed loads of the same scope, which neither
// tear (an aligned word of 64 bits, or two of them that count as two) nor hit an old line of L1. There is no
// second place whose contents would have to be seen in order.
//
// Nor can a word of an earlier launch pass for a new one:
// - The launch that follows, which adds up (experts_combine.cu, or direct_gemm.cuh with kCombine), clears all
//   words that this one may have written, [rows * top_k][width / 4] of the same memory, behind its own wait:
//   this launch is complete then and reads no more.
// - Words are read and written behind this launch's wait. By then all of the main chain before it is complete
//   and seen, also where launches overlap, since every kernel of the chain waits before it ends
//   (launch_chain.h); the sum of the call before is one of them, whatever ran in between. Nothing overlaps
//   the start of a graph.
// - So all words are zero between a sum and the next launch, whatever number of rows or width either has; at
//   first they are because the arena's memory is.
//
// A block waits for words of units of gate and up only, which wait for nobody, and no block waits for a
// multiprocessor that one of the same launch holds.

// The words of an assignment's activations.
__device__ __forceinline__ uint64_t* words_of(const ExpertStreamParams& p, int place) {
  return p.work.words + static_cast<size_t>(place) * static_cast<size_t>(p.column_blocks * 8);
}

// Joins the shards of the block's units of gate and up, applies the activation and leaves codes for down.
// They travel in words that say by themselves that they are there: behind the weights that all blocks have
// asked for, a fence takes longer than a unit.
template <int kUpWarps>
__device__ __forceinline__ void join_shards(const ExpertStreamParams& p, const StreamBlock& block) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  for (int n = 0; n < block.up_count; ++n) {
    const int place = turn_place(n, p.place_shift);
    const StreamUnit unit = block.units[n];
    const StreamItem item = block.list.items[unit.item];
    const int column = static_cast<int>(unit.part);
    barrier_wait(block.full + place, turn_phase(n, p.place_shift));
    const float* shards = block.partial + place * (kUpWarps * kExpertRows * 64) + lane;
    float a[kExpertRows] = {}, b[kExpertRows] = {};
#pragma unroll
    for (int m = 0; m < kExpertRows; ++m) {
      if (m >= item.rows) break;
#pragma unroll
      for (int shard = 0; shard < kUpWarps; ++shard) {
        a[m] += shards[(shard * kExpertRows + m) * 64];
        b[m] += shards[(shard * kExpertRows + m) * 64 + 32];
      }
    }
    barrier_arrive(block.empty + place);
#pragma unroll
    for (int m = 0; m < kExpertRows; ++m) {
      if (m >= item.rows) break;
      const ExpertCode code = expert_code(a[m] * kFp4EmbedScale, b[m] * kFp4EmbedScale,
                                          block.list.weights[unit.item * kExpertRows + m], p.limit);
      uint32_t four = code.code;  // a lane's code and those of the three behind it, in every fourth lane
      four |= __shfl_xor_sync(~0u, four, 1) << 8;
      four |= __shfl_xor_sync(~0u, four, 2) << 16;
      if ((lane & 3) == 0)
        store_relaxed(words_of(p, item.place[m]) + column * 8 + lane / 4,
                      uint64_t{code.scale << 23} << 32 | four);
    }
  }
}

// Brings the rows of the block's units of down into shared memory as FP16, each when its item is complete.
__device__ __forceinline__ void stage_rows(const ExpertStreamParams& p, const StreamBlock& block) {
  constexpr int kAtOnce = 3;  // reads of a lane under way
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int pieces = p.column_blocks * 4;  // of eight columns, of a row
  const int places = p.down_steps * 16;    // for them; behind the last one there is zero
  for (int n = 0; n < block.unit_count - block.up_count; ++n) {
    const StreamItem item = block.list.items[block.units[block.up_count + n].item];
    wait_for_place(block.rows_empty, n, p.place_shift);
    // One word is asked for again and again, all of them when it is there.
    while (load_relaxed(words_of(p, item.place_of(0)) + p.column_blocks * 8 - 1) == 0) pause_thread();
    const int first_place = turn_place(n, p.place_shift) * kExpertRows;
    const int count = item.rows * places;
    for (int i0 = 0; i0 < count; i0 += 32 * kAtOnce) {
      uint4 words[kAtOnce];
      bool missing;
      do {
        missing = false;
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
          const int i = i0 + 32 * u + lane, r = i >= places ? 1 : 0, piece = i - r * places;
          words[u] = make_uint4(0, 0, 0, 0);
          if (i < count && piece < pieces) {
            words[u] = load_relaxed_pair(words_of(p, item.place_of(r)) + piece * 2);
            missing |= words[u].y == 0 || words[u].w == 0;
          }
        }
        missing = __ballot_sync(~0u, missing) != 0;
        if (missing) pause_thread();
      } while (missing);
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int i = i0 + 32 * u + lane;
        if (i >= count) break;
        reinterpret_cast<uint4*>(block.shared + p.rows_at)[first_place * places + i] =
            make_uint4(e4m3x2_to_half2(words[u].x), e4m3x2_to_half2(words[u].x >> 16),
                       e4m3x2_to_half2(words[u].z), e4m3x2_to_half2(words[u].z >> 16));
        if ((i & 3) == 0)
          reinterpret_cast<uint32_t*>(block.shared + p.row_scales_at)[(first_place * places + i) / 4] =
              words[u].y;
      }
    }
    __syncwarp();
    barrier_arrive(block.rows_full + turn_place(n, p.place_shift));
  }
}

}  // namespace spark::engine::cuda
