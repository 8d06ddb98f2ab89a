#include "ops/watch/condition.h"

namespace spark::ops {

std::optional<ConditionReport> Condition::look(double time_s, const Look& look) {
  if (look.state == LookState::kUnknown) return std::nullopt;
  ++looks_;
  const bool seen_bad = look.state == LookState::kBad;
  streak_ = seen_bad ? streak_ + 1 : 0;
  const bool now_bad = seen_bad && (bad_ || streak_ >= rules_.confirm);
  const bool other_kind = now_bad && bad_ && look.kind != kind_;
  if (now_bad) {
    kind_ = look.kind;
    text_ = look.text;
  }
  if (now_bad != bad_ || other_kind) {
    bad_ = now_bad;
    changed_ = looks_;
    changes_.push_back(looks_);
    while (changes_.front() <= looks_ - rules_.flap_looks) changes_.pop_front();
    if (flapping_) return std::nullopt;
    if (changes_.size() >= static_cast<size_t>(rules_.flap_changes)) {
      flapping_ = true;
      return ConditionReport{ConditionChange::kFlaps, text_, 0};
    }
  } else if (flapping_ && looks_ - changed_ >= rules_.settled_looks) {
    flapping_ = false;
    changes_.clear();
  } else {
    return std::nullopt;
  }
  if (bad_) {
    const ConditionChange change = told_bad_ ? ConditionChange::kChanged : ConditionChange::kBegan;
    if (!told_bad_) since_s_ = time_s;
    told_bad_ = true;
    return ConditionReport{change, text_, 0};
  }
  told_bad_ = false;
  return ConditionReport{ConditionChange::kEnded, {}, time_s - since_s_};
}

}  // namespace spark::ops
