#include "engine/schedule/step_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace spark::engine {
namespace {

SequenceView decoding(int32_t computed, int32_t drafts = 0) {
  return {.computed = computed, .pending = 1, .decoding = true, .drafts = drafts};
}
SequenceView prompt(int32_t pending, int32_t computed = 0) {
  return {.computed = computed, .pending = pending};
}

// (sequence, rows, drafts), in the order of the plan.
std::vector<std::vector<int32_t>> rows_of(const StepPlan& plan) {
  std::vector<std::vector<int32_t>> out;
  for (const PlannedRows& p : plan.rows) out.push_back({p.sequence, p.rows, p.drafts});
  return out;
}
using Rows = std::vector<std::vector<int32_t>>;

TEST(StepPlanner, DecodesFirstThenPrompts) {
  const std::vector<SequenceView> views = {prompt(100), decoding(7), prompt(5), decoding(30)};
  const StepPlan plan = plan_step(views, {.rows = 200, .parallel_prefills = 8});
  EXPECT_EQ(rows_of(plan), (Rows{{1, 1, 0}, {3, 1, 0}, {0, 100, 0}, {2, 5, 0}}));
  EXPECT_EQ(plan.decode_rows, 2);
  EXPECT_EQ(plan.prefill_rows, 105);
  EXPECT_TRUE(plan_step({}, {.rows = 4}).rows.empty());
}

TEST(StepPlanner, DraftsGoRoundAndLeavePromptsTheirShare) {
  const std::vector<SequenceView> views = {decoding(7, 5), decoding(9, 2), decoding(3, 0)};
  EXPECT_EQ(rows_of(plan_step(views, {.rows = 64})), (Rows{{0, 1, 5}, {1, 1, 2}, {2, 1, 0}}));
  EXPECT_EQ(rows_of(plan_step(views, {.rows = 6})), (Rows{{0, 1, 2}, {1, 1, 1}, {2, 1, 0}}));
  EXPECT_EQ(rows_of(plan_step(views, {.rows = 3})), (Rows{{0, 1, 0}, {1, 1, 0}, {2, 1, 0}}));
  const std::vector<SequenceView> with_prompt = {decoding(7, 5), decoding(9, 5), prompt(50)};
  const StepPlan plan = plan_step(with_prompt, {.rows = 8});
  EXPECT_EQ(plan.prefill_rows, 1);
  EXPECT_EQ(plan.decode_rows, 7);
}

TEST(StepPlanner, ChunksEndAtBorders) {
  const std::vector<SequenceView> views = {prompt(1000)};
  EXPECT_EQ(rows_of(plan_step(views, {.rows = 300, .chunk = 128})), (Rows{{0, 256, 0}}));
  const std::vector<SequenceView> odd = {prompt(1000, 100)};  // from 100 to 384
  EXPECT_EQ(rows_of(plan_step(odd, {.rows = 300, .chunk = 128})), (Rows{{0, 284, 0}}));
  // No border within reach: better some rows than none.
  EXPECT_EQ(rows_of(plan_step(odd, {.rows = 20, .chunk = 128})), (Rows{{0, 20, 0}}));
  // The last chunk ends where the prompt does.
  const std::vector<SequenceView> last = {prompt(70, 930)};
  EXPECT_EQ(rows_of(plan_step(last, {.rows = 300, .chunk = 128})), (Rows{{0, 70, 0}}));
}

TEST(StepPlanner, BoundsThePromptsThatAreHalfDone) {
  const std::vector<SequenceView> views = {prompt(1000), prompt(1000), prompt(30), prompt(1000)};
  // The first alone may be cut. 30 rows would fit after it, had it left any.
  EXPECT_EQ(rows_of(plan_step(views, {.rows = 64})), (Rows{{0, 64, 0}}));
  // Two of them in equal shares.
  EXPECT_EQ(rows_of(plan_step(views, {.rows = 64, .parallel_prefills = 2})), (Rows{{0, 32, 0}, {1, 32, 0}}));
  // Whole prompts in what the first leaves; the second would be left half done.
  const std::vector<SequenceView> end = {prompt(20, 980), prompt(1000), prompt(30), prompt(14)};
  EXPECT_EQ(rows_of(plan_step(end, {.rows = 64})), (Rows{{0, 20, 0}, {2, 30, 0}, {3, 14, 0}}));
}

TEST(StepPlanner, PrefillRowsAreBoundedApart) {
  const std::vector<SequenceView> views = {decoding(4, 3), prompt(1000)};
  EXPECT_EQ(rows_of(plan_step(views, {.rows = 100, .prefill_rows = 32})), (Rows{{0, 1, 3}, {1, 32, 0}}));
  EXPECT_EQ(rows_of(plan_step(views, {.rows = 100, .prefill_rows = 0})), (Rows{{0, 1, 3}, {1, 1, 0}}));
}

// Whatever comes: the budget holds, every stream decodes in every step, no more prompts are half done than
// allowed, and a crowd that never ends cannot keep a prompt from its end.
TEST(StepPlanner, RandomTrafficKeepsTheRules) {
  std::mt19937 random(3);
  const auto pick = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  struct Live {
    SequenceView view;
    int32_t waited = 0;  // steps until the first token
    int64_t ahead = 0;   // prompt tokens of itself and of those admitted before it
    int32_t answer = 0;
  };
  for (int32_t round = 0; round < 60; ++round) {
    const int32_t most = pick(1, 16);
    const StepLimits limits = {.rows = most + pick(0, 200),
                               .prefill_rows = pick(1, 128),
                               .parallel_prefills = pick(1, 4),
                               .chunk = 1 << pick(0, 6)};
    std::vector<Live> live;
    for (int32_t step = 0; step < 400; ++step) {
      while (static_cast<int32_t>(live.size()) < most && pick(0, 2) > 0) {
        Live one{.view = prompt(pick(1, pick(0, 3) == 0 ? 3000 : 60), pick(0, 3) == 0 ? 256 : 0),
                 .answer = pick(1, 40)};
        for (const Live& other : live) one.ahead += other.view.decoding ? 0 : other.view.pending;
        one.ahead += one.view.pending;
        live.push_back(one);
      }
      std::vector<SequenceView> views;
      for (Live& one : live) {
        one.view.drafts = one.view.decoding ? pick(0, 5) : 0;
        views.push_back(one.view);
      }
      const StepPlan plan = plan_step(views, limits);
      int32_t rows = 0, prompts = 0, half_done = 0;
      std::vector<uint8_t> served(views.size(), 0);
      for (const PlannedRows& p : plan.rows) {
        const SequenceView& view = views[static_cast<size_t>(p.sequence)];
        ASSERT_EQ(served[static_cast<size_t>(p.sequence)]++, 0);
        ASSERT_GE(p.rows, 1);
        ASSERT_LE(p.rows, view.pending);
        ASSERT_LE(p.drafts, view.drafts);
        rows += p.rows + p.drafts;
        if (view.decoding) continue;
        prompts += p.rows;
        half_done += p.rows < view.pending;
      }
      ASSERT_LE(rows, limits.rows);
      ASSERT_LE(prompts, limits.prefill_rows);
      ASSERT_EQ(prompts, plan.prefill_rows);
      ASSERT_EQ(rows - prompts, plan.decode_rows);
      ASSERT_LE(half_done, limits.parallel_prefills);
      bool any_prompt = false;
      for (size_t i = 0; i < views.size(); ++i) {
        any_prompt |= !views[i].decoding;
        if (views[i].decoding) {
          ASSERT_EQ(served[i], 1) << "a stream waited";
        }
      }
      if (any_prompt) {
        ASSERT_GE(prompts, 1) << "drafts starved the prompts";
      }
      // Apply it.
      for (const PlannedRows& p : plan.rows) {
        Live& one = live[static_cast<size_t>(p.sequence)];
        one.view.computed += p.rows;
        one.view.pending -= p.rows;
        if (one.view.pending > 0) continue;
        one.view.pending = 1;
        one.view.decoding = true;
        --one.answer;
      }
      for (Live& one : live) {
        if (!one.view.decoding) {
          // At least one row of those ahead of it, or of itself, is computed in every step, whoever comes
          // after; later prompts get in only where they leave rows over.
          ASSERT_LE(++one.waited, one.ahead);
        }
      }
      std::erase_if(live, [](const Live& one) { return one.answer <= 0; });
    }
  }
}

}  // namespace
}  // namespace spark::engine
