// How much speculation pays: which requests to draft for, and how many drafts to verify. Pure.
//
//   DraftPlan plan = plan_drafts(expected, {.costs = &costs, .streams = 16, .rows = 16});
//   ... draft for the requests plan.requests ...
//   std::vector<int32_t> counts = admit(survival, plan.budget, plan.least_survival);
//
// A step that samples for `streams` requests and verifies the b drafts most likely to stand gives
// E = streams + sum of their survivals tokens, and takes C = draft(requests) + verify(rows + b). The plan
// maximises E / C. The survival of a draft is the probability that it and all before it in its block are
// accepted, so it falls along a block and the best b drafts are a prefix of each block.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/schedule/step_costs.h"

namespace spark::engine {

// Survivals of one request's drafts, never rising; as many as it could use.
using Survivals = std::vector<double>;

struct DraftPricing {
  const StepCosts* costs = nullptr;
  int32_t streams = 0;           // requests that sample in this step
  int32_t rows = 0;              // of the step, without drafts
  int32_t max_drafts = 1 << 30;  // drafts that the step has room for
  double cost_scale = 1;         // weight of what verified drafts add to the step's cost
};

struct DraftPlan {
  std::vector<size_t> requests;  // to draft for; none: drafts do not pay
  int32_t budget = 0;            // drafts to verify, of all requests together
  double least_survival = 0;     // a draft below this costs more than it brings
  double rate = 0;               // tokens per second expected
};

// From what is expected before anything is drafted.
DraftPlan plan_drafts(std::span<const Survivals> expected, const DraftPricing& pricing);

// How many of the drafts just made to verify, by their own survivals. Not for drafts that were drawn at
// random: there the number may not depend on the drafts' values (schedule/verification.h); plan_drafts'
// budget does not.
int32_t best_budget(std::span<const Survivals> survivals, const DraftPricing& pricing);

// Gives the budget to the likeliest drafts; how many of each request. Whether a draft is admitted depends
// only on the survivals of its own request up to it, and on other requests.
std::vector<int32_t> admit(std::span<const Survivals> survivals, int32_t budget, double least_survival = 0);

}  // namespace spark::engine
