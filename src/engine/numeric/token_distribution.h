// The distribution over the next token that a row of logits and a request's settings stand for. Targets and
// drafts are drawn from the same construction, which is what makes rejection sampling exact.
//
//   TokenDistribution p;
//   p.assign(logits, {.temperature = 0.7, .top_p = 0.95}, banned);
//   int32_t token = p.draw(uniform);      // uniform in (0, 1]
//   double share = p.probability(token);
//
// Temperature 0 leaves the largest logit alone, the lowest token among equals. Otherwise, in this order:
// weights exp((l - max) / temperature); those below min_p (the largest weight is 1) go; the top_k largest
// stay (equal logits: lower tokens first); of these, in the same order, the shortest prefix whose weights
// reach top_p of their sum stays. All in FP64 and in a fixed order: equal inputs give equal bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace spark::engine {

struct TokenFilter {
  double temperature = 0;  // 0: only the largest
  double top_p = 1.0;      // (0, 1]; 1: all
  int32_t top_k = 0;       // 0: all
  double min_p = 0.0;      // [0, 1]
};

class TokenDistribution {
 public:
  // Tokens of `banned` have no weight. Throws Error when a logit is NaN or +infinity, or when nothing is
  // left.
  void assign(std::span<const float> logits, const TokenFilter& filter, std::span<const int32_t> banned = {});
  // One token alone.
  void assign_certain(int32_t token);
  // Weights by token; at least one is positive.
  void assign_weights(std::span<const double> by_token);

  std::span<const int32_t> tokens() const { return tokens_; }   // ascending, all with a positive weight
  std::span<const double> weights() const { return weights_; }  // of tokens()
  double total() const { return total_; }
  double probability(int32_t token) const;
  // Inverts the running sum of weights over ascending tokens; `uniform` in (0, 1].
  int32_t draw(double uniform) const;

 private:
  std::vector<int32_t> tokens_;
  std::vector<double> weights_;
  double total_ = 0;
};

// Index of the largest logit outside `banned`, the lowest among equals. Throws like assign().
int32_t largest_logit(std::span<const float> logits, std::span<const int32_t> banned = {});
// Throws when a logit is NaN or +infinity.
float checked_maximum(std::span<const float> logits);

}  // namespace spark::engine
