// How an engine speculates: vLLM's --speculative-config, as far as it concerns this engine.
#pragma once

#include <cstdint>

#include "engine/schedule/step_costs.h"
#include "engine/schedule/verification.h"

namespace spark::engine {

struct SpeculationOptions {
  int32_t max_drafts = 0;  // of a sequence and step, at most the model's; 0: no speculation
  bool drawn = false;      // drafts of requests with a temperature are drawn, not the likeliest
  RejectionMethod rejection = RejectionMethod::kBlock;  // of drafts that are drawn
  bool adaptive = true;                                 // verify what pays; false: every draft, always
  double cost_scale = 1;  // weight of what verified drafts add to a step's cost; adaptive only
  StepCosts costs = {};   // adaptive only; none: measured when the engine starts
};

}  // namespace spark::engine
