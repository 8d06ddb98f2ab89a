// Launches of the kernels that exist for SM121 alone: products with the block-scaled matrix instruction. They
// take the place of their namesakes in kernels/cuda/launch.h where DeviceLimits::block_scaled_mma is set.
// Their FP4 weights have fp4_container_code's bit order (plan/block_scaled.h), everything else is the same.
#pragma once

#include "engine/kernels/cuda/launch.h"

namespace spark::engine::cuda::sm121 {

void launch_stream_fp8(const Launch& on, const LinearLaunch& plan, const StreamGemmParams& params);
void launch_linear_fp4(const Launch& on, const LinearArgs& args, const PreparedWeight& weight);
void launch_expert_gate_up(const Launch& on, const ExpertsArgs& args, int first_row, int rows,
                           const PreparedExperts& bank, const ExpertWorkspace& work);
void launch_expert_down(const Launch& on, const ExpertsArgs& args, int first_row, int rows,
                        const PreparedExperts& bank, const ExpertWorkspace& work, const uint16_t* shared);
// A prompt's rows, with the bits of those two.
bool prefill_experts_fit(const DeviceLimits& device, const PreparedExperts& bank);
void launch_prefill_gate_up(const Launch& on, const ExpertsArgs& args, int first_row,
                            const PreparedExperts& bank, const PrefillExperts& work);
void launch_prefill_down(const Launch& on, const PreparedExperts& bank, const PrefillExperts& work);

}  // namespace spark::engine::cuda::sm121
