// The drafter of the golden set: drafts, confidences and a whole greedy speculative run.
#include <gtest/gtest.h>

#include <cstdio>

#include "engine/numeric/numeric.h"
#include "golden/golden_file.h"
#include "golden/tiny_model.h"

namespace spark::engine {
namespace {

using golden::GoldenFile;

// The loop of speculative decoding at temperature 0: draft a block, verify all of it, keep what the model
// itself would have said, plus one token.
struct SpeculativeRun {
  std::vector<int32_t> committed;  // tokens before each step
  std::vector<int32_t> anchor;
  std::vector<int32_t> drafts;    // [steps][block]
  std::vector<float> confidence;  // [steps][block]
  std::vector<int32_t> accepted;
  std::vector<float> base_logits;  // of the first steps
  std::vector<float> draft_logits;
  std::vector<int32_t> output;
};

SpeculativeRun speculate(Decoder& model, const std::vector<int32_t>& prompt, size_t count,
                         size_t logit_steps) {
  SpeculativeRun run;
  Drafter& drafter = *model.drafter();
  drafter.keep_logits();
  run.output.push_back(golden::argmax(golden::run_tokens(model, 0, prompt).back()));
  while (run.output.size() < count) {
    const int32_t committed = static_cast<int32_t>(prompt.size() + run.output.size()) - 1;
    const int32_t anchor = run.output.back();
    const std::vector<DraftRequest> request = {{.sequence = 0, .anchor = anchor, .position = committed - 1}};
    const Drafts drafts = drafter.draft(request);
    std::vector<int32_t> rows = {anchor};
    rows.insert(rows.end(), drafts.tokens.begin(), drafts.tokens.end());
    run.committed.push_back(committed);
    run.anchor.push_back(anchor);
    run.drafts.insert(run.drafts.end(), drafts.tokens.begin(), drafts.tokens.end());
    run.confidence.insert(run.confidence.end(), drafts.confidence.begin(), drafts.confidence.end());
    if (run.accepted.size() < logit_steps) {
      for (const float v : drafter.base_logits()) run.base_logits.push_back(v);
      for (const float v : drafter.logits()) run.draft_logits.push_back(v);
    }
    const golden::Rows verdict = golden::run_tokens(model, 0, rows, committed);
    int32_t accepted = 0;
    for (size_t i = 0; i < verdict.size(); ++i) {
      const int32_t said = golden::argmax(verdict[i]);
      run.output.push_back(said);
      if (i + 1 == verdict.size() || said != rows[i + 1]) break;
      ++accepted;
    }
    run.accepted.push_back(accepted);
  }
  run.output.resize(count);
  return run;
}

class GoldenDrafter : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    folder_ = golden::full_set();
    if (folder_.empty()) GTEST_SKIP() << "the full golden set is not here (SPARK_GOLDEN_DIR)";
    file_ = std::make_unique<GoldenFile>(folder_ + "/drafter.safetensors");
    facts_ = parse_json(read_file(folder_ + "/drafter.json"), "drafter.json");
    model_ = golden::load(folder_ + "/tiny-checkpoint", GetParam());
  }

  double worst_row(const std::vector<float>& got, const std::vector<float>& want) const {
    double worst = 0;
    for (size_t at = 0; at < want.size(); at += 640) {
      worst = std::max(worst, golden::relative_l2(got.data() + at, want.data() + at, 640));
    }
    return worst;
  }

  std::string folder_;
  std::unique_ptr<GoldenFile> file_;
  Json facts_;
  std::unique_ptr<Decoder> model_;
};

