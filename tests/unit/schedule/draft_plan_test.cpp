#include "engine/schedule/draft_plan.h"

#include <gtest/gtest.h>

#include <random>

#include "common/error.h"
#include "engine/schedule/draft_survival.h"
#include "engine/schedule/speculation_config.h"
#include "unit/schedule/drafting_model.h"
#include "unit/schedule/toy_model.h"

namespace spark::engine {
namespace {

TEST(CostCurve, IsLinearBetweenAndGoesOnBeyond) {
  const CostCurve curve({{8, 5}, {1, 1}, {4, 4}});
  EXPECT_DOUBLE_EQ(curve.at(1), 1);
  EXPECT_DOUBLE_EQ(curve.at(0), 1);
  EXPECT_DOUBLE_EQ(curve.at(2), 2);
  EXPECT_DOUBLE_EQ(curve.at(4), 4);
  EXPECT_DOUBLE_EQ(curve.at(6), 4.5);
  EXPECT_DOUBLE_EQ(curve.at(12), 6);
  EXPECT_DOUBLE_EQ(curve.slope(9), 0.25);
  EXPECT_DOUBLE_EQ(CostCurve({{3, 2}}).at(100), 2);
  EXPECT_DOUBLE_EQ(CostCurve().at(5), 0);
}

TEST(CostCurve, NeverFalls) {
  const CostCurve curve({{1, 2}, {2, 1}, {4, 3}});
  EXPECT_DOUBLE_EQ(curve.at(1), 1);
  EXPECT_DOUBLE_EQ(curve.at(2), 1);
  EXPECT_DOUBLE_EQ(curve.at(3), 2);
}

TEST(StepCosts, AreMeasuredOnRealRowsAndLeaveNothingOpen) {
  ToyModel toy({.sequences = 3, .rows = 16});
  DraftingModel model(toy, 5, [](std::span<const int32_t>, int32_t) { return 7; });
  const StepCosts costs = measure_step_costs(model, {.max_sequences = 8, .max_drafts = 5});
  ASSERT_FALSE(costs.verify.empty());
  EXPECT_EQ(costs.verify.points().front().size, 1);
  EXPECT_EQ(costs.verify.points().back().size, 16);
  EXPECT_EQ(costs.draft.points().back().size, 3);
  EXPECT_EQ(toy.opened(), toy.closed());
  EXPECT_NE(costs.describe().find("verify [[1, "), std::string::npos);
  // One row of a step: prompts are run row by row then.
  ToyModel narrow({.sequences = 2, .rows = 1});
  DraftingModel of_one(narrow, 5, [](std::span<const int32_t>, int32_t) { return 7; });
  EXPECT_EQ(measure_step_costs(of_one, {.max_sequences = 2, .max_drafts = 5}).verify.points().size(), 1u);
  // A model that drafts nothing has no such costs.
  EXPECT_TRUE(measure_step_costs(toy, {.max_sequences = 2, .max_drafts = 5}).verify.empty());
}

StepCosts costs_of(double row_s, double base_s, double draft_s) {
  return {CostCurve({{1, base_s + row_s}, {100, base_s + 100 * row_s}}),
          CostCurve({{1, draft_s}, {100, draft_s}})};
}

TEST(DraftPlan, VerifiesEverythingWhenRowsAreFree) {
  const StepCosts costs = costs_of(0, 1, 0.01);
  const std::vector<Survivals> two = {{0.9, 0.8, 0.1}, {0.5, 0.2}};
  const DraftPlan plan = plan_drafts(two, {.costs = &costs, .streams = 2, .rows = 2});
  EXPECT_EQ(plan.requests, (std::vector<size_t>{0, 1}));
  EXPECT_EQ(plan.budget, 5);
  EXPECT_NEAR(plan.rate, 4.5 / 1.01, 1e-9);
  EXPECT_EQ(plan.least_survival, 0);
  EXPECT_EQ(plan_drafts(two, {.costs = &costs, .streams = 2, .rows = 2, .max_drafts = 3}).budget, 3);
}

TEST(DraftPlan, DraftsNothingThatDoesNotPay) {
  const StepCosts linear = costs_of(1, 0, 0.1);  // a row costs what a step costs
  const std::vector<Survivals> poor = {{0.5, 0.2}, {0.9, 0.8}};
  EXPECT_TRUE(plan_drafts(poor, {.costs = &linear, .streams = 2, .rows = 2}).requests.empty());
  const StepCosts dear = costs_of(0, 1, 3);  // the drafter costs more than a step
  EXPECT_TRUE(plan_drafts(poor, {.costs = &dear, .streams = 2, .rows = 2}).requests.empty());
  EXPECT_TRUE(plan_drafts({}, {.costs = &dear, .streams = 2, .rows = 2}).requests.empty());
}

TEST(DraftPlan, LeavesOutRequestsWhoseDraftsFail) {
  // Drafting costs by the request.
  const StepCosts costs = {CostCurve({{1, 1}, {100, 10}}), CostCurve({{1, 0.2}, {2, 0.4}})};
  const std::vector<Survivals> mixed = {{0.01, 0.001}, {0.95, 0.9}};
  const DraftPlan plan = plan_drafts(mixed, {.costs = &costs, .streams = 2, .rows = 2});
  EXPECT_EQ(plan.requests, (std::vector<size_t>{1}));
  EXPECT_EQ(plan.budget, 2);
  EXPECT_GT(plan.least_survival, 0.01);
}

// Against trying every number of drafts for every set of requests.
TEST(DraftPlan, IsTheBestOfAllChoices) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> unit(0, 1);
  for (int round = 0; round < 200; ++round) {
    const StepCosts costs = costs_of(0.3 * unit(random), 0.2 + unit(random), 0.3 * unit(random));
    std::vector<Survivals> expected(1 + random() % 4);
    std::vector<double> all;
    for (Survivals& survival : expected) {
      double product = 1;
      for (int i = 0; i < 5; ++i) survival.push_back(product *= unit(random));
      all.insert(all.end(), survival.begin(), survival.end());
    }
    std::sort(all.rbegin(), all.rend());
    const auto streams = static_cast<int32_t>(expected.size());
    double best = streams / costs.verify.at(streams), tokens = streams;
    for (size_t b = 1; b <= all.size(); ++b) {
      tokens += all[b - 1];
      best = std::max(best, tokens / (costs.verify.at(streams + static_cast<double>(b)) + costs.draft.at(1)));
    }
    const DraftPricing pricing = {.costs = &costs, .streams = streams, .rows = streams};
    const DraftPlan plan = plan_drafts(expected, pricing);
    EXPECT_NEAR(plan.rate, best, 1e-9 * best) << round;
    if (plan.requests.size() == expected.size()) {
      EXPECT_EQ(best_budget(expected, pricing), plan.budget);
    }
  }
}

TEST(Admit, TakesTheLikeliestAndPrefixesOnly) {
  const std::vector<Survivals> survivals = {{0.9, 0.5, 0.5}, {0.6, 0.5, 0.1}, {}};
  EXPECT_EQ(admit(survivals, 0), (std::vector<int32_t>{0, 0, 0}));
  EXPECT_EQ(admit(survivals, 2), (std::vector<int32_t>{1, 1, 0}));
  EXPECT_EQ(admit(survivals, 4), (std::vector<int32_t>{3, 1, 0}));
  EXPECT_EQ(admit(survivals, 99), (std::vector<int32_t>{3, 3, 0}));
  EXPECT_EQ(admit(survivals, 99, 0.2), (std::vector<int32_t>{3, 2, 0}));
}

// What verification.h asks of the length of a drawn block.
TEST(Admit, LooksAtNothingAfterADraft) {
  std::mt19937 random(2);
  std::uniform_real_distribution<double> unit(0, 1);
  for (int round = 0; round < 500; ++round) {
    std::vector<Survivals> survivals(3);
    for (Survivals& survival : survivals) {
      double product = 1;
      for (int i = 0; i < 5; ++i) survival.push_back(product *= std::round(4 * unit(random)) / 4);
    }
    const auto budget = static_cast<int32_t>(random() % 12);
    const std::vector<int32_t> before = admit(survivals, budget, 0.1);
    const size_t place = random() % 5;  // everything after it changes
    for (size_t i = place + 1; i < 5; ++i) survivals[1][i] = survivals[1][i - 1] * unit(random);
    const std::vector<int32_t> after = admit(survivals, budget, 0.1);
    EXPECT_EQ(before[1] > static_cast<int32_t>(place), after[1] > static_cast<int32_t>(place));
  }
}

TEST(AcceptanceModel, BelievesConfidencesUntilExperienceSaysOtherwise) {
  AcceptanceModel model(5);
  EXPECT_NEAR(model.acceptance(0, 0.0F), 0.5, 1e-9);
  EXPECT_GT(model.acceptance(3, 4.0F), 0.98);
  EXPECT_LT(model.acceptance(3, -4.0F), 0.02);
  EXPECT_LT(model.acceptance(3, std::nanf("")), 0.01);
  EXPECT_EQ(model.mean_acceptance(2), 1);
  for (int i = 0; i < 400; ++i) model.observe(0, 4.0F, i % 4 == 0);
  EXPECT_NEAR(model.acceptance(0, 4.0F), 0.25, 0.03);
  EXPECT_NEAR(model.acceptance(1, 4.0F), 0.28, 0.1);  // other places learn from it, too
  EXPECT_LT(model.acceptance(1, -4.0F), 0.02);
  EXPECT_NEAR(model.mean_acceptance(0), 0.25, 0.03);
  EXPECT_EQ(model.mean_acceptance(1), 1);
  for (int i = 0; i < 4000; ++i) model.observe(0, 4.0F, true);  // the old is forgotten
  EXPECT_GT(model.acceptance(0, 4.0F), 0.97);
}

TEST(RequestSurvival, CorrectsAndAverages) {
  AcceptanceModel engine(3);
  RequestSurvival request;
  EXPECT_EQ(request.expected(engine, 3), (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(request.adjusted(0.6), 0.6);
  request.note_block(std::vector<double>{0.8, 0.4, 0.2});
  request.note_block(std::vector<double>{0.4, 0.4, 0.1});
  EXPECT_NEAR(request.expected(engine, 3)[0], 0.68, 1e-12);
  for (int i = 0; i < 100; ++i) request.observe(0.8, i % 5 < 2);
  EXPECT_NEAR(request.adjusted(0.8), 0.42, 0.05);
  for (int i = 0; i < 300; ++i) request.observe(0.5, true);
  EXPECT_EQ(request.adjusted(0.9), 1);
}

TEST(SpeculationConfig, ReadsWhatVllmIsGiven) {
  const SpeculationOptions all = read_speculation(
      R"({"method": "dspark", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 2,
          "attention_backend": "TILELANG", "draft_sample_method": "probabilistic",
          "rejection_sample_method": "standard", "enable_adaptive_verification": false,
          "adaptive_verification_cost_scale": 2.0})",
      5, 2);
  EXPECT_EQ(all.max_drafts, 3);
  EXPECT_TRUE(all.drawn);
  EXPECT_EQ(all.rejection, RejectionMethod::kStandard);
  EXPECT_FALSE(all.adaptive);
  EXPECT_EQ(all.cost_scale, 2);
  const SpeculationOptions few = read_speculation(R"({"method": "dspark"})", 5, 1);
  EXPECT_EQ(few.max_drafts, 5);
  EXPECT_FALSE(few.drawn);
  EXPECT_EQ(few.rejection, RejectionMethod::kBlock);
  EXPECT_TRUE(few.adaptive);
  EXPECT_EQ(read_speculation("{}", 0, 1).max_drafts, 0);
  EXPECT_EQ(read_speculation(R"({"num_speculative_tokens": 2})", 5, 1).max_drafts, 2);  // the one method
}

TEST(SpeculationConfig, NamesEveryFault) {
  const auto fault = [](const std::string& text, int32_t offered = 5) -> std::string {
    try {
      read_speculation(text, offered, 1);
    } catch (const Error& error) {
      return error.describe();
    }
    return "nothing";
  };
  EXPECT_NE(fault("[").find("--speculative-config"), std::string::npos);
  EXPECT_NE(fault("[]").find("object"), std::string::npos);
  EXPECT_NE(fault(R"({"method": "dspark"})", 0).find("no drafter"), std::string::npos);
  const std::string many = fault(
      R"({"method": "mtp", "num_speculative_tokens": 6, "draft_sample_method": "gumbel",
          "draft_tensor_parallel_size": 3, "enable_adaptive_verification": 1, "tokens": 2})");
  for (const char* word : {"mtp", "num_speculative_tokens", "gumbel", "draft_tensor_parallel_size",
                           "enable_adaptive_verification", "tokens"}) {
    EXPECT_NE(many.find(word), std::string::npos) << word << " in " << many;
  }
}

}  // namespace
}  // namespace spark::engine
