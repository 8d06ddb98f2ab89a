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

// What an expert's score is made of: read first, several at once, then used.
struct RouteInput {
  float logit, bias;
};
__device__ __forceinline__ RouteInput read_expert(const RouteParams& p, int64_t row, int expert) {
  if (expert >= p.experts) return {0.0f, 0.0f};
  // No read waits for another one.
  const float logit = p.logits[row * p.experts + expert];
  float bias = p.bias[expert];
  if (p.image_bias != nullptr && p.is_image != nullptr) {
    const float of_image = p.image_bias[expert];
    if (p.is_image[row] != 0) bias = of_image;
  }
  return {logit, bias};
}
__device__ __forceinline__ void score_expert(const RouteParams& p, const RouteInput& in, int expert,
                                             float* score, uint32_t* rank) {
  const float s = expert < p.experts ? router_score(in.logit) : 0.0f;
  score[expert] = s;
  rank[expert] = expert < p.experts ? ordered(s + in.bias) : 0u;  // 0: no expert
}

struct RouteChoice {
  int expert;
  float weight;
};
// Lane k has choice k of a row and its score; returns its weight with it.
__device__ __forceinline__ RouteChoice weigh_choice(const RouteParams& p, int chosen, float chosen_score) {
  float total = 0.0f;
  for (int k = 0; k < p.top_k; ++k) total += __shfl_sync(~0u, chosen_score, k);
  const float w = p.normalise ? chosen_score / (total + 1e-20f) : chosen_score;
  return {chosen, w * p.scale};
}

// The row's best experts in descending order, by one warp: lane k returns choice k and its weight.
__device__ __forceinline__ RouteChoice choose_experts(const RouteParams& p, const float* score,
                                                      const uint32_t* rank) {
  constexpr int kPerLane = kMaxRouteExperts / 32;
  const int lane = static_cast<int>(threadIdx.x & 31);
  uint32_t mine[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) mine[i] = rank[i * 32 + lane];
  int chosen = 0;  // lane k keeps choice k
  // A lane's best that is still free, and which: the lowest of equals.
  uint32_t own = 0, own_expert = 0;
  const auto find_own = [&] {
    uint32_t value[kPerLane / 2];
    int at[kPerLane / 2];
#pragma unroll
    for (int i = 0; i < kPerLane / 2; ++i) {
      const bool later = mine[2 * i + 1] > mine[2 * i];
      value[i] = later ? mine[2 * i + 1] : mine[2 * i];
      at[i] = later ? 2 * i + 1 : 2 * i;
    }
#pragma unroll
    for (int n = kPerLane / 4; n > 0; n /= 2) {
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const bool later = value[2 * i + 1] > value[2 * i];
        value[i] = later ? value[2 * i + 1] : value[2 * i];
        at[i] = later ? at[2 * i + 1] : at[2 * i];
      }
    }
    own = value[0];
    own_expert = static_cast<uint32_t>(at[0] * 32 + lane);
  };
  find_own();
  for (int k = 0; k < p.top_k; ++k) {
    const uint32_t best = __reduce_max_sync(~0u, own);
    const uint32_t expert = __reduce_min_sync(~0u, own == best ? own_expert : ~0u);
    if (lane == k) chosen = static_cast<int>(expert);
    if (expert == own_expert && k + 1 < p.top_k) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        if (expert == static_cast<uint32_t>(i * 32 + lane)) mine[i] = 0;
      }
      find_own();
    }
  }
  return weigh_choice(p, chosen, lane < p.top_k ? score[chosen] : 0.0f);
}

}  // namespace spark::engine::cuda