TEST_P(GoldenDrafter, SpeculativeRunsAreThoseOfTheReference) {
  for (const auto& [name, facts] : facts_.items()) {
    const auto prompt = file_->get<int32_t>(name + ".prompt");
    const auto greedy = file_->get<int32_t>(name + ".greedy");
    model_->open_sequence(0);
    const SpeculativeRun run = speculate(*model_, prompt, greedy.size(), 3);
    model_->close_sequence(0);
    EXPECT_EQ(run.output, greedy) << name;
    const auto want_committed = file_->get<int32_t>(name + ".step_committed");
    const auto want_drafts = file_->get<int32_t>(name + ".step_drafts");
    const auto want_confidence = file_->get<float>(name + ".step_confidence");
    const auto stable = file_->get<uint8_t>(name + ".step_stable");
    const double confidence_limit = 3 * facts.at("confidence_noise_abs").get<double>();
    size_t compared = 0;
    double worst_confidence = 0;
    // The two runs may part where a step is not stable; up to there they are step by step the same.
    for (size_t step = 0; step < std::min(want_committed.size(), run.committed.size()); ++step) {
      if (run.committed[step] != want_committed[step]) break;
      for (size_t i = 0; i < 5; ++i) {
        const size_t at = step * 5 + i;
        if (stable[step] != 0) {
          EXPECT_EQ(run.drafts[at], want_drafts[at]) << name << " step " << step;
        }
        if (run.drafts[at] != want_drafts[at]) break;
        worst_confidence = std::max(worst_confidence, std::fabs(static_cast<double>(run.confidence[at]) -
                                                                static_cast<double>(want_confidence[at])));
        ++compared;
      }
    }
    const double logit_limit = 2 * facts.at("draft_logits_rel_l2").at("max").get<double>();
    const double base = worst_row(run.base_logits, file_->get<float>(name + ".draft_base_logits"));
    const double biased = worst_row(run.draft_logits, file_->get<float>(name + ".draft_logits"));
    std::printf(
        "  %-10s %-5s drafts: %zu of %zu equal, confidence off by %.2e (limit %.2e), logits %.2e and %.2e "
        "(limit %.2e)\n",
        GetParam().c_str(), name.c_str(), compared, want_drafts.size(), worst_confidence, confidence_limit,
        base, biased, logit_limit);
    EXPECT_LE(worst_confidence, confidence_limit) << name;
    EXPECT_LE(base, logit_limit) << name;
    EXPECT_LE(biased, logit_limit) << name;
    EXPECT_GE(compared * 2, want_drafts.size()) << name;
  }
}

TEST_P(GoldenDrafter, ContextSideAfterAPrompt) {
  for (const auto& [name, facts] : facts_.items()) {
    const auto prompt = file_->get<int32_t>(name + ".prompt");
    const auto want = file_->get<uint16_t>(name + ".main_x");
    model_->open_sequence(0);
    golden::run_tokens(*model_, 0, prompt);
    std::vector<uint16_t> got(want.size());
    model_->backend().download(got.data(), model_->drafter()->main_x(), got.size() * sizeof(uint16_t));
    double worst = 0;
    for (size_t at = 0; at < want.size(); at += 128) {
      worst = std::max(worst, golden::relative_l2(got.data() + at, want.data() + at, 128));
    }
    std::printf("  %-10s %-5s projected inputs: worst row %.2e\n", GetParam().c_str(), name.c_str(), worst);
    EXPECT_LE(worst, 0.4) << name;
    for (int32_t m = 0; m < 3; ++m) {
      const std::string tensor = name + ".mtp." + std::to_string(m) + ".attn.window_bytes";
      const auto records = file_->get<uint8_t>(tensor);
      const PagedCache cache = model_->cache().window(9 + m);
      int32_t block = -1;
      model_->backend().download(&block, cache.block_table, sizeof(block));
      std::vector<uint8_t> stored(records.size());
      model_->backend().download(stored.data(),
                                 cache.base + int64_t{block} * cache.records_per_block * cache.record_bytes,
                                 stored.size());
      // 64 codes and 2 scales decode to 64 channels.
      std::vector<uint16_t> mine(64), theirs(64);
      double distance = 0;
      for (size_t at = 0; at < records.size(); at += 66) {
        decode_window_record(std::span(stored).subspan(at, 66), mine);
        decode_window_record(std::span(records).subspan(at, 66), theirs);
        distance = std::max(distance, golden::relative_l2(mine.data(), theirs.data(), 64));
      }
      std::printf("  %-10s %-5s window records of block %d: worst row %.2e\n", GetParam().c_str(),
                  name.c_str(), m, distance);
      EXPECT_LE(distance, 0.4) << tensor;
    }
    model_->close_sequence(0);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, GoldenDrafter, testing::ValuesIn(backend_names()));

}  // namespace
}  // namespace spark::engine
