// From a row of logits to a token.
//
//   Sampler sampler;
//   int32_t token = sampler.choose(logits, params, position, banned);
//   TokenLogprobs seen = sampler.logprobs(logits, token, 5);
//
// The token is drawn from the row's TokenDistribution (numeric/token_distribution.h, which says what
// temperature, top_k, top_p and min_p do) at uniform(seed, position): a row gives the same token in every
// batch.
//
// Log probabilities are those of the unmodified distribution: before temperature, filters and bans.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/numeric/token_distribution.h"

namespace spark::engine {

struct SamplingParams {
  double temperature = 1.0;
  double top_p = 1.0;  // (0, 1]; 1: all
  int32_t top_k = 0;   // 0: all
  double min_p = 0.0;  // [0, 1]
  uint64_t seed = 0;

  TokenFilter filter() const {
    return {.temperature = temperature, .top_p = top_p, .top_k = top_k, .min_p = min_p};
  }
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
  TokenDistribution distribution_;
};

}  // namespace spark::engine
