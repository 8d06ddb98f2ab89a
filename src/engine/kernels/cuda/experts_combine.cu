// The sum of a row's routed experts, after experts_stream.cu.
#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"

namespace spark::engine::cuda {
namespace {

constexpr int kCombineThreads = 128;

// Adds a row's expert outputs in ascending order of the experts, then the shared expert's: a thread takes
// four channels.
__global__ void __launch_bounds__(kCombineThreads)
    combine_kernel(const uint16_t* shared_expert, const int32_t* sequence,
                   int hidden, int top_k, ExpertWorkspace work, uint16_t* y) {
  constexpr int kSlots = 8;
  launch_dependents();
  const int64_t row = blockIdx.y;
  const int channel = static_cast<int>(blockIdx.x * kCombineThreads + threadIdx.x) * 4;
  wait_for_inputs();
  if (blockIdx.x == 0) {
    for (int k = static_cast<int>(threadIdx.x); k < top_k; k += kCombineThreads)
      work.item_done[row * top_k + k] = 0;
  }
  if (channel >= hidden || sequence[row] < 0) return;
  const int64_t at = row * hidden + channel;
  float total[4] = {};
  for (int k0 = 0; k0 < top_k; k0 += kSlots) {
    uint2 v[kSlots];
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      v[k] = make_uint2(0, 0);
      if (k0 + k < top_k)
        v[k] = *reinterpret_cast<const uint2*>(work.outputs + (row * top_k + k0 + k) * hidden + channel);
    }
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      if (k0 + k >= top_k) break;
      total[0] += bf16_low(v[k].x), total[1] += bf16_high(v[k].x);
      total[2] += bf16_low(v[k].y), total[3] += bf16_high(v[k].y);
    }
  }
  while (static_cast<int32_t>(load_acquire(work.shared_done) - *work.shared_wanted) < 0) pause_thread();
  const uint2 last = load_shared_by_blocks(reinterpret_cast<const uint2*>(shared_expert + at));
  *reinterpret_cast<uint2*>(y + at) =
      make_uint2(pack_bf16(total[0] + bf16_low(last.x), total[1] + bf16_high(last.x)),
                 pack_bf16(total[2] + bf16_low(last.y), total[3] + bf16_high(last.y)));
}

}  // namespace

void launch_expert_combine(const Launch& on, const ExpertsArgs& args, int first_row, int rows,
                           const ExpertWorkspace& work, const uint16_t* shared) {
  const auto blocks = static_cast<unsigned>(ceil_div(args.hidden, kCombineThreads * 4));
  launch_kernel(on, combine_kernel, dim3(blocks, static_cast<unsigned>(rows)), kCombineThreads, 0, 1,
                shared, args.step.sequence + first_row, args.hidden, args.top_k, work,
                args.y + static_cast<int64_t>(first_row) * args.hidden);
}

}  // namespace spark::engine::cuda
