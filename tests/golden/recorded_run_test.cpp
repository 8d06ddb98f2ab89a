// A run of the synthetic checkpoint, recorded from the reference backend when that agreed with the whole
// golden set: what keeps both backends honest where the golden set is not at hand.
//
// Record again after a change of the synthetic weights: SPARK_RECORD_RUN=tests/data/golden/synthetic-run.json
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "golden/golden_file.h"
#include "golden/tiny_model.h"

namespace spark::engine {
namespace {

constexpr size_t kGreedy = 24;
constexpr size_t kStride = 10;  // every tenth row's logits are recorded
constexpr size_t kLogits = 64;  // and of those the first 64

std::vector<int32_t> prompt_of(int32_t vocab) {
  std::vector<int32_t> tokens = {0};
  uint32_t state = 12345;
  while (tokens.size() < 150) {
    state = state * 1664525U + 1013904223U;
    tokens.push_back(static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(vocab)));
  }
  std::copy_n(tokens.begin() + 3, 4, tokens.begin() + 60);  // a repeated 4-gram
  tokens[70] = 2;
  return tokens;
}

struct RunRecord {
  std::vector<int32_t> greedy;
  std::vector<std::vector<float>> logits;
};

RunRecord run_of(Decoder& model) {
  const std::vector<int32_t> prompt = prompt_of(model.vocab_size());
  RunRecord run;
  model.open_sequence(0);
  const golden::Rows rows = golden::run_tokens(model, 0, prompt);
  model.close_sequence(0);
  for (size_t t = 0; t < rows.size(); t += kStride) {
    run.logits.emplace_back(rows[t].begin(), rows[t].begin() + static_cast<std::ptrdiff_t>(kLogits));
  }
  run.greedy = golden::generate(model, 0, prompt, kGreedy);
  return run;
}

class RecordedRun : public testing::TestWithParam<std::string> {};

TEST_P(RecordedRun, StaysWhatItWas) {
  const auto model = golden::load(golden::synthetic_checkpoint(), GetParam());
  const RunRecord run = run_of(*model);
  const char* record = std::getenv("SPARK_RECORD_RUN");
  if (record != nullptr && GetParam() == "reference") {
    const Json json = {{"greedy", run.greedy}, {"logits", run.logits}};
    write_file_atomic(record, json.dump() + "\n");
  }
  const Json want = parse_json(read_file(golden::data_path("synthetic-run.json")), "synthetic-run.json");
  const auto logits = want.at("logits").get<std::vector<std::vector<float>>>();
  ASSERT_EQ(logits.size(), run.logits.size());
  std::vector<double> distance;
  for (size_t i = 0; i < logits.size(); ++i) {
    distance.push_back(golden::relative_l2(run.logits[i].data(), logits[i].data(), kLogits));
  }
  std::sort(distance.begin(), distance.end());
  std::printf("  %-10s recorded run: median %.2e, worst row %.2e\n", GetParam().c_str(),
              distance[distance.size() / 2], distance.back());
  // The reference differs by the C library's last bits at most; another summation order by what such orders
  // do.
  const bool reference = GetParam() == "reference";
  EXPECT_LE(distance[distance.size() / 2], reference ? 1e-3 : 0.06);
  EXPECT_LE(distance.back(), reference ? 0.1 : 0.4);
  EXPECT_EQ(run.greedy, want.at("greedy").get<std::vector<int32_t>>());
}

INSTANTIATE_TEST_SUITE_P(Backends, RecordedRun, testing::ValuesIn(backend_names()));

}  // namespace
}  // namespace spark::engine
