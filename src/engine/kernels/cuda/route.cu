// The router: one warp per row.
#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"

namespace spark::engine::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxExperts = 512;

__device__ __forceinline__ float router_score(float z) {
  return sqrtf(z > 20.0f ? z : log1pf(expf(z)));
}

__global__ void __launch_bounds__(kWarps * 32)
    route_kernel(const float* logits, const float* bias, const float* image_bias, const uint8_t* is_image,
                 const int32_t* sequence, int rows, int experts, int top_k, float scale, bool normalise,
                 int32_t* ids, float* weights) {
  launch_dependents();
  wait_for_inputs();
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x & 31);
  if (row >= rows || sequence[row] < 0) return;
  const float* steer = image_bias != nullptr && is_image != nullptr && is_image[row] != 0 ? image_bias : bias;
  float score[kMaxExperts / 32];
  float biased[kMaxExperts / 32];
  uint32_t taken = 0;
#pragma unroll
  for (int i = 0; i < kMaxExperts / 32; ++i) {
    const int e = i * 32 + lane;
    score[i] = e < experts ? router_score(logits[static_cast<int64_t>(row) * experts + e]) : 0.0f;
    biased[i] = e < experts ? score[i] + steer[e] : 0.0f;
    if (biased[i] != biased[i]) biased[i] = -INFINITY;  // a NaN loses to everything
    if (e >= experts) taken |= 1u << i;
  }
  float chosen_score = 0.0f;  // lane k keeps choice k
  int chosen = 0;
  for (int k = 0; k < top_k; ++k) {
    float best = 0.0f, best_score = 0.0f;
    int best_expert = kMaxExperts;
#pragma unroll
    for (int i = 0; i < kMaxExperts / 32; ++i) {
      if ((taken >> i & 1u) == 0 && (best_expert == kMaxExperts || biased[i] > best)) {
        best = biased[i], best_score = score[i], best_expert = i * 32 + lane;
      }
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      const float other = __shfl_xor_sync(~0u, best, offset);
      const float other_score = __shfl_xor_sync(~0u, best_score, offset);
      const int other_expert = __shfl_xor_sync(~0u, best_expert, offset);
      const bool better =
          best_expert == kMaxExperts || other > best || (other == best && other_expert < best_expert);
      if (other_expert != kMaxExperts && better)
        best = other, best_score = other_score, best_expert = other_expert;
    }
    if ((best_expert & 31) == lane) taken |= 1u << (best_expert / 32);
    if (lane == k) chosen = best_expert, chosen_score = best_score;
  }
  float total = 0.0f;
  for (int k = 0; k < top_k; ++k) total += __shfl_sync(~0u, chosen_score, k);
  if (lane < top_k) {
    const float w = normalise ? chosen_score / (total + 1e-20f) : chosen_score;
    ids[static_cast<int64_t>(row) * top_k + lane] = chosen;
    weights[static_cast<int64_t>(row) * top_k + lane] = w * scale;
  }
}

}  // namespace

void launch_route(const Launch& on, const RouteArgs& args) {
  if (args.experts > kMaxExperts || args.top_k > 32 || args.top_k > args.experts) {
    throw Error("router with " + std::to_string(args.experts) + " experts, top " + std::to_string(args.top_k),
                "CUDA backend", "at most 512 experts and top 32");
  }
  launch_kernel(on, route_kernel, dim3(static_cast<unsigned>(ceil_div(args.step.rows, kWarps))), kWarps * 32,
                0, 1, args.logits, args.bias, args.image_bias, args.step.is_image, args.step.sequence,
                args.step.rows, args.experts, args.top_k, args.scale, args.normalise, args.ids, args.weights);
}

}  // namespace spark::engine::cuda
