// The rotary frequencies of DeepSeek V4.1 Flash: plain ones for window layers and the drafter, YaRN-stretched
// ones for layers with a compressed cache.
//
//   std::vector<float> freq = rope_frequencies(config, true);   // [qk_rope_head_dim / 2]
#pragma once

#include <vector>

#include "model/config.h"

namespace spark::engine {

// freq_i = base^(-2i/d). Compressed layers: with d(n) = d ln(L / 2 pi n) / (2 ln base), low = floor
// d(beta_fast), high = ceil d(beta_slow), the frequency is divided by `factor` to the extent that i lies in
// the ramp from low to high. No temperature: rotations keep unit magnitude.
std::vector<float> rope_frequencies(const model::ModelConfig& config, bool compressed);

}  // namespace spark::engine
