#include "engine/schedule/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "common/error.h"
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

float checked_maximum(std::span<const float> logits) {
  float maximum = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == std::numeric_limits<float>::infinity()) {
      throw Error("the model computed a logit of " + std::string(std::isnan(logits[i]) ? "NaN" : "infinity") +
                  " for token " + std::to_string(i));
    }
    maximum = std::max(maximum, logits[i]);
  }
  return maximum;
}

bool contains(std::span<const int32_t> list, int32_t token) {
  return std::find(list.begin(), list.end(), token) != list.end();
}

int32_t largest(std::span<const float> logits, std::span<const int32_t> banned) {
  int32_t best = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto token = static_cast<int32_t>(i);
    if (best >= 0 && !(logits[i] > logits[static_cast<size_t>(best)])) continue;
    if (!contains(banned, token)) best = token;
  }
  return best;
}

}  // namespace

int32_t Sampler::choose(std::span<const float> logits, const SamplingParams& params, int64_t position,
                        std::span<const int32_t> banned) {
  checked_maximum(logits);
  const int32_t best = largest(logits, banned);
  if (best < 0 || std::isinf(logits[static_cast<size_t>(best)])) throw Error("every token is excluded");
  if (params.temperature == 0.0) return best;

  const double maximum = logits[static_cast<size_t>(best)];
  weights_.resize(logits.size());
  kept_.clear();
  // A banned token may be larger than the maximum of the others, so its weight is settled last. Marked once,
  // not looked for at each token: a request may ban a thousand.
  for (size_t i = 0; i < logits.size(); ++i) {
    weights_[i] = std::exp((static_cast<double>(logits[i]) - maximum) / params.temperature);
  }
  for (const int32_t token : banned) {
    if (token >= 0 && static_cast<size_t>(token) < weights_.size()) weights_[static_cast<size_t>(token)] = 0;
  }
  for (size_t i = 0; i < logits.size(); ++i) {
    if (weights_[i] > 0 && weights_[i] >= params.min_p) {
      kept_.push_back(static_cast<int32_t>(i));
    } else {
      weights_[i] = 0;
    }
  }
  if (params.top_k > 0) keep_top_k(logits, params.top_k);
  if (params.top_p < 1.0) keep_top_p(logits, params.top_p);
  return draw(uniform(params.seed, static_cast<uint64_t>(position)));
}

void Sampler::keep_top_k(std::span<const float> logits, int32_t top_k) {
  if (static_cast<size_t>(top_k) >= kept_.size()) return;
  std::nth_element(kept_.begin(), kept_.begin() + top_k, kept_.end(), by_logit(logits));
  kept_.resize(static_cast<size_t>(top_k));
  std::sort(kept_.begin(), kept_.end());
}

void Sampler::keep_top_p(std::span<const float> logits, double top_p) {
  double total = 0;
  for (const int32_t token : kept_) total += weights_[static_cast<size_t>(token)];
  // The prefix is short as a rule: order ever more of the list until it is found.
  double sum = 0;
  size_t count = 0;
  for (size_t ordered = 0; sum < top_p * total && count < kept_.size();) {
    const size_t end = std::min(kept_.size(), std::max<size_t>(256, ordered * 4));
    const auto from = kept_.begin() + static_cast<std::ptrdiff_t>(ordered);
    const auto to = kept_.begin() + static_cast<std::ptrdiff_t>(end);
    std::nth_element(from, to, kept_.end(), by_logit(logits));
    std::sort(from, to, by_logit(logits));
    ordered = end;
    while (count < ordered && sum < top_p * total) sum += weights_[static_cast<size_t>(kept_[count++])];
  }
  kept_.resize(count);
  std::sort(kept_.begin(), kept_.end());
}

int32_t Sampler::draw(double uniform_value) const {
  double total = 0;
  for (const int32_t token : kept_) total += weights_[static_cast<size_t>(token)];
  const double threshold = uniform_value * total;
  double sum = 0;
  for (const int32_t token : kept_) {
    sum += weights_[static_cast<size_t>(token)];
    if (sum >= threshold) return token;
  }
  return kept_.back();  // not reached: the sum ends at `total`
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
