#include "engine/forward/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace spark::engine {
namespace {

// The index at which a wave turns `rotations` times within the original context.
double correction_index(const model::ModelConfig& config, double rotations) {
  const double length = static_cast<double>(config.yarn.original_max_position_embeddings);
  const double width = static_cast<double>(config.qk_rope_head_dim);
  return width * std::log(length / (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(config.compress_rope_theta));
}

}  // namespace

std::vector<float> rope_frequencies(const model::ModelConfig& config, bool compressed) {
  const int64_t width = config.qk_rope_head_dim;
  const double base = compressed ? config.compress_rope_theta : config.rope_theta;
  std::vector<float> freq;
  for (int64_t i = 0; i < width / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(width);
    freq.push_back(1.0F / static_cast<float>(std::pow(base, static_cast<double>(exponent))));
  }
  if (!compressed) return freq;
  const double low = std::max(std::floor(correction_index(config, config.yarn.beta_fast)), 0.0);
  const double high =
      std::min(std::ceil(correction_index(config, config.yarn.beta_slow)), static_cast<double>(width - 1));
  const float span = static_cast<float>(std::max(high - low, 0.001));
  for (size_t i = 0; i < freq.size(); ++i) {
    const float ramp = std::clamp((static_cast<float>(i) - static_cast<float>(low)) / span, 0.0F, 1.0F);
    const float keep = 1.0F - ramp;
    freq[i] = freq[i] / static_cast<float>(config.yarn.factor) * (1.0F - keep) + freq[i] * keep;
  }
  return freq;
}

}  // namespace spark::engine
