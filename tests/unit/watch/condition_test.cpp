// When a change is told, and when it is not.
#include "ops/watch/condition.h"

#include <gtest/gtest.h>

namespace spark::ops {
namespace {

// 'g', 'b', 'c' (bad of another kind), 'u'; per look what is reported: '.', 'B'egan, 'C'hanged, 'E'nded,
// 'F'laps.
std::string reports(Condition& condition, const std::string& looks) {
  std::string text;
  double time_s = 0;
  for (const char each : looks) {
    Look look;
    if (each == 'g') look = {LookState::kGood, "", ""};
    if (each == 'b') look = {LookState::kBad, "stopped", "has ended"};
    if (each == 'c') look = {LookState::kBad, "absent", "is gone"};
    const auto report = condition.look(time_s++, look);
    text += report ? "BCEF"[static_cast<size_t>(report->change)] : '.';
  }
  return text;
}

std::string reports(const ConditionRules& rules, const std::string& looks) {
  Condition condition(rules);
  return reports(condition, looks);
}

TEST(WatchCondition, TellsChangesOnly) {
  EXPECT_EQ(reports(ConditionRules{}, "gggbbbggg"), "...B..E..");
  EXPECT_EQ(reports(ConditionRules{}, "bbb"), "B..");
  EXPECT_EQ(reports(ConditionRules{}, "bccb"), "BC.C");
}

TEST(WatchCondition, UnknownChangesNothing) {
  EXPECT_EQ(reports(ConditionRules{}, "guuubuuubug"), "....B.....E");
  EXPECT_EQ(reports(ConditionRules{}, "uuu"), "...");
  EXPECT_EQ(reports(ConditionRules{.confirm = 2}, "bub"), "..B");
}

TEST(WatchCondition, ConfirmationNeedsLooksInARow) {
  EXPECT_EQ(reports(ConditionRules{.confirm = 3}, "bbgbbbb"), ".....B.");
  EXPECT_EQ(reports(ConditionRules{.confirm = 3}, "bbgbbggbgbb"), "...........");
}

TEST(WatchCondition, WhatComesAndGoesIsToldOnceUntilItStays) {
  const ConditionRules rules{.confirm = 1, .flap_changes = 6, .flap_looks = 20, .settled_looks = 4};
  EXPECT_EQ(reports(rules, "gbgbgbgbgbgbgbbbbb"), ".BEBEBF..........C");
  EXPECT_EQ(reports(rules, "gbgbgbgbgbgbggggg"), ".BEBEBF.........E");
  // It may do so again.
  Condition condition(rules);
  EXPECT_EQ(reports(condition, "gbgbgbgggggb"), ".BEBEBF...EB");
  // Slowly is not flapping.
  std::string slow, told;
  for (int i = 0; i < 10; ++i) slow += "bggggggggg", told += "BE........";
  EXPECT_EQ(reports(rules, slow), told);
}

TEST(WatchCondition, SaysHowLongItLasted) {
  Condition condition;
  condition.look(100, {LookState::kBad, "stopped", "has ended"});
  condition.look(110, {LookState::kBad, "stopped", "has ended for a while"});
  EXPECT_EQ(condition.text(), "has ended for a while");
  EXPECT_TRUE(condition.bad());
  const auto report = condition.look(130, {LookState::kGood, "", ""});
  ASSERT_TRUE(report);
  EXPECT_EQ(report->change, ConditionChange::kEnded);
  EXPECT_DOUBLE_EQ(report->lasted_s, 30);
}

}  // namespace
}  // namespace spark::ops
