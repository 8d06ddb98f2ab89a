// vLLM's --speculative-config for this engine.
//
//   SpeculationOptions options = read_speculation(R"({"method": "dspark", "num_speculative_tokens": 5})", 5,
//   1);
//
// Members: method ("dspark"), num_speculative_tokens (at most what the checkpoint drafts),
// draft_sample_method
// ("greedy", the default, or "probabilistic"), rejection_sample_method ("block", the default, or "standard"),
// enable_adaptive_verification (true), adaptive_verification_cost_scale (1), draft_tensor_parallel_size (must
// be the number of ranks), attention_backend (another engine's kernels; has no effect). An empty object turns
// speculation off.
#pragma once

#include <cstdint>
#include <string>

#include "engine/schedule/speculation_options.h"

namespace spark::engine {

// `offered`: drafts of the checkpoint's drafter, 0 when it has none. Throws Error naming every member that is
// wrong.
SpeculationOptions read_speculation(const std::string& config, int32_t offered, int32_t ranks);

}  // namespace spark::engine
