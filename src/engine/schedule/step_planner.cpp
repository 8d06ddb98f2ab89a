#include "engine/schedule/step_planner.h"

#include <algorithm>

#include "common/error.h"

namespace spark::engine {
namespace {

constexpr int32_t kPromisedShare = 8;  // one row in so many is a prompt's, whatever is drafted

class Planner {
 public:
  Planner(std::span<const SequenceView> views, const StepLimits& limits)
      : views_(views), limits_(limits), left_(limits.rows), given_(views.size()) {}

  StepPlan plan() {
    decode();
    draft();
    prefill();
    return collected();
  }

 private:
  bool has_prompts() const {
    return std::any_of(views_.begin(), views_.end(), [](const SequenceView& view) { return !view.decoding; });
  }

  void decode() {
    for (size_t i = 0; i < views_.size(); ++i) {
      SPARK_CHECK(views_[i].pending >= 1);
      if (!views_[i].decoding) continue;
      SPARK_CHECK(views_[i].pending == 1);
      if (left_ == 0) return;
      given_[i].rows = 1;
      --left_;
    }
  }

  void draft() {
    const int32_t promised = has_prompts() ? std::max(1, limits_.rows / kPromisedShare) : 0;
    int32_t spare = left_ - std::min(left_, promised);
    for (int32_t depth = 1; spare > 0; ++depth) {
      bool any = false;
      for (size_t i = 0; i < views_.size() && spare > 0; ++i) {
        if (given_[i].rows == 0 || views_[i].drafts < depth) continue;
        given_[i].drafts = depth;
        --spare;
        --left_;
        any = true;
      }
      if (!any) return;
    }
  }

  void prefill() {
    int32_t rows = std::min(left_, std::max(limits_.prefill_rows, 1));
    const std::vector<size_t> begun = first_prompts();
    for (size_t n = begun.size(); n > 0 && rows > 0; --n) {
      const size_t i = begun[begun.size() - n];
      const int32_t others = static_cast<int32_t>(n);
      give(i, (rows + others - 1) / others, rows);
    }
    // A share that a later prompt did not need goes to the earlier ones.
    for (const size_t i : begun) give(i, rows, rows);
    for (size_t i = 0; i < views_.size() && rows > 0; ++i) {
      const SequenceView& view = views_[i];
      if (view.decoding || given_[i].rows > 0 || view.pending > rows) continue;
      give(i, view.pending, rows);
    }
  }

  // Those that may be left half done.
  std::vector<size_t> first_prompts() const {
    std::vector<size_t> chosen;
    for (size_t i = 0; i < views_.size(); ++i) {
      if (chosen.size() == static_cast<size_t>(std::max(limits_.parallel_prefills, 1))) break;
      if (!views_[i].decoding) chosen.push_back(i);
    }
    return chosen;
  }

  // Up to `share` more rows of the prompt.
  void give(size_t i, int32_t share, int32_t& rows) {
    const SequenceView& view = views_[i];
    int32_t total = given_[i].rows + std::min({share, rows, view.pending - given_[i].rows});
    const int32_t end = view.computed + total;
    if (total < view.pending && limits_.chunk > 1) {
      const int32_t border = end / limits_.chunk * limits_.chunk;
      if (border > view.computed) total = border - view.computed;
    }
    if (total <= given_[i].rows) return;
    rows -= total - given_[i].rows;
    given_[i].rows = total;
  }

  StepPlan collected() const {
    StepPlan plan;
    for (const bool decoding : {true, false}) {
      for (size_t i = 0; i < views_.size(); ++i) {
        const PlannedRows& given = given_[i];
        if (views_[i].decoding != decoding || given.rows == 0) continue;
        plan.rows.push_back({static_cast<int32_t>(i), given.rows, given.drafts});
        (decoding ? plan.decode_rows : plan.prefill_rows) += given.rows + given.drafts;
      }
    }
    return plan;
  }

  std::span<const SequenceView> views_;
  const StepLimits& limits_;
  int32_t left_;
  std::vector<PlannedRows> given_;  // by view
};

}  // namespace

StepPlan plan_step(std::span<const SequenceView> views, const StepLimits& limits) {
  return Planner(views, limits).plan();
}

}  // namespace spark::engine
