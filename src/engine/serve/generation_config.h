// generation_config.json: what the publisher of a checkpoint wants requests to use when they do not say.
//
//   GenerationConfig config = read_generation_config("model/generation_config.json");
//   config.sampling.temperature;     // 1.0, top_p 0.95, ...
//
// As in vLLM, temperature, top_p, top_k and min_p are defaults of requests, max_new_tokens bounds every
// answer, and every eos_token_id ends one. What else such files hold is for other programs; a
// repetition_penalty other than 1 is said to be without effect.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/request.h"

namespace spark::engine {

struct GenerationConfig {
  api::SamplingFields sampling = {};
  std::optional<int64_t> max_new_tokens = {};
  std::vector<int32_t> end_tokens = {};
};

// Throws Error that lists every value that makes no sense.
GenerationConfig read_generation_config(const std::string& path);

}  // namespace spark::engine
