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

TEST(ReportText, TwoSamplesHaveNoSpread) {
  const auto table_of = [](size_t samples) {
    Report report;
    report.points.push_back({"prose", 1, {}});
    for (size_t i = 0; i < samples; ++i) {
      DecodeSample sample;
      sample.metrics.decode_window_tps = 10.0 + static_cast<double>(i % 2);
      sample.receipts.emplace_back().ok = true;
      report.points.back().samples.push_back(sample);
    }
    return report_table(report_json(report), "fresh");
  };
  EXPECT_NE(table_of(2).find("10.5"), std::string::npos) << table_of(2);
  EXPECT_EQ(table_of(2).find("±"), table_of(2).npos) << table_of(2);
  EXPECT_NE(table_of(3).find("±"), std::string::npos) << table_of(3);
}

}  // namespace
}  // namespace spark::bench
