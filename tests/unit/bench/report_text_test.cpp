// The table quotes what a server said; no word of it may look like a line of ours or reach the terminal's
// ear.
#include <gtest/gtest.h>

#include "bench/report/report.h"

namespace spark::bench {
namespace {

TEST(ReportText, AServersWordsAreShownNotObeyed) {
  const std::string hostile = "x\x1b[2J\x1b]0;t\x07\r\nFAIL: forged";
  Report report;
  report.model = report.url = report.prompt_set = report.aborted = hostile;
  report.points.push_back({hostile, 1, {}});
  DecodeSample sample;
  sample.receipts.emplace_back().error = hostile;
  report.points.back().samples.push_back(sample);
  const std::string table = report_table(report_json(report), "fresh");
  for (const char* obeyed : {"\x1b", "\x07", "\r", "\nFAIL: forged"}) {
    EXPECT_EQ(table.find(obeyed), std::string::npos) << table;
  }
  EXPECT_NE(table.find("FAIL: forged"), std::string::npos) << table;
}

}  // namespace
}  // namespace spark::bench
