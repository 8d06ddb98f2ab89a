#include "engine/schedule/draft_plan.h"

#include <algorithm>
#include <numeric>

namespace spark::engine {
namespace {

struct Slot {
  double survival = 0;
  size_t request = 0;
};

// All drafts, the likeliest first; equal ones in the order of requests and places.
std::vector<Slot> slots_of(std::span<const Survivals> survivals) {
  std::vector<Slot> slots;
  for (size_t request = 0; request < survivals.size(); ++request) {
    for (const double survival : survivals[request]) slots.push_back({survival, request});
  }
  std::stable_sort(slots.begin(), slots.end(),
                   [](const Slot& a, const Slot& b) { return a.survival > b.survival; });
  return slots;
}

double step_seconds(const DraftPricing& pricing, size_t drafting, int32_t verified) {
  const double bare = pricing.costs->verify.at(pricing.rows);
  const double more = pricing.costs->verify.at(pricing.rows + verified) - bare;
  const double drafts = drafting == 0 ? 0 : pricing.costs->draft.at(static_cast<double>(drafting));
  return std::max(drafts + bare + pricing.cost_scale * more, 1e-9);
}

struct Best {
  double rate = 0;
  int32_t verified = 0;
};

// The best number of the given slots to verify, in their order.
template <class Wanted>
Best best_of(const std::vector<Slot>& slots, const DraftPricing& pricing, size_t drafting,
             const Wanted& wanted) {
  double tokens = pricing.streams;
  Best best{tokens / step_seconds(pricing, drafting, 0), 0};
  int32_t verified = 0;
  for (const Slot& slot : slots) {
    if (verified >= pricing.max_drafts) break;
    if (!wanted(slot)) continue;
    tokens += slot.survival;
    const double rate = tokens / step_seconds(pricing, drafting, ++verified);
    if (rate > best.rate) best = {rate, verified};
  }
  return best;
}

// Few sizes, or planning would cost the square of the requests.
std::vector<size_t> sizes_to_try(size_t requests) {
  std::vector<size_t> sizes;
  for (size_t size = 1; size < requests; size = size < 8 ? size + 1 : size + size / 4) sizes.push_back(size);
  if (requests > 0) sizes.push_back(requests);
  return sizes;
}

}  // namespace

DraftPlan plan_drafts(std::span<const Survivals> expected, const DraftPricing& pricing) {
  const std::vector<Slot> slots = slots_of(expected);
  std::vector<double> worth(expected.size());
  for (const Slot& slot : slots) worth[slot.request] += slot.survival;
  std::vector<size_t> order(expected.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return worth[a] > worth[b]; });
  std::vector<size_t> rank(order.size());
  for (size_t i = 0; i < order.size(); ++i) rank[order[i]] = i;

  DraftPlan plan;
  plan.rate = pricing.streams / step_seconds(pricing, 0, 0);
  size_t drafting = 0;
  for (const size_t size : sizes_to_try(expected.size())) {
    const Best best =
        best_of(slots, pricing, size, [&](const Slot& slot) { return rank[slot.request] < size; });
    if (!(best.rate > plan.rate) || best.verified == 0) continue;
    plan.rate = best.rate;
    plan.budget = best.verified;
    drafting = size;
  }
  order.resize(drafting);
  std::sort(order.begin(), order.end());
  plan.requests = std::move(order);
  if (drafting > 0) {
    const double slope = pricing.costs->verify.slope(pricing.rows + plan.budget - 1);
    plan.least_survival = std::min(plan.rate * pricing.cost_scale * slope, 1.0);
  }
  return plan;
}

int32_t best_budget(std::span<const Survivals> survivals, const DraftPricing& pricing) {
  const auto any = [](const Slot&) { return true; };
  return best_of(slots_of(survivals), pricing, survivals.size(), any).verified;
}

std::vector<int32_t> admit(std::span<const Survivals> survivals, int32_t budget, double least_survival) {
  std::vector<int32_t> counts(survivals.size());
  for (const Slot& slot : slots_of(survivals)) {
    if (budget <= 0 || slot.survival < least_survival) break;
    ++counts[slot.request];
    --budget;
  }
  return counts;
}

}  // namespace spark::engine
