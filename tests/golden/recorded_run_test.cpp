// A run of the synthetic checkpoint, recorded from the reference backend when that agreed with the whole
// golden set: what keeps both backends honest where the golden set is not at hand.
//
// Record again after a change of the synthetic weights: SPARK_RECORD_RUN=tests/data/golden/synthetic-run.json
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>

#include "golden/golden_file.h"
#include "golden/tiny_model.h"

namespace spark::engine {
namespace {

constexpr size_t kRecordedPrompts = 3;
constexpr size_t kGreedy = 16;
constexpr size_t kStride = 10;  // every tenth row's logits are recorded
constexpr size_t kLogits = 64;  // and of those the first 64
// Below this distance between the best two logits another summation order may choose the other token.
constexpr float kRobustGap = 1.5F;

std::vector<int32_t> prompt_of(int32_t vocab, size_t which) {
  std::vector<int32_t> tokens = {0};
  uint32_t state = 12345 + 1000 * static_cast<uint32_t>(which);
  while (tokens.size() < 50 + 35 * which) {
    state = state * 1664525U + 1013904223U;
    tokens.push_back(static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(vocab)));
  }
  std::copy_n(tokens.begin() + 3, 4, tokens.begin() + 20);  // a repeated 4-gram
  tokens[31] = 2;
  return tokens;
}

struct RecordedPrompt {
  std::vector<std::vector<float>> logits;
  std::vector<int32_t> greedy;
  std::vector<float> gap;  // best minus second, where each greedy id was chosen
};

// Prefill, then decoding token by token: of what it says itself, or of `forced` ids where given, so that one
// near-tie does not end the comparison.
RecordedPrompt run_of(Decoder& model, size_t which, const std::vector<int32_t>& forced) {
  std::vector<int32_t> tokens = prompt_of(model.vocab_size(), which);
  RecordedPrompt run;
  model.open_sequence(0);
  golden::Rows rows = golden::run_tokens(model, 0, tokens);
  for (size_t t = 0; t < rows.size(); t += kStride) {
    run.logits.emplace_back(rows[t].begin(), rows[t].begin() + static_cast<std::ptrdiff_t>(kLogits));
  }
  while (true) {
    std::vector<float> last = rows.back();
    run.greedy.push_back(golden::argmax(last));
    std::partial_sort(last.begin(), last.begin() + 2, last.end(), std::greater<>());
    run.gap.push_back(last[0] - last[1]);
    if (run.greedy.size() == kGreedy) break;
    const int32_t next = forced.empty() ? run.greedy.back() : forced[run.greedy.size() - 1];
    rows = golden::run_tokens(model, 0, {next}, static_cast<int32_t>(tokens.size()));
    tokens.push_back(next);
  }
  model.close_sequence(0);
  return run;
}

class RecordedRun : public testing::TestWithParam<std::string> {};

TEST_P(RecordedRun, StaysWhatItWas) {
  const bool reference = GetParam() == "reference";
  const auto model = golden::load(golden::synthetic_checkpoint(), GetParam());
  const char* record = std::getenv("SPARK_RECORD_RUN");
  if (record != nullptr && reference) {
    Json json = Json::array();
    for (size_t which = 0; which < kRecordedPrompts; ++which) {
      const RecordedPrompt run = run_of(*model, which, {});
      json.push_back({{"greedy", run.greedy}, {"gap", run.gap}, {"logits", run.logits}});
    }
    write_file_atomic(record, json.dump() + "\n");
  }
  const Json want = parse_json(read_file(golden::data_path("synthetic-run.json")), "synthetic-run.json");
  ASSERT_EQ(want.size(), kRecordedPrompts);
  std::vector<double> distance;
  size_t compared = 0;
  for (size_t which = 0; which < kRecordedPrompts; ++which) {
    const auto logits = want[which].at("logits").get<std::vector<std::vector<float>>>();
    const auto greedy = want[which].at("greedy").get<std::vector<int32_t>>();
    const auto gap = want[which].at("gap").get<std::vector<float>>();
    const RecordedPrompt run = run_of(*model, which, greedy);
    ASSERT_EQ(logits.size(), run.logits.size());
    for (size_t i = 0; i < logits.size(); ++i) {
      distance.push_back(golden::relative_l2(run.logits[i].data(), logits[i].data(), kLogits));
    }
    for (size_t i = 0; i < kGreedy; ++i) {
      if (!reference && gap[i] < kRobustGap) continue;
      ++compared;
      EXPECT_EQ(run.greedy[i], greedy[i]) << "prompt " << which << " id " << i;
    }
  }
  std::sort(distance.begin(), distance.end());
  std::printf("  %-10s recorded run: median %.2e, worst row %.2e, %zu greedy ids compared\n",
              GetParam().c_str(), distance[distance.size() / 2], distance.back(), compared);
  // The reference differs by the C library's last bits at most; another summation order by what such orders
  // do.
  EXPECT_LE(distance[distance.size() / 2], reference ? 1e-3 : 0.06);
  EXPECT_LE(distance.back(), reference ? 0.1 : 0.4);
  EXPECT_GE(compared, kGreedy);
}

INSTANTIATE_TEST_SUITE_P(Backends, RecordedRun, testing::ValuesIn(backend_names()));

}  // namespace
}  // namespace spark::engine
