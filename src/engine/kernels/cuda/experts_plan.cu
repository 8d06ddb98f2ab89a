// The work list of the routed experts: assignments (row, slot) sorted by expert, up to kExpertRows of one
// expert an item; the weights of an expert with more are read again, from L2. (The streaming kernel makes the
// list of few rows itself, see experts_list.cuh.)
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/route.cuh"
#include "engine/kernels/cuda/sm121/launch.h"

namespace spark::engine::cuda {
namespace {

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

struct PlanParams {
  const int32_t* ids;
  const int32_t* sequence;
  const float* weights;
  const uint8_t* x_scales;  // of the launch's first row
  int rows;
  int top_k;
  int experts;
  int x_blocks;
  ExpertWorkspace work;
  RouteParams route;
};

constexpr int kRouteRowsAtOnce = 8;

// The rows' scales as words of four, one for each 128 columns; zero beyond the last.
__device__ __forceinline__ void copy_row_scales(const PlanParams& p) {
  if (p.work.x_scales == nullptr) return;
  const int stages = (p.x_blocks + 3) / 4;
  for (int i = static_cast<int>(threadIdx.x); i < p.rows * stages; i += kPlanThreads) {
    const int m = i / stages, first = (i - m * stages) * 4;
    const uint8_t* from = p.x_scales + m * p.x_blocks + first;
    uint32_t word = 0;
#pragma unroll
    for (int b = 0; b < 4; ++b) word |= (first + b < p.x_blocks ? uint32_t{from[b]} : 0u) << (8 * b);
    p.work.x_scales[i] = word;
  }
}

// Many rows: a histogram over the experts and two scans.
__global__ void __launch_bounds__(kPlanThreads, 1) plan_kernel(const __grid_constant__ PlanParams p) {
  __shared__ int count[kMaxPlanExperts];
  __shared__ int start[kMaxPlanExperts];
  __shared__ int first_item[kMaxPlanExperts];
  __shared__ int scratch[kPlanThreads / 32];
  launch_dependents();
  wait_for_inputs();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kMaxPlanExperts) count[thread] = 0;
  const int assignments = p.rows * p.top_k;
  int expert = -1, rank = 0, row = 0;
  float weight = 0.0f;
  if (thread < assignments) {
    row = thread / p.top_k;
    weight = p.weights[thread];
    if (p.sequence[row] >= 0) {
      expert = p.ids[thread];
      for (int k = 0; k < p.top_k; ++k) rank += p.ids[row * p.top_k + k] < expert;
      if (expert >= p.experts) expert = -1;
    }
  }
  __syncthreads();
  const int place = expert >= 0 ? atomicAdd(&count[expert], 1) : 0;
  __syncthreads();
  int all = 0;
  const int mine = thread < kMaxPlanExperts ? count[thread] : 0;
  const int first = exclusive_scan(mine, scratch, &all);
  int items = 0;
  int item = exclusive_scan((mine + kExpertRows - 1) / kExpertRows, scratch, &items);
  if (thread < kMaxPlanExperts) start[thread] = first, first_item[thread] = item;
  for (int done = 0; done < mine; done += kExpertRows, ++item) {
    const int rows = min(kExpertRows, mine - done);
    p.work.items[item] = {thread, first + done, rows, 0};
    for (int i = rows; i < kExpertRows; ++i) p.work.item_row[item * kExpertRows + i] = -1;
  }
  if (thread == 0) *p.work.item_count = items;
  __syncthreads();
  if (expert >= 0) {
    const int slot = first_item[expert] * kExpertRows + place;  // items of an expert lie side by side
    p.work.item_row[slot] = row;
    p.work.item_weight[slot] = weight;
    p.work.destination[start[expert] + place] = row * p.top_k + rank;
  }
  copy_row_scales(p);
}

struct PrefillPlanParams {
  const int32_t* ids;
  const int32_t* sequence;
  const float* weights;
  int rows;
  int top_k;
  int experts;
  PrefillExperts work;
};

// A prompt's rows: assignments sorted by expert, cut into items of about equal size, whole eights of rows but
// for an expert's last. In what order an expert's rows come is left to chance and changes no bit: each is a
// column of its own of the products.
__global__ void __launch_bounds__(kPlanThreads, 1)
    prefill_plan_kernel(const __grid_constant__ PrefillPlanParams p) {
  __shared__ int count[kMaxPlanExperts];
  __shared__ int next[kMaxPlanExperts];
  __shared__ int scratch[kPlanThreads / 32];
  launch_dependents();
  wait_for_inputs();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kMaxPlanExperts) count[thread] = 0;
  __syncthreads();
  const int assignments = p.rows * p.top_k;
  const auto expert_of = [&](int i) {
    const int expert = p.ids[i];
    return p.sequence[i / p.top_k] >= 0 && expert < p.experts ? expert : -1;
  };
  for (int i = thread; i < assignments; i += kPlanThreads) {
    const int expert = expert_of(i);
    if (expert >= 0) atomicAdd(&count[expert], 1);
  }
  __syncthreads();
  const int mine = thread < kMaxPlanExperts ? count[thread] : 0;
  const int own_items = (mine + kPrefillItemRows - 1) / kPrefillItemRows;
  int all = 0, all_items = 0;
  const int first = exclusive_scan(mine, scratch, &all);
  const int first_own = exclusive_scan(own_items, scratch, &all_items);
  if (thread < kMaxPlanExperts) next[thread] = first;
  if (thread == 0) *p.work.item_count = all_items;
  const int each = own_items == 0 ? 0 : ((mine + own_items - 1) / own_items + 7) / 8 * 8;
  for (int done = 0, item = first_own; done < mine; done += each, ++item)
    p.work.items[item] = {thread, first + done, min(each, mine - done), 0};
  __syncthreads();
  for (int i = thread; i < assignments; i += kPlanThreads) {
    const int expert = expert_of(i);
    if (expert < 0) continue;
    const int row = i / p.top_k;
    int rank = 0;
    for (int k = 0; k < p.top_k; ++k) rank += p.ids[row * p.top_k + k] < expert;
    const int at = atomicAdd(&next[expert], 1);
    p.work.row[at] = row;
    p.work.weight[at] = p.weights[i];
    p.work.destination[at] = row * p.top_k + rank;
  }
}

