#include "ops/doctor/boot_log.h"

#include <gtest/gtest.h>

#include "common/file.h"
#include "ops/doctor/doctor.h"

namespace spark::ops {
namespace {

BootLogPolicy shipped() {
  Faults faults;
  const std::string path = std::string(SPARK_SOURCE_DIR) + "/" + kBootLogPolicy;
  const BootLogPolicy policy = read_boot_log_policy(parse_json(read_file(path), path), faults);
  throw_if_any(faults, path);
  return policy;
}

std::string rules_of(const std::string& log) {
  std::string rules;
  for (const Finding& finding : judge_boot_log(shipped(), log, "log")) rules += finding.rule + " ";
  return rules;
}

TEST(BootLog, ACleanBootIsClean) {
  EXPECT_EQ(rules_of(""), "");
  EXPECT_EQ(rules_of("INFO 10-05 12:00:00 [core.py:60] Initializing engine\nProfiled DSpark step costs in 3 "
                     "s: verify [[6, 21.4]]\n"),
            "");
}

TEST(BootLog, SilentFallbacksAreErrors) {
  EXPECT_EQ(rules_of("WARNING L2 prefetch compile failed, falling back to plain loads\n"),
            "boot-log.fallback boot-log.compile-failed ");
  EXPECT_EQ(rules_of("Packed head DISABLED: no carve-out\n"), "boot-log.disabled ");
  EXPECT_EQ(rules_of("display carve-out weights changed at 0x12\n"), "boot-log.carveout ");
  EXPECT_EQ(rules_of("NVRM: nvAssert NV_ERR_NO_MEMORY\n"), "boot-log.driver-memory ");
  EXPECT_EQ(rules_of("NVRM: Xid (PCI:000f:01:00): 31\n"), "boot-log.gpu-fault ");
  EXPECT_EQ(rules_of("ncclUnhandled: unhandled system error\n"), "boot-log.transport ");
}

TEST(BootLog, WordsAreWholeAndAllowedLinesPass) {
  EXPECT_EQ(rules_of("the undisabled feature\n"), "");
  EXPECT_EQ(rules_of("FlashInfer autotune disabled\n"), "");
}

TEST(BootLog, AFindingShowsWhereAndHowOften) {
  std::string log = "fine\n";
  for (int i = 0; i < 9; ++i) log += "kernel fallback\n";
  const Findings findings = judge_boot_log(shipped(), log, "rank1.log");
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].file, "rank1.log");
  EXPECT_EQ(findings[0].where, "line 2");
  EXPECT_EQ(findings[0].evidence.rfind("9 lines", 0), 0u);
  EXPECT_EQ(findings[0].details.size(), 5u);
  EXPECT_EQ(findings[0].details[0], "2: kernel fallback");
}

TEST(BootLog, WhatIsShownIsText) {
  // Not UTF-8, an escape, and a character that the cut after 300 columns parts.
  const std::string wide = "fallback " + std::string(290, 'x') + "\xc3\xa9";
  const Findings findings = judge_boot_log(shipped(), "fallback \xb2\x1b[31m\n" + wide + "\n", "rank1.log");
  ASSERT_EQ(findings.size(), 1u);
  ASSERT_EQ(findings[0].details.size(), 2u);
  EXPECT_TRUE(findings[0].details[1].ends_with("x\xef\xbf\xbd"));
  EXPECT_EQ(findings[0].details[0], "1: fallback \xef\xbf\xbd [31m");
  EXPECT_NO_THROW(findings_json(findings).dump());
}

TEST(BootLog, APolicyWithFaultsNamesThem) {
  Faults faults;
  read_boot_log_policy(parse_json(R"({"schema_version": 1, "patterns": [
    {"id": "a", "any": ["x", ""], "severity": "fatal", "because": "b", "fix": "c"}, {"id": "a", "any": 3, "because": "b", "fix": "c", "why": 1}]})",
                                  "p"),
                       faults);
  std::string where;
  for (const Fault& fault : faults) where += fault.where + "\n";
  EXPECT_EQ(where,
            "patterns[0].any[1]\npatterns[0].severity\npatterns[1].why\npatterns[1].id\npatterns[1]."
            "any\n");
}

}  // namespace
}  // namespace spark::ops
