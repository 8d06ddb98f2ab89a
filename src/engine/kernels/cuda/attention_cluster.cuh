// What the blocks of a cluster share in sparse attention: what each has in its shared memory, and how maxima
// and sums of classes travel and are joined.
#pragma once

#include "engine/kernels/cuda/attention_chunk.cuh"
#include "engine/kernels/cuda/launch.h"

namespace spark::engine::cuda {

constexpr int kFewClusters = 8;  // of few_attention_kernel
constexpr int kFewBlocks = 16;   // of one of its clusters
constexpr int kPiece = 64;       // sums that travel together: eight heads, eight channels
constexpr int kRawStride = 576;  // of records that wait in the place of a decoded chunk

struct AttentionParams {
  SparseAttentionArgs a;
  EarlyRecords early;
  int owned_pieces = 0;                  // of a block, the last may have fewer
  uint32_t per_piece = 0;                // its reciprocal: 2^16 / owned_pieces, rounded up
  int window_shift = 0, main_shift = 0;  // records of a block, for few rows
};

// attention_few.cu, of heads of 512 channels and records on 16 bytes. False: not such a list or device.
bool launch_few_attention(const Launch& on, const SparseAttentionArgs& args, const EarlyRecords& early,
                          int chunks);

// kSplit: blocks a row. kBuffers: decoded chunks; with three, scores run a chunk ahead of values.
template <int kSplit>
constexpr int kAttentionRounds = kMaxChunks / kSplit;  // chunks a block, at most

template <int kSplit>
constexpr int kAttentionSets = kSplit == 2 ? 2 : 1;  // classes a block

template <int kSplit, int kBuffers>
struct AttentionShared {
  uint16_t kv[kBuffers][kChunk * kMaxWidth];
  uint16_t e[kHeads][kWeightStride];
  uint64_t arrived[kAttentionRounds<kSplit>];  // the maxima of a round
  uint64_t summed;                             // the sums
  uint64_t pushed;                             // values
  const uint8_t* record[kAttentionRounds<kSplit> * kChunk];
  uint32_t live[kAttentionRounds<kSplit> * 2], early[kAttentionRounds<kSplit> * 2];  // a bit a slot
  float step_factor[kHeads];  // of the chunk whose values are next
  float class_factor[kClasses][kHeads];
  // Of the block's classes so far: the running maximum at the last chunk, and the sum of weights.
  float class_max[kAttentionSets<kSplit>][kHeads];
  float class_sum[kAttentionSets<kSplit>][kHeads];
  float last_max[kHeads];
  float sink[kHeads];
  float inverse[kHeads];  // of the sum of weights, with the records' shift taken back
  float angles[kMaxWidth];
  // Written by the blocks of the cluster.
  float maxima[kMaxChunks + kClasses][kHeads];
  float sums[kSplit][kHeads];
  alignas(16) float parts[4][kHeads][kPartStride];
};

// The maximum of chunks 0 .. lane, for head `warp`.
__device__ __forceinline__ float running_maxima(const float (*maxima)[kHeads], int chunks) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  float m = kInitialMax;
  if (lane < chunks) m = fmaxf(m, maxima[lane][threadIdx.x / 32]);
#pragma unroll
  for (int offset = 1; offset < kMaxChunks; offset *= 2) {
    const float before = __shfl_up_sync(~0u, m, offset);
    if (lane >= offset) m = fmaxf(m, before);
  }
  return m;
}

// Every piece goes to the block that finishes it. A lane has channels t and t + 4 of heads g and g + 8; two
// side by side make four channels of one head each: 0, 1, 4, 5 or 2, 3, 6, 7 of a unit.
__device__ __forceinline__ void push_sums(const AttentionParams& params, const ValueSums& sums, int part,
                                          float* received, uint64_t* counted) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int t = lane & 3;
  const bool odd = (t & 1) != 0;
#pragma unroll
  for (int j = 0; j < kLaneUnits; ++j) {
    const int unit = static_cast<int>(threadIdx.x / 32) * kLaneUnits + j;
    if (unit * kUnitChannels >= params.a.width) return;
    const float(&v)[4] = sums.unit[j];
    const float r0 = __shfl_xor_sync(~0u, odd ? v[0] : v[2], 1);
    const float r1 = __shfl_xor_sync(~0u, odd ? v[1] : v[3], 1);
    const int piece = unit * 2 + (t & 1);
    const int owner = static_cast<int>(static_cast<uint32_t>(piece) * params.per_piece >> 16);
    float* to = received + (part * params.owned_pieces + piece - owner * params.owned_pieces) * kPiece;
    store_cluster_async(reinterpret_cast<float4*>(to + (lane >> 2) * 8 + (t >> 1) * 4), counted,
                        static_cast<uint32_t>(owner),
                        odd ? make_float4(r0, v[2], r1, v[3]) : make_float4(v[0], r0, v[1], r1));
  }
}

// Joins what the blocks have for one thing of a head: `part(r)` of block r.
template <int kSplit, class S, class Part>
__device__ __forceinline__ float2 join(const S& s, int head, Part&& part) {
  if constexpr (kSplit == 2) {
    const float2 even = part(0), odd = part(1);
    return make_float2(even.x + odd.x, even.y + odd.y);
  } else {
    float2 sum[kClasses];
    float by[kClasses];
#pragma unroll
    for (int c = 0; c < kClasses; ++c) sum[c] = part(c), by[c] = s.class_factor[c][head];
    return join_four(sum, by);
  }
}

}  // namespace spark::engine::cuda