// The router and the work list of a decode step's few rows in one launch: rows are scored by all threads and
// chosen by a warp each; the list is sorted by comparing every assignment with every other.
__global__ void __launch_bounds__(kPlanThreads, 1) route_plan_kernel(const __grid_constant__ PlanParams p) {
  __shared__ float score[kRouteRowsAtOnce][kMaxRouteExperts];
  __shared__ uint32_t order[kRouteRowsAtOnce][kMaxRouteExperts];
  __shared__ int chosen[kPlanThreads];
  __shared__ int places[kPlanThreads];
  launch_dependents();
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread & 31;
  wait_for_inputs();
  copy_row_scales(p);
  const int assignments = p.rows * p.top_k;
  float weight = 0.0f;
  for (int row0 = 0; row0 < p.rows; row0 += kRouteRowsAtOnce) {
    const int rows = min(kRouteRowsAtOnce, p.rows - row0);
    constexpr int kEach = kRouteRowsAtOnce * kMaxRouteExperts / kPlanThreads;
    constexpr int kRowStep = kPlanThreads / kMaxRouteExperts;
    const int column = thread % kMaxRouteExperts;
    RouteInput in[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int r = i * kRowStep + thread / kMaxRouteExperts;
      in[i] = r < rows ? read_expert(p.route, row0 + r, column) : RouteInput{0.0f, 0.0f};
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int r = i * kRowStep + thread / kMaxRouteExperts;
      if (r < rows) score_expert(p.route, in[i], column, score[r], order[r]);
    }
    __syncthreads();
    if (warp < rows) {
      const bool live = p.sequence[row0 + warp] >= 0;
      const RouteChoice choice = choose_experts(p.route, score[warp], order[warp]);
      if (lane < p.top_k) {
        const int at = (row0 + warp) * p.top_k + lane;
        chosen[at] = live ? choice.expert : -1;
        score[warp][lane] = choice.weight;
        if (live) p.route.ids[at] = choice.expert, p.route.weights[at] = choice.weight;
      }
    }
    __syncthreads();
    const int mine = thread / p.top_k - row0;
    if (mine >= 0 && mine < rows) weight = score[mine][thread % p.top_k];
    if (row0 + kRouteRowsAtOnce < p.rows) __syncthreads();
  }
  const int expert = thread < assignments ? chosen[thread] : -1;
  // Places before this one: assignments of lower experts, and of the same expert with a lower number.
  int lower = 0, place = 0, same = 0;
  if (expert >= 0) {
#pragma unroll 4
    for (int j = 0; j < assignments; ++j) {
      const int other = chosen[j];
      lower += other >= 0 && other < expert;
      same += other == expert;
      place += other == expert && j < thread;
    }
  }
  // An item begins at every eighth assignment of an expert.
  if (thread < assignments)
    places[thread] = expert >= 0 && place % kExpertRows == 0 ? expert : kMaxPlanExperts;
  __syncthreads();
  int items_below = 0, items = 0;
  if (thread < assignments) {
#pragma unroll 4
    for (int j = 0; j < assignments; ++j) {
      items_below += places[j] < expert;
      items += places[j] < kMaxPlanExperts;
    }
  }
  if (thread == 0) *p.work.item_count = items;
  if (expert < 0) return;
  const int row = thread / p.top_k;
  int rank = 0;
  for (int k = 0; k < p.top_k; ++k) rank += chosen[row * p.top_k + k] < expert;
  const int item = items_below + place / kExpertRows;
  const int slot = place % kExpertRows;
  if (slot == 0) {
    const int rows = min(kExpertRows, same - place);
    p.work.items[item] = {expert, lower + place, rows, 0};
    for (int i = rows; i < kExpertRows; ++i) p.work.item_row[item * kExpertRows + i] = -1;
  }
  p.work.item_row[item * kExpertRows + slot] = row;
  p.work.item_weight[item * kExpertRows + slot] = weight;
  p.work.destination[lower + place] = row * p.top_k + rank;
}

}  // namespace

