// The router.
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/route.cuh"

namespace spark::engine::cuda {
namespace {

constexpr int kThreads = kMaxRouteExperts;  // an expert each

// One block per row: every thread scores an expert, then one warp picks.
__global__ void __launch_bounds__(kThreads) route_kernel(const __grid_constant__ RouteParams p) {
  __shared__ float score[kMaxRouteExperts];
  __shared__ uint32_t rank[kMaxRouteExperts];
  launch_dependents();
  const int64_t row = blockIdx.x;
  const int expert = static_cast<int>(threadIdx.x);
  // The first time through is a rehearsal while the logits do not exist yet: it brings the instructions into
  // the caches.
  RouteChoice choice = {};
  int32_t sequence = 0;
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    RouteInput in = {};
    if (pass == 1) {
      wait_for_inputs();
      in = read_expert(p, row, expert);
      sequence = p.sequence[row];
    }
    score_expert(p, in, expert, score, rank);
    __syncthreads();
    if (threadIdx.x < 32) choice = choose_experts(p, score, rank);
    __syncthreads();
  }
  if (threadIdx.x >= 32 || sequence < 0) return;
  const int lane = static_cast<int>(threadIdx.x);
  if (lane < p.top_k) {
    p.ids[row * p.top_k + lane] = choice.expert;
    p.weights[row * p.top_k + lane] = choice.weight;
  }
}

}  // namespace

void launch_route(const Launch& on, const RouteArgs& args) {
  launch_kernel(on, route_kernel, dim3(static_cast<unsigned>(args.step.rows)), kThreads, 0, 1,
                route_params(args));
}

RouteParams route_params(const RouteArgs& args) {
  if (args.experts > kMaxRouteExperts || args.top_k > 32 || args.top_k > args.experts) {
    throw Error("router with " + std::to_string(args.experts) + " experts, top " + std::to_string(args.top_k),
                "CUDA backend", "at most 512 experts and top 32");
  }
  return {.logits = args.logits,
          .bias = args.bias,
          .image_bias = args.image_bias,
          .is_image = args.step.is_image,
          .sequence = args.step.sequence,
          .experts = args.experts,
          .top_k = args.top_k,
          .scale = args.scale,
          .normalise = args.normalise,
          .ids = args.ids,
          .weights = args.weights};
}

}  // namespace spark::engine::cuda
