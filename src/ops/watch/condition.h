// One thing that is in order or not, seen again and again: reports changes, not states. A fault counts after
// `confirm` looks in a row, its end after one; looks that could not tell change nothing. What comes and goes
// is reported as such once and then kept quiet until it stays.
//
//   Condition condition({.confirm = 2});
//   for (...) if (const auto change = condition.look(time_s, {LookState::kBad, "stopped", "has ended"}))
//     print(*change);
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace spark::ops {

enum class LookState { kUnknown, kGood, kBad };

struct Look {
  LookState state = LookState::kUnknown;
  std::string kind = {};  // of a fault: another kind is reported anew
  std::string text = {};  // for people
};

struct ConditionRules {
  int confirm = 1;
  int flap_changes = 6;   // reported changes ...
  int flap_looks = 20;    // ... within so many looks: it comes and goes
  int settled_looks = 8;  // it has settled when nothing changed for so many
};

enum class ConditionChange { kBegan, kChanged, kEnded, kFlaps };

struct ConditionReport {
  ConditionChange change = ConditionChange::kBegan;
  std::string text;     // of the fault; empty for kEnded
  double lasted_s = 0;  // of kEnded
};

class Condition {
 public:
  explicit Condition(ConditionRules rules = {}) : rules_(rules) {}

  std::optional<ConditionReport> look(double time_s, const Look& look);
  bool bad() const { return bad_; }
  const std::string& text() const { return text_; }

 private:
  ConditionRules rules_;
  bool bad_ = false, told_bad_ = false, flapping_ = false;
  int streak_ = 0;       // bad looks in a row before it counts
  int64_t looks_ = 0;    // that could tell
  int64_t changed_ = 0;  // the look of the last change
  double since_s_ = 0;   // when what was told began
  std::string kind_, text_;
  std::deque<int64_t> changes_;  // the looks of the last changes
};

}  // namespace spark::ops
