// The sum of a row's routed experts and the shared one, behind kernels that leave it to this one.
#include "engine/kernels/cuda/experts_parts.cuh"

namespace spark::engine::cuda {
namespace {

constexpr int kCombineThreads = 128;

// Adds a row's expert outputs in ascending order of the experts, then the shared expert's: a thread takes
// four channels. `word_pairs`: of a row.
__global__ void __launch_bounds__(kCombineThreads)
    combine_kernel(const uint16_t* shared_expert, const int32_t* sequence, int hidden, int top_k,
                   int word_pairs, ExpertWorkspace work, uint16_t* y) {
  launch_dependents();
  const int64_t row = blockIdx.y;
  const int channel = static_cast<int>(blockIdx.x * kCombineThreads + threadIdx.x) * 4;
  wait_for_inputs();
  for (int i = static_cast<int>(blockIdx.x * kCombineThreads + threadIdx.x); i < word_pairs;
       i += static_cast<int>(gridDim.x) * kCombineThreads)
    reinterpret_cast<uint4*>(work.words)[row * word_pairs + i] = make_uint4(0, 0, 0, 0);
  if (channel >= hidden || sequence[row] < 0) return;
  add_experts(work.outputs, shared_expert, row, channel, hidden, top_k, y);
}

}  // namespace

void launch_expert_combine(const Launch& on, const ExpertsArgs& args, int first_row, int rows,
                           const ExpertWorkspace& work, const uint16_t* shared) {
  const auto blocks = static_cast<unsigned>(ceil_div(args.hidden, kCombineThreads * 4));
  // Only the streaming kernel leaves words.
  const int word_pairs = work.words != nullptr ? args.top_k * args.width / 8 : 0;
  launch_kernel(on, combine_kernel, dim3(blocks, static_cast<unsigned>(rows)), kCombineThreads, 0, 1, shared,
                args.step.sequence + first_row, args.hidden, args.top_k, word_pairs, work,
                args.y + static_cast<int64_t>(first_row) * args.hidden);
}

}  // namespace spark::engine::cuda