void launch_expert_plan(const Launch& on, const ExpertsArgs& args, int first_row, int rows, int experts,
                        const ExpertWorkspace& work, const RouteArgs* route) {
  if (experts > kMaxPlanExperts || rows * args.top_k > kPlanThreads) {
    throw Error(std::to_string(experts) + " experts, top " + std::to_string(args.top_k), "CUDA backend",
                "at most 512 experts and top 10");
  }
  PlanParams p = {};
  p.ids = args.ids + static_cast<int64_t>(first_row) * args.top_k;
  p.sequence = args.step.sequence + first_row;
  p.weights = args.weights + static_cast<int64_t>(first_row) * args.top_k;
  p.x_scales = args.x_q.scales + static_cast<int64_t>(first_row) * (args.hidden / 32);
  p.rows = rows;
  p.top_k = args.top_k;
  p.experts = experts;
  p.x_blocks = args.hidden / 32;
  p.work = work;
  if (route != nullptr) {
    p.route = route_params(*route);
    launch_kernel(on, route_plan_kernel, dim3(1), kPlanThreads, 0, 1, p);
  } else {
    launch_kernel(on, plan_kernel, dim3(1), kPlanThreads, 0, 1, p);
  }
}

void launch_prefill_plan(const Launch& on, const ExpertsArgs& args, int first_row, int rows, int experts,
                         const PrefillExperts& work) {
  const PrefillPlanParams p = {.ids = args.ids + static_cast<int64_t>(first_row) * args.top_k,
                               .sequence = args.step.sequence + first_row,
                               .weights = args.weights + static_cast<int64_t>(first_row) * args.top_k,
                               .rows = rows,
                               .top_k = args.top_k,
                               .experts = experts,
                               .work = work};
  launch_kernel(on, prefill_plan_kernel, dim3(1), kPlanThreads, 0, 1, p);
}

bool prefill_experts_fit(const DeviceLimits& device, const ExpertsArgs& args, const PreparedExperts& bank) {
  constexpr size_t kReserved = 1024;
  if (device.block_scaled_mma)
    return bank.experts <= kMaxPlanExperts && sm121::prefill_experts_fit(device, bank);
  return bank.experts <= kMaxPlanExperts && expert_stream_fits(device, args, bank) &&
         prefill_gate_up_shared_bytes() + kReserved <= device.shared_bytes &&
         prefill_down_shared_bytes(bank) + kReserved <= device.shared_bytes;
}

}  // namespace spark::engine::cuda
