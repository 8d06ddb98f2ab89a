// From a row of logits to a token.
//
//   Sampler sampler;
//   int32_t token = sampler.choose(logits, params, position, banned);
//   TokenLogprobs seen = sampler.logprobs(logits, token, 5);
//
// Temperature 0 takes the largest logit, the lowest token among equals. Otherwise, in this order: weights
// exp((l - max) / temperature); those below min_p (the largest weight is 1) go; the top_k largest stay (equal
// logits: lower tokens first); of these, in the same order, the shortest prefix whose weights reach top_p of
// their sum stays; one is drawn by inverting the running sum over ascending tokens at uniform(seed,
// position). All in FP64 and in a fixed order, so a row gives the same token in every batch.
//
// Log probabilities are those of the unmodified distribution: before temperature, filters and bans.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace spark::engine {

struct SamplingParams {
  double temperature = 1.0;
  double top_p = 1.0;  // (0, 1]; 1: all
  int32_t top_k = 0;   // 0: all
  double min_p = 0.0;  // [0, 1]
  uint64_t seed = 0;
};

struct TokenLogprob {
  int32_t token = 0;
  double logprob = 0;
};

struct TokenLogprobs {
  double chosen = 0;
  std::vector<TokenLogprob> top;  // likeliest first; equal ones by ascending token
};

// Holds scratch memory; one per thread.
class Sampler {
 public:
  // `position` is that of the token being chosen. Tokens of `banned` are never chosen. Throws Error when a
  // logit is NaN or +infinity, or when nothing may be chosen.
  int32_t choose(std::span<const float> logits, const SamplingParams& params, int64_t position,
                 std::span<const int32_t> banned = {});

  TokenLogprobs logprobs(std::span<const float> logits, int32_t chosen, int32_t top) const;

 private:
  void keep_top_k(std::span<const float> logits, int32_t top_k);
  void keep_top_p(std::span<const float> logits, double top_p);
  int32_t draw(double uniform_value) const;

  std::vector<double> weights_;  // by token; 0: out
  std::vector<int32_t> kept_;    // tokens with a weight, ascending
};

}  // namespace spark::engine
