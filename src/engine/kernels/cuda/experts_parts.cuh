// What the kernels of the routed experts have in common behind their products.
#pragma once

#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/swiglu.cuh"

namespace spark::engine::cuda {

// A lane's column of an expert's activation as a code with the scale of the warp's 32 columns: gate and up
// are complete sums, `weight` is the row's routing weight. Whole warps must call.
struct ExpertCode {
  uint8_t code;
  uint32_t scale;
};
__device__ __forceinline__ ExpertCode expert_code(float gate, float up, float weight, float limit) {
  const float v = round_to_bf16(weight * clamped_swiglu(round_to_bf16(gate), round_to_bf16(up), limit));
  const uint32_t scale = fp8_block_scale(group_amax<32>(v));
  return {static_cast<uint8_t>(fp8_block_code(v, scale)), scale};
}

// The same into the workspace in its plain form: column block `column` of `column_blocks` of a sorted
// assignment.
template <class Workspace>
__device__ __forceinline__ void store_expert_code(const Workspace& work, const ExpertCode& code,
                                                  int64_t position, int codes_stride, int column,
                                                  int column_blocks) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  work.codes[position * codes_stride + column * 32 + lane] = code.code;
  uint8_t* scales = work.scales + position * (codes_stride / 32) + column;
  // Behind the last block: whatever other shapes left there must read as zero.
  const bool behind = column == column_blocks - 1 && column + lane < codes_stride / 32;
  if (lane == 0 || behind) scales[lane] = static_cast<uint8_t>(lane == 0 ? code.scale : 0u);
}

// Four channels of a row: its experts' outputs in ascending order, then the shared expert's.
__device__ __forceinline__ void add_experts(const uint16_t* outputs, const uint16_t* shared_expert,
                                            int64_t row, int64_t channel, int hidden, int top_k,
                                            uint16_t* y) {
  constexpr int kSlots = 8;
  const int64_t at = row * hidden + channel;
  const uint2 last = *reinterpret_cast<const uint2*>(shared_expert + at);
  float total[4] = {};
  for (int k0 = 0; k0 < top_k; k0 += kSlots) {
    uint2 v[kSlots];
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      v[k] = make_uint2(0, 0);
      if (k0 + k < top_k) {
        v[k] = load_shared_by_blocks(
            reinterpret_cast<const uint2*>(outputs + (row * top_k + k0 + k) * hidden + channel));
      }
    }
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      if (k0 + k >= top_k) break;
      total[0] += bf16_low(v[k].x), total[1] += bf16_high(v[k].x);
      total[2] += bf16_low(v[k].y), total[3] += bf16_high(v[k].y);
    }
  }
  *reinterpret_cast<uint2*>(y + at) =
      make_uint2(pack_bf16(total[0] + bf16_low(last.x), total[1] + bf16_high(last.x)),
                 pack_bf16(total[2] + bf16_low(last.y), total[3] + bf16_high(last.y)));
}

}  // namespace spark::engine::cuda
