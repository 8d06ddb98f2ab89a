// Rules 1 and 4 of the golden set: logits of whole runs, and greedy continuations.
#include <gtest/gtest.h>

#include <cstdio>

#include "common/statistics.h"
#include "golden/golden_file.h"
#include "golden/tiny_model.h"

namespace spark::engine {
namespace {

using golden::GoldenFile;

class GoldenGeneration : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    folder_ = golden::full_set();
    if (folder_.empty()) GTEST_SKIP() << "the full golden set is not here (SPARK_GOLDEN_DIR)";
    file_ = std::make_unique<GoldenFile>(folder_ + "/generation.safetensors");
    facts_ = parse_json(read_file(folder_ + "/generation.json"), "generation.json");
    model_ = golden::load(folder_ + "/tiny-checkpoint", GetParam());
  }

  std::string folder_;
  std::unique_ptr<GoldenFile> file_;
  Json facts_;
  std::unique_ptr<Decoder> model_;
};

TEST_P(GoldenGeneration, LogitsStayWithinTheChainedRule) {
  for (const auto& [name, facts] : facts_.items()) {
    const auto prompt = file_->get<int32_t>(name + ".prompt");
    const auto greedy = file_->get<int32_t>(name + ".greedy");
    const auto rows = file_->get<int32_t>(name + ".rows");
    const auto want = file_->get<float>(name + ".logits");
    std::vector<int32_t> tokens = prompt;
    tokens.insert(tokens.end(), greedy.begin(), greedy.end() - 1);
    model_->open_sequence(0);
    const golden::Rows got = golden::run_tokens(*model_, 0, tokens);
    model_->close_sequence(0);
    std::vector<double> distance;
    const size_t vocab = static_cast<size_t>(model_->vocab_size());
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::vector<float>& row = got[static_cast<size_t>(rows[i])];
      distance.push_back(golden::relative_l2(row.data(), want.data() + i * vocab, vocab));
    }
    const Json& noise = facts.at("noise").at("logits_rel_l2");
    const double median_limit = 1.4 * noise.at("worst_order_median").get<double>() + 0.004;
    const double row_limit = 2 * noise.at("max").get<double>();
    std::sort(distance.begin(), distance.end());
    const double middle = distance[distance.size() / 2];
    std::printf("  %-10s %-5s logits: median %.4f (limit %.4f), worst row %.4f (limit %.4f)\n",
                GetParam().c_str(), name.c_str(), middle, median_limit, distance.back(), row_limit);
    EXPECT_LE(middle, median_limit) << name;
    EXPECT_LE(distance.back(), row_limit) << name;
  }
}

TEST_P(GoldenGeneration, GreedyIdsAreThoseOfTheReference) {
  for (const auto& [name, facts] : facts_.items()) {
    const auto prompt = file_->get<int32_t>(name + ".prompt");
    const auto greedy = file_->get<int32_t>(name + ".greedy");
    const auto got = golden::generate(*model_, 0, prompt, greedy.size());
    const auto differs = std::mismatch(got.begin(), got.end(), greedy.begin()).first - got.begin();
    std::printf("  %-10s %-5s greedy: %td of %zu ids equal\n", GetParam().c_str(), name.c_str(), differs,
                greedy.size());
    if (facts.at("robust").get<bool>()) {
      EXPECT_EQ(got, greedy) << name;
    } else {
      EXPECT_GE(differs, 16) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, GoldenGeneration, testing::ValuesIn(backend_names()));

}  // namespace
}  // namespace spark::engine
