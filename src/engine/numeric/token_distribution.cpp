#include "engine/numeric/token_distribution.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "common/error.h"

namespace spark::engine {
namespace {

// Likelier first, equal ones by ascending token.
auto by_logit(std::span<const float> logits) {
  return [logits](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
}

[[noreturn]] void refuse(std::span<const float> logits) {
  for (size_t i = 0; i < logits.size(); ++i) {
    const bool nan = std::isnan(logits[i]);
    if (!nan && logits[i] != std::numeric_limits<float>::infinity()) continue;
    throw Error("the model computed a logit of " + std::string(nan ? "NaN" : "infinity") + " for token " +
                std::to_string(i));
  }
  throw Error("the model computed a logit that is no number");
}

bool contains(std::span<const int32_t> list, int32_t token) {
  return std::find(list.begin(), list.end(), token) != list.end();
}

struct Peak {
  float value = -std::numeric_limits<float>::infinity();
  int32_t token = -1;  // the first with that value
};

// A row is 129,280 logits and every row of a step comes through here: lanes that the compiler makes vectors
// of, and a search in one stretch only.
Peak peak_of(std::span<const float> logits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr size_t kLanes = 16, kStretch = 64 * kLanes;
  Peak peak;
  size_t peak_begin = 0;
  bool numbers = true;
  for (size_t begin = 0; begin < logits.size(); begin += kStretch) {
    const std::span<const float> stretch = logits.subspan(begin, std::min(kStretch, logits.size() - begin));
    std::array<float, kLanes> largest;
    std::array<uint32_t, kLanes> good;
    largest.fill(-kInfinity);
    good.fill(1);
    size_t i = 0;
    for (; i + kLanes <= stretch.size(); i += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        const float x = stretch[i + lane];
        largest[lane] = x > largest[lane] ? x : largest[lane];
        good[lane] &= x < kInfinity ? 1U : 0U;  // 0 for NaN as well
      }
    }
    for (; i < stretch.size(); ++i) {
      largest[0] = std::max(largest[0], stretch[i]);
      good[0] &= stretch[i] < kInfinity ? 1U : 0U;
    }
    for (const uint32_t lane : good) numbers = numbers && lane != 0;
    const float best = *std::max_element(largest.begin(), largest.end());
    if (begin == 0 || best > peak.value) {
      peak.value = best;
      peak_begin = begin;
    }
  }
  if (!numbers) refuse(logits);
  if (!logits.empty()) {
    const auto first = logits.begin() + static_cast<std::ptrdiff_t>(peak_begin);
    peak.token = static_cast<int32_t>(std::find(first, logits.end(), peak.value) - logits.begin());
  }
  return peak;
}

struct Weigher {
  std::span<const float> logits;
  double maximum;
  double temperature;
  double operator()(int32_t token) const {
    return std::exp((static_cast<double>(logits[static_cast<size_t>(token)]) - maximum) / temperature);
  }
};

std::vector<double> weights_of(const std::vector<int32_t>& tokens, const Weigher& weight) {
  std::vector<double> weights;
  for (const int32_t token : tokens) weights.push_back(weight(token));
  return weights;
}

double sum(const std::vector<double>& values) {
  double total = 0;
  for (const double value : values) total += value;
  return total;
}

// Both keep `tokens` in ascending order, and tell whether any is gone.
bool keep_top_k(std::vector<int32_t>& tokens, std::span<const float> logits, int32_t top_k) {
  if (static_cast<size_t>(top_k) >= tokens.size()) return false;
  std::nth_element(tokens.begin(), tokens.begin() + top_k, tokens.end(), by_logit(logits));
  tokens.resize(static_cast<size_t>(top_k));
  std::sort(tokens.begin(), tokens.end());
  return true;
}

bool keep_top_p(std::vector<int32_t>& tokens, const Weigher& weight, double total, double top_p) {
  // The prefix is short as a rule: order ever more of the list until it is found.
  double reached = 0;
  size_t count = 0;
  for (size_t ordered = 0; reached < top_p * total && count < tokens.size();) {
    const size_t end = std::min(tokens.size(), std::max<size_t>(256, ordered * 4));
    const auto from = tokens.begin() + static_cast<std::ptrdiff_t>(ordered);
    const auto to = tokens.begin() + static_cast<std::ptrdiff_t>(end);
    std::nth_element(from, to, tokens.end(), by_logit(weight.logits));
    std::sort(from, to, by_logit(weight.logits));
    ordered = end;
    while (count < ordered && reached < top_p * total) reached += weight(tokens[count++]);
  }
  const bool cut = count < tokens.size();
  tokens.resize(count);
  std::sort(tokens.begin(), tokens.end());
  return cut;
}

}  // namespace

float checked_maximum(std::span<const float> logits) {
  return peak_of(logits).value;
}

int32_t largest_logit(std::span<const float> logits, std::span<const int32_t> banned) {
  const Peak peak = peak_of(logits);
  const auto at = [&](int32_t token) { return logits[static_cast<size_t>(token)]; };
  int32_t best = peak.token;
  if (best >= 0 && contains(banned, best)) {
    best = -1;
    for (int32_t token = 0; token < static_cast<int32_t>(logits.size()); ++token) {
      if (best >= 0 && !(at(token) > at(best))) continue;
      if (!contains(banned, token)) best = token;
    }
  }
  if (best < 0 || std::isinf(at(best))) throw Error("every token is excluded");
  return best;
}

void TokenDistribution::assign(std::span<const float> logits, const TokenFilter& filter,
                               std::span<const int32_t> banned) {
  const int32_t best = largest_logit(logits, banned);
  if (filter.temperature == 0.0) return assign_certain(best);
  const Weigher weight{logits, logits[static_cast<size_t>(best)], filter.temperature};
  std::vector<int32_t> excluded(banned.begin(), banned.end());
  std::sort(excluded.begin(), excluded.end());
  auto next_excluded = std::lower_bound(excluded.begin(), excluded.end(), 0);
  tokens_.clear();
  weights_.clear();
  for (int32_t token = 0; token < static_cast<int32_t>(logits.size()); ++token) {
    while (next_excluded != excluded.end() && *next_excluded < token) ++next_excluded;
    if (next_excluded != excluded.end() && *next_excluded == token) continue;
    const double w = weight(token);
    if (!(w > 0 && w >= filter.min_p)) continue;
    tokens_.push_back(token);
    weights_.push_back(w);
  }
  bool cut = false;
  if (filter.top_k > 0) cut = keep_top_k(tokens_, logits, filter.top_k) || cut;
  if (filter.top_p < 1.0) {
    if (cut) weights_ = weights_of(tokens_, weight);
    cut = keep_top_p(tokens_, weight, sum(weights_), filter.top_p) || cut;
  }
  if (cut) weights_ = weights_of(tokens_, weight);
  total_ = sum(weights_);
}

void TokenDistribution::assign_certain(int32_t token) {
  tokens_.assign(1, token);
  weights_.assign(1, 1.0);
  total_ = 1;
}

void TokenDistribution::assign_weights(std::span<const double> by_token) {
  tokens_.clear();
  weights_.clear();
  for (size_t i = 0; i < by_token.size(); ++i) {
    if (!(by_token[i] > 0)) continue;
    tokens_.push_back(static_cast<int32_t>(i));
    weights_.push_back(by_token[i]);
  }
  SPARK_CHECK(!tokens_.empty());
  total_ = sum(weights_);
}

double TokenDistribution::probability(int32_t token) const {
  const auto found = std::lower_bound(tokens_.begin(), tokens_.end(), token);
  if (found == tokens_.end() || *found != token) return 0;
  return weights_[static_cast<size_t>(found - tokens_.begin())] / total_;
}

int32_t TokenDistribution::draw(double uniform) const {
  const double threshold = uniform * total_;
  double running = 0;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    running += weights_[i];
    if (running >= threshold) return tokens_[i];
  }
  return tokens_.back();  // not reached: the sum ends at the total
}

}  // namespace spark::engine
