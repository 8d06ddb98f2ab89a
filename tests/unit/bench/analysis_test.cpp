#include <gtest/gtest.h>

#include <cmath>

#include "bench/analysis/describe.h"
#include "bench/analysis/sample_metrics.h"
#include "bench/cases/cases.h"
#include "common/error.h"

namespace spark::bench {
namespace {

TEST(Describe, IntervalUsesStudentT) {
  const double values[] = {10, 12, 11};
  const Description d = describe(values);
  EXPECT_DOUBLE_EQ(d.mean, 11);
  EXPECT_NEAR(*d.ci95, 4.303 * 1.0 / std::sqrt(3.0), 1e-9);
  EXPECT_NEAR(*d.ci95_pct, 100 * *d.ci95 / 11, 1e-9);
  EXPECT_FALSE(describe(std::span(values, 1)).sd.has_value());
  EXPECT_EQ(describe({}).n, 0u);
  EXPECT_DOUBLE_EQ(student_t95(11), 2.228);
  EXPECT_DOUBLE_EQ(student_t95(5000), 1.980);
}

TEST(Describe, ConvergesOnPrecisionOrCount) {
  const double wide[] = {10, 20, 30};
  const double tight[] = {10, 10.01, 10.02};
  EXPECT_FALSE(converged(describe(wide), 3, 4, 2));
  EXPECT_TRUE(converged(describe(tight), 3, 4, 2));
  EXPECT_FALSE(converged(describe(tight), 4, 6, 2));
  EXPECT_TRUE(converged(describe(wide), 2, 3, 2));
}

TEST(SampleMetrics, WindowSpansAllStreams) {
  const StreamTiming streams[] = {{true, 0, 1, 3, 21}, {true, 0, 2, 5, 31}, {false, 0, 0, 9, 100}};
  const SampleMetrics m = sample_metrics(streams, 5);
  EXPECT_DOUBLE_EQ(m.tps, 52.0 / 5);
  EXPECT_DOUBLE_EQ(*m.decode_window_tps, 50.0 / 4);
  EXPECT_DOUBLE_EQ(*m.per_stream_tps, 10);
  EXPECT_DOUBLE_EQ(*m.ttft_s, 1.5);
  EXPECT_FALSE(sample_metrics({}, 1).decode_window_tps.has_value());
}

TEST(Cases, UnknownNamesAreRefusedWithTheNearest) {
  EXPECT_EQ(select_cases("code,prose,code").size(), 2u);
  try {
    select_cases("prosa");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.hint(), "did you mean \"prose\"?");
  }
  EXPECT_EQ(prompt_set_id().size(), 16u);
}

}  // namespace
}  // namespace spark::bench
