// The shared expert's activation, between its products, and what lets the second product read it early.
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/swiglu.cuh"

namespace spark::engine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

__global__ void swiglu_kernel(const uint16_t* gate, const uint16_t* up, int64_t blocks, float limit,
                              uint8_t* codes, uint8_t* scales) {
  launch_dependents();
  wait_for_inputs();
  const int64_t block = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x & 31);
  if (block >= blocks) return;
  const int64_t at = block * 32 + lane;
  const float v = round_to_bf16(clamped_swiglu(bf16_to_float(gate[at]), bf16_to_float(up[at]), limit));
  const uint32_t scale = fp8_block_scale(group_amax<32>(v));
  codes[at] = static_cast<uint8_t>(fp8_block_code(v, scale));
  if (lane == 0) scales[block] = static_cast<uint8_t>(scale);
}

__global__ void settle_kernel() {
  wait_for_inputs();
  launch_dependents();
}

}  // namespace

void launch_settle(const Launch& on) {
  launch_kernel(on, settle_kernel, dim3(1), 32, 0, 1);
}

void launch_swiglu_quantise(const Launch& on, const uint16_t* gate, const uint16_t* up, int rows,
                            int64_t width, float limit, const QuantisedRows& out) {
  const int64_t blocks = static_cast<int64_t>(rows) * width / 32;
  launch_kernel(on, swiglu_kernel, dim3(static_cast<unsigned>(ceil_div(blocks, kWarps))), kThreads, 0, 1,
                gate, up, blocks, limit, out.codes, out.scales);
}

}  // namespace spark::engine::cuda
