// The router.
#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"

namespace spark::engine::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxExperts = 512;
constexpr int kPerLane = kMaxExperts / 32;

__device__ __forceinline__ float router_score(float z) {
  return sqrtf(z > 20.0f ? z : log1pf(expf(z)));
}

// Orders like the value, as an unsigned number above 0; both zeros are equal and a NaN loses to everything.
__device__ __forceinline__ uint32_t ordered(float v) {
  const uint32_t bits = __float_as_uint(v == 0.0f ? 0.0f : v);
  return v != v ? 1u : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// One block per row: all threads score, then one warp picks.
__global__ void __launch_bounds__(kThreads)
    route_kernel(const float* logits, const float* bias, const float* image_bias, const uint8_t* is_image,
                 const int32_t* sequence, int experts, int top_k, float scale, bool normalise, int32_t* ids,
                 float* weights) {
  __shared__ float score[kMaxExperts];
  __shared__ uint32_t rank[kMaxExperts];
  launch_dependents();
  wait_for_inputs();
  const int64_t row = blockIdx.x;
  if (sequence[row] < 0) return;
  const float* steer = image_bias != nullptr && is_image != nullptr && is_image[row] != 0 ? image_bias : bias;
#pragma unroll
  for (int i = 0; i < kMaxExperts / kThreads; ++i) {
    const int e = i * kThreads + static_cast<int>(threadIdx.x);
    float s = 0.0f;
    uint32_t r = 0;  // no expert
    if (e < experts) {
      s = router_score(logits[row * experts + e]);
      r = ordered(s + steer[e]);
    }
    score[e] = s;
    rank[e] = r;
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const int lane = static_cast<int>(threadIdx.x);
  uint32_t mine[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) mine[i] = rank[i * 32 + lane];
  int chosen = 0;  // lane k keeps choice k
  for (int k = 0; k < top_k; ++k) {
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
  const float chosen_score = lane < top_k ? score[chosen] : 0.0f;
  float total = 0.0f;
  for (int k = 0; k < top_k; ++k) total += __shfl_sync(~0u, chosen_score, k);
  if (lane < top_k) {
    const float w = normalise ? chosen_score / (total + 1e-20f) : chosen_score;
    ids[row * top_k + lane] = chosen;
    weights[row * top_k + lane] = w * scale;
  }
}

}  // namespace

void launch_route(const Launch& on, const RouteArgs& args) {
  if (args.experts > kMaxExperts || args.top_k > 32 || args.top_k > args.experts) {
    throw Error("router with " + std::to_string(args.experts) + " experts, top " + std::to_string(args.top_k),
                "CUDA backend", "at most 512 experts and top 32");
  }
  launch_kernel(on, route_kernel, dim3(static_cast<unsigned>(args.step.rows)), kThreads, 0, 1, args.logits,
                args.bias, args.image_bias, args.step.is_image, args.step.sequence, args.experts, args.top_k,
                args.scale, args.normalise, args.ids, args.weights);
}

}  // namespace spark::engine::cuda
