// The router's arithmetic: scores, their order, and one warp's choice for a row.
#pragma once

#include "engine/kernels/cuda/device.cuh"

namespace spark::engine::cuda {

constexpr int kMaxRouteExperts = 512;

struct RouteParams {
  const float* logits;
  const float* bias;
  const float* image_bias;
  const uint8_t* is_image;
  const int32_t* sequence;
  int experts;
  int top_k;
  float scale;
  bool normalise;
  int32_t* ids;
  float* weights;
};

__device__ __forceinline__ float router_score(float z) {
  return sqrtf(z > 20.0f ? z : log1pf(expf(z)));
}

// Orders like the value, as an unsigned number above 0; both zeros are equal and a NaN loses to everything.
__device__ __forceinline__ uint32_t ordered(float v) {
  const uint32_t bits = __float_as_uint(v == 0.0f ? 0.0f : v);
  return v != v ? 1u : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ void score_expert(const RouteParams& p, int64_t row, int expert, float* score,
                                             uint32_t* rank) {
  const bool image = p.image_bias != nullptr && p.is_image != nullptr && p.is_image[row] != 0;
  float s = 0.0f;
  uint32_t r = 0;  // no expert
  if (expert < p.experts) {
    s = router_score(p.logits[row * p.experts + expert]);
    r = ordered(s + (image ? p.image_bias : p.bias)[expert]);
  }
  score[expert] = s;
  rank[expert] = r;
}

// The row's best experts in descending order, by one warp: lane k returns choice k and its weight.
struct RouteChoice {
  int expert;
  float weight;
};
__device__ __forceinline__ RouteChoice choose_experts(const RouteParams& p, const float* score,
                                                      const uint32_t* rank) {
  constexpr int kPerLane = kMaxRouteExperts / 32;
  const int lane = static_cast<int>(threadIdx.x & 31);
  uint32_t mine[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) mine[i] = rank[i * 32 + lane];
  int chosen = 0;  // lane k keeps choice k
  for (int k = 0; k < p.top_k; ++k) {
    uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) best = max(best, mine[i]);
    best = __reduce_max_sync(~0u, best);
    uint32_t expert = ~0u;
#pragma unroll
    for (int i = kPerLane - 1; i >= 0; --i) {
      if (mine[i] == best) expert = static_cast<uint32_t>(i * 32 + lane);
    }
    expert = __reduce_min_sync(~0u, expert);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (expert == static_cast<uint32_t>(i * 32 + lane)) mine[i] = 0;
    }
    if (lane == k) chosen = static_cast<int>(expert);
  }
  const float chosen_score = lane < p.top_k ? score[chosen] : 0.0f;
  float total = 0.0f;
  for (int k = 0; k < p.top_k; ++k) total += __shfl_sync(~0u, chosen_score, k);
  const float w = p.normalise ? chosen_score / (total + 1e-20f) : chosen_score;
  return {chosen, w * p.scale};
}

}  // namespace spark::engine::cuda
