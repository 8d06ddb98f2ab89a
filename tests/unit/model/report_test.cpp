#include "model/report.h"

#include <gtest/gtest.h>

#include "unit/model/published_config.h"

namespace spark::model {
namespace {

TEST(ModelReport, SaysWhatThePublishedModelIs) {
  const ModelReport report = make_model_report(published_config(), 3);
  const std::string text = report_text(report);
  for (const char* part : {"3-7 ", "37-39", "drafter 0-2", "96,085", "510,286,023,000", "890.0 B",
                           "24 query heads in 3 groups", "43,136 vocabulary rows"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  const Json json = report_json(report);
  EXPECT_EQ(json["layers"].size(), 40u);
  EXPECT_EQ(json["layers"][24]["attention"], "reindex");
  EXPECT_EQ(json["total"]["bytes"], 510286023000);
  EXPECT_EQ(json["cache"]["bytes_per_token"], 890);
  EXPECT_EQ(json["tensor_parallel"]["ranks"], 3);
}

TEST(ModelReport, SpeaksOfRanksOnlyWhenThereAreSeveral) {
  EXPECT_EQ(report_text(make_model_report(published_config(), 1)).find("ranks"), std::string::npos);
  EXPECT_THROW(make_model_report(published_config(), 5), Error);
}

}  // namespace
}  // namespace spark::model
