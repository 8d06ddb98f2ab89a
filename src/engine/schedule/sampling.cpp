#include "engine/schedule/sampling.h"

#include <algorithm>
#include <cmath>

#include "engine/schedule/random.h"

namespace spark::engine {
namespace {

// Likelier first, equal ones by ascending token.
auto by_logit(std::span<const float> logits) {
  return [logits](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
}

}  // namespace

int32_t Sampler::choose(std::span<const float> logits, const SamplingParams& params, int64_t position,
                        std::span<const int32_t> banned) {
  if (params.temperature == 0.0) return largest_logit(logits, banned);
  distribution_.assign(logits, params.filter(), banned);
  return distribution_.draw(uniform(params.seed, static_cast<uint64_t>(position)));
}

TokenLogprobs Sampler::logprobs(std::span<const float> logits, int32_t chosen, int32_t top) const {
  const double maximum = checked_maximum(logits);
  double total = 0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit) - maximum);
  const double log_total = maximum + std::log(total);
  const auto logprob = [&](int32_t token) {
    return static_cast<double>(logits[static_cast<size_t>(token)]) - log_total;
  };
  TokenLogprobs out;
  out.chosen = logprob(chosen);
  const auto count = std::min(static_cast<size_t>(std::max(top, 0)), logits.size());
  if (count == 0) return out;
  // A list of the best so far, kept in order: `top` is at most a few dozen.
  const auto before = by_logit(logits);
  std::vector<int32_t> best;
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto token = static_cast<int32_t>(i);
    if (best.size() == count && !before(token, best.back())) continue;
    if (best.size() == count) best.pop_back();
    best.insert(std::upper_bound(best.begin(), best.end(), token, before), token);
  }
  for (const int32_t token : best) out.top.push_back({token, logprob(token)});
  return out;
}

}  // namespace spark::engine
