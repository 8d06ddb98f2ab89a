// The sum of a row's routed experts and the shared one, behind kernels that leave it to this one.
#include "engine/kernels/cuda/experts_parts.cuh"

namespace spark::engine::cuda {
namespace {

constexpr int kCombineThreads = 128;
constexpr int kCombineChannels = 2;  // of a thread

// Adds a row's expert outputs in ascending order of the experts, then the shared expert's: a thread takes
// two channels. `word_pairs`: of a row.
// 32 registers, so that a block finds room beside one of the streaming kernel, whose warps take all but a
// warp's of a quarter of a multiprocessor, and stands ready when that one ends.
__global__ void __launch_bounds__(kCombineThreads, 16)
    combine_kernel(const uint16_t* shared_expert, const int32_t* sequence, int hidden, int top_k,
                   int word_pairs, ExpertWorkspace work, uint16_t* y) {
  launch_dependents();
  const int64_t row = blockIdx.y;
  const int first = static_cast<int>(blockIdx.x * kCombineThreads + threadIdx.x);
  const int channel = first * kCombineChannels;
  // Rows of the step need no wait, and where things lie is known.
  const bool writes = channel < hidden && sequence[row] >= 0;
  const int64_t at = row * hidden + channel;
  const uint16_t* from = opaque(work.outputs + row * top_k * hidden + channel);
  wait_for_inputs();
  if (writes) {
    constexpr int kSlots = 6;
    const uint32_t last = *reinterpret_cast<const uint32_t*>(shared_expert + at);
    float low = 0.0f, high = 0.0f;
#pragma unroll 1
    for (int left = top_k; left > 0; left -= kSlots, from += kSlots * hidden) {
      // What is behind the last one is the last one again: reads without a condition are all under way at
      // once.
      uint32_t v[kSlots];
#pragma unroll
      for (int k = 0; k < kSlots; ++k)
        v[k] = load_shared_by_blocks(reinterpret_cast<const uint32_t*>(from + min(k, left - 1) * hidden));
#pragma unroll
      for (int k = 0; k < kSlots; ++k) {
        if (k < left) low += bf16_low(v[k]), high += bf16_high(v[k]);
      }
    }
    const uint32_t own = opaque(last);  // not used, and so not waited for, before the others are asked for
    *reinterpret_cast<uint32_t*>(y + at) = pack_bf16(low + bf16_low(own), high + bf16_high(own));
  }
#pragma unroll 1
  for (int i = first; i < word_pairs; i += static_cast<int>(gridDim.x) * kCombineThreads)
    reinterpret_cast<uint4*>(work.words)[row * word_pairs + i] = make_uint4(0, 0, 0, 0);
}

}  // namespace

void launch_expert_combine(const Launch& on, const ExpertsArgs& args, int first_row, int rows,
                           const ExpertWorkspace& work, const uint16_t* shared) {
  const auto blocks = static_cast<unsigned>(ceil_div(args.hidden, kCombineThreads * kCombineChannels));
  // Only the streaming kernel leaves words.
  const int word_pairs = work.words != nullptr ? args.top_k * args.width / 8 : 0;
  launch_kernel(on, combine_kernel, dim3(blocks, static_cast<unsigned>(rows)), kCombineThreads, 0, 1, shared,
                args.step.sequence + first_row, args.hidden, args.top_k, word_pairs, work,
                args.y + static_cast<int64_t>(first_row) * args.hidden);
}

}  // namespace spark::engine::cuda
