// The router.
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/route.cuh"

namespace spark::engine::cuda {
namespace {

constexpr int kThreads = kMaxRouteExperts;  // an expert each
constexpr int kWarps = kThreads / 32;

// The experts of a row that may be among its best, when they are few.
struct Candidates {
  alignas(16) uint32_t best[kWarps];  // of each warp's experts
  uint32_t count;
  uint2 rank_expert[32];
  float score[32];
  int expert[32];  // in order
  float ordered_score[32];
};

// The top_k-th of the warps' bests: so many experts at least are as good, so the best ones are all as good.
// Two lanes count how many are before one warp's best, each among half of them. Whole warps must call.
__device__ __forceinline__ uint32_t good_enough(const RouteParams& p, const Candidates& c) {
  static_assert(kWarps == 16);
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int own = lane & 15, half = lane >> 4 << 3;
  const uint32_t mine = c.best[own];
  const uint4 low = *reinterpret_cast<const uint4*>(c.best + half);
  const uint4 high = *reinterpret_cast<const uint4*>(c.best + half + 4);
  const uint32_t others[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  int place = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) place += others[i] > mine || (others[i] == mine && half + i < own);
  place += __shfl_xor_sync(~0u, place, 16);
  const uint32_t owner = __ballot_sync(~0u, place + 1 == p.top_k);
  const uint32_t rank = __shfl_sync(~0u, mine, max(__ffs(owner) - 1, 0));
  return owner == 0 ? 1u : max(rank, 1u);
}

// The best of `count` candidates in descending order, by one warp: lane k returns choice k.
__device__ __forceinline__ RouteChoice order_candidates(const RouteParams& p, Candidates& c, int count) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const uint2 mine = c.rank_expert[lane];
  int place = 0;
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    const uint2 other = c.rank_expert[i];
    place += other.x > mine.x || (other.x == mine.x && other.y < mine.y);
  }
  if (lane < count && place < p.top_k) {
    c.expert[place] = static_cast<int>(mine.y);
    c.ordered_score[place] = c.score[lane];
  }
  __syncwarp();
  return weigh_choice(p, lane < p.top_k ? c.expert[lane] : 0, lane < p.top_k ? c.ordered_score[lane] : 0.0f);
}

// One block per row: every thread scores an expert; one warp puts the candidates in order by counting, for
// each, those before it. Where there are too many (equal scores), it takes the best one after the other.
__global__ void __launch_bounds__(kThreads) route_kernel(const __grid_constant__ RouteParams p) {
  __shared__ float score[kMaxRouteExperts];
  __shared__ uint32_t rank[kMaxRouteExperts];
  __shared__ Candidates found;
  launch_dependents();
  const int64_t row = blockIdx.x;
  const int expert = static_cast<int>(threadIdx.x);
  const int lane = expert & 31, warp = expert >> 5;
  // Biases come from memory, once a step, which takes longer than a logit from L2: they are asked for before
  // the rehearsal, both of them, and are there before the wait.
  const int in_range = min(expert, p.experts - 1);
  const bool two = p.image_bias != nullptr && p.is_image != nullptr;
  const float bias = __ldg(p.bias + in_range);
  const float of_image = __ldg((two ? p.image_bias : p.bias) + in_range);
  const int image = two ? p.is_image[row] : 0;
  const int32_t sequence = p.sequence[row];
  const float* const logit = opaque(p.logits + row * p.experts + in_range);
  // The first time through is a rehearsal while the logits do not exist yet: it brings the instructions into
  // the caches. (Its logits are such that there are few candidates.)
  RouteChoice choice = {};
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    RouteInput in = {static_cast<float>(expert * 37 % kMaxRouteExperts) * 0.015625f, 0.0f};
    if (threadIdx.x == 0) found.count = 0;
    if (pass == 1) {
      const float of_row[2] = {opaque(bias), opaque(of_image)};
      in.bias = opaque(image != 0 ? of_row[1] : of_row[0]);
      wait_for_inputs();
      in.logit = load_shared_by_blocks(logit);
    }
    score_expert(p, in, expert, score, rank);
    const uint32_t mine = rank[expert];
    const uint32_t best = __reduce_max_sync(~0u, mine);
    if (lane == 0) found.best[warp] = best;
    __syncthreads();
    const bool candidate = mine >= good_enough(p, found);
    const uint32_t candidates = __ballot_sync(~0u, candidate);
    if (candidates != 0) {
      uint32_t at = 0;
      if (lane == 0) at = atomicAdd(&found.count, static_cast<uint32_t>(__popc(candidates)));
      at = __shfl_sync(~0u, at, 0) + static_cast<uint32_t>(__popc(candidates & ((1u << lane) - 1)));
      if (candidate && at < 32) {
        found.rank_expert[at] = make_uint2(mine, static_cast<uint32_t>(expert));
        found.score[at] = score[expert];
      }
    }
    __syncthreads();
    if (warp == 0) {
      const int count = static_cast<int>(found.count);
      choice = count <= 32 ? order_candidates(p, found, count) : choose_experts(p, score, rank);
    }
    __syncthreads();
  }
  if (threadIdx.x >= 32 || sequence < 0) return;
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
