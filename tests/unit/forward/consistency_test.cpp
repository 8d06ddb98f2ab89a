// A row's result depends on nothing but the tokens before it: not on chunks, batch, cuts or threads. All
// comparisons are bit for bit, on random prompts.
#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "golden/golden_file.h"
#include "golden/tiny_model.h"

namespace spark::engine {
namespace {

using golden::Rows;

class Consistency : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { model_ = golden::load(golden::synthetic_checkpoint(), GetParam()); }

  bool fast() const { return GetParam() != "reference"; }

  std::vector<int32_t> random_tokens(size_t count) {
    std::uniform_int_distribution<int32_t> token(0, model_->vocab_size() - 1);
    std::vector<int32_t> tokens(count);
    for (int32_t& t : tokens) t = token(random_);
    // Repeated 4-grams, the pad token and the drafter's placeholder take special ways.
    for (size_t i = 8; i + 4 < count; i += 37)
      std::copy_n(tokens.begin() + 2, 4, tokens.begin() + static_cast<std::ptrdiff_t>(i));
    if (count > 20) {
      tokens[11] = 2;
      tokens[13] = model_->config().dspark_noise_token_id;
    }
    return tokens;
  }

  Rows alone(const std::vector<int32_t>& tokens, size_t chunk = 0) {
    model_->open_sequence(0);
    Rows rows = golden::run_tokens(*model_, 0, tokens, 0, chunk);
    model_->close_sequence(0);
    return rows;
  }

  int32_t pick(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }

  std::mt19937 random_{20};
  std::unique_ptr<Decoder> model_;
};

// The number of the first row that differs, or -1.
int64_t first_difference(const Rows& a, const Rows& b) {
  if (a.size() != b.size()) return 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return static_cast<int64_t>(i);
  }
  return -1;
}

TEST_P(Consistency, ChunksOfAnySizeAndTokenByToken) {
  std::vector<size_t> chunks;
  for (size_t chunk = 1; chunk <= 17; ++chunk) chunks.push_back(chunk);
  chunks.insert(chunks.end(), {64, 128});
  const std::vector<size_t> lengths = fast() ? std::vector<size_t>{400, 263, 131} : std::vector<size_t>{67};
  for (const size_t length : lengths) {
    const std::vector<int32_t> tokens = random_tokens(length);
    const Rows whole = alone(tokens);
    for (const size_t chunk : chunks) {
      EXPECT_EQ(first_difference(alone(tokens, chunk), whole), -1)
          << length << " tokens, chunks of " << chunk;
    }
  }
  const std::vector<int32_t> tokens = random_tokens(400);
  EXPECT_EQ(first_difference(alone(tokens, 1), alone(tokens)), -1) << "400 tokens one by one";
}

TEST_P(Consistency, BorderAfterAnyRow) {
  const std::vector<int32_t> tokens = random_tokens(fast() ? 300 : 40);
  const Rows whole = alone(tokens);
  std::vector<size_t> borders;
  for (size_t border = 1; border <= 17; ++border) borders.push_back(border);
  borders.insert(borders.end(), {64, 128});
  for (const size_t border : borders) {
    if (border >= tokens.size()) continue;
    const auto at = tokens.begin() + static_cast<std::ptrdiff_t>(border);
    model_->open_sequence(0);
    Rows rows = golden::run_tokens(*model_, 0, {tokens.begin(), at});
    for (auto& row : golden::run_tokens(*model_, 0, {at, tokens.end()}, static_cast<int32_t>(border)))
      rows.push_back(row);
    model_->close_sequence(0);
    EXPECT_EQ(first_difference(rows, whole), -1) << "border at " << border;
  }
}

TEST_P(Consistency, ManySequencesAtOnce) {
  const size_t longest = fast() ? 400 : 60;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<Rows> expected;
  for (const size_t length : {longest, longest / 2 + 1, size_t{1}, longest / 3, size_t{7}}) {
    prompts.push_back(random_tokens(length));
    expected.push_back(alone(prompts.back()));
  }
  std::vector<Rows> got(prompts.size());
  for (size_t s = 0; s < prompts.size(); ++s) model_->open_sequence(static_cast<int32_t>(s));
  for (bool more = true; more;) {
    more = false;
    std::vector<StepRow> rows;
    for (size_t s = 0; s < prompts.size(); ++s) {
      const size_t left = prompts[s].size() - got[s].size();
      const size_t take = std::min(left, static_cast<size_t>(pick(0, pick(0, 1) == 0 ? 3 : 60)));
      for (size_t i = 0; i < take; ++i) {
        const size_t p = got[s].size() + i;
        rows.push_back({.sequence = static_cast<int32_t>(s),
                        .token = prompts[s][p],
                        .position = static_cast<int32_t>(p),
                        .wants_logits = true});
      }
      more = more || left > 0;
    }
    const auto logits = model_->run(rows);
    const size_t vocab = static_cast<size_t>(model_->vocab_size());
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(i * vocab);
      got[static_cast<size_t>(rows[i].sequence)].emplace_back(begin,
                                                              begin + static_cast<std::ptrdiff_t>(vocab));
    }
  }
  for (size_t s = 0; s < prompts.size(); ++s) {
    EXPECT_EQ(first_difference(got[s], expected[s]), -1) << "sequence " << s;
    model_->close_sequence(static_cast<int32_t>(s));
  }
}

TEST_P(Consistency, CutBackRowsLeaveNoTrace) {
  const std::vector<int32_t> tokens = random_tokens(fast() ? 400 : 40);
  const Rows whole = alone(tokens);
  model_->open_sequence(0);
  Rows got;
  while (got.size() < tokens.size()) {
    // Some right rows, then wrong ones that the next step replaces.
    const size_t right = std::min(static_cast<size_t>(pick(1, 12)), tokens.size() - got.size());
    const size_t wrong = static_cast<size_t>(pick(0, model_->max_rollback()));
    std::vector<int32_t> rows(tokens.begin() + static_cast<std::ptrdiff_t>(got.size()),
                              tokens.begin() + static_cast<std::ptrdiff_t>(got.size() + right));
    for (const int32_t t : random_tokens(wrong)) rows.push_back(t);
    const Rows logits = golden::run_tokens(*model_, 0, rows, static_cast<int32_t>(got.size()), rows.size());
    got.insert(got.end(), logits.begin(), logits.begin() + static_cast<std::ptrdiff_t>(right));
  }
  EXPECT_EQ(first_difference(got, whole), -1);
  // From the start again, in the same sequence.
  EXPECT_EQ(first_difference(golden::run_tokens(*model_, 0, tokens), whole), -1);
  model_->close_sequence(0);
}

TEST_P(Consistency, OnlyWantedRowsGiveLogits) {
  const std::vector<int32_t> tokens = random_tokens(fast() ? 200 : 100);
  const Rows whole = alone(tokens);
  std::vector<StepRow> rows;
  for (size_t t = 0; t < tokens.size(); ++t) {
    rows.push_back({.sequence = 0,
                    .token = tokens[t],
                    .position = static_cast<int32_t>(t),
                    .wants_logits = t % 3 == 1 || t > 70});
  }
  model_->open_sequence(0);
  const auto logits = model_->run(rows);
  const size_t vocab = static_cast<size_t>(model_->vocab_size());
  size_t next = 0;
  for (size_t t = 0; t < rows.size(); ++t) {
    if (!rows[t].wants_logits) continue;
    EXPECT_TRUE(std::equal(whole[t].begin(), whole[t].end(),
                           logits.begin() + static_cast<std::ptrdiff_t>(next * vocab)))
        << "row " << t;
    ++next;
  }
  EXPECT_EQ(logits.size(), next * vocab);
  model_->close_sequence(0);
}

TEST_P(Consistency, NothingIsLeftAfterClosing) {
  for (int32_t s = 0; s < 3; ++s) {
    model_->open_sequence(s);
    golden::run_tokens(*model_, s, random_tokens(static_cast<size_t>(pick(1, 60))));
  }
  EXPECT_GT(model_->cache().usage().bytes_in_use, 0u);
  for (int32_t s = 0; s < 3; ++s) model_->close_sequence(s);
  EXPECT_EQ(model_->cache().usage().bytes_in_use, 0u);
  for (const CacheGroupUsage& group : model_->cache().usage().groups) EXPECT_EQ(group.in_use, 0);
  model_->cache().check_accounting();
}

// Speculation never changes what greedy decoding says.
TEST_P(Consistency, SpeculativeOutputIsTheGreedyOutput) {
  const size_t count = fast() ? 64 : 12;
  const std::vector<int32_t> prompt = random_tokens(50);
  const std::vector<int32_t> greedy = golden::generate(*model_, 0, prompt, count);
  model_->open_sequence(0);
  std::vector<int32_t> output = {golden::argmax(golden::run_tokens(*model_, 0, prompt).back())};
  size_t steps = 0;
  while (output.size() < count) {
    const int32_t committed = static_cast<int32_t>(prompt.size() + output.size()) - 1;
    const std::vector<DraftRequest> request = {
        {.sequence = 0, .anchor = output.back(), .position = committed - 1}};
    const Drafts drafts = model_->drafter()->draft(request);
    std::vector<int32_t> rows = {output.back()};
    rows.insert(rows.end(), drafts.tokens.begin(), drafts.tokens.end());
    const Rows verdict = golden::run_tokens(*model_, 0, rows, committed);
    for (size_t i = 0; i < verdict.size(); ++i) {
      output.push_back(golden::argmax(verdict[i]));
      if (i + 1 == verdict.size() || output.back() != rows[i + 1]) break;
    }
    ++steps;
  }
  output.resize(count);
  std::printf("  %-10s %zu tokens in %zu speculative steps\n", GetParam().c_str(), count, steps);
  EXPECT_EQ(output, greedy);
  model_->close_sequence(0);
}

// Drafts of several sequences at once are those of each alone.
TEST_P(Consistency, DraftsDoNotDependOnTheBatch) {
  std::vector<DraftRequest> requests;
  std::vector<int32_t> expected;
  for (int32_t s = 0; s < 3; ++s) {
    const std::vector<int32_t> prompt = random_tokens(static_cast<size_t>(1 + 40 * s));
    model_->open_sequence(s);
    const int32_t anchor = golden::argmax(golden::run_tokens(*model_, s, prompt).back());
    requests.push_back(
        {.sequence = s, .anchor = anchor, .position = static_cast<int32_t>(prompt.size()) - 1});
    const Drafts one = model_->drafter()->draft(std::span(&requests.back(), 1));
    expected.insert(expected.end(), one.tokens.begin(), one.tokens.end());
  }
  const Drafts all = model_->drafter()->draft(requests);
  EXPECT_EQ(std::vector<int32_t>(all.tokens.begin(), all.tokens.end()), expected);
  for (int32_t s = 0; s < 3; ++s) model_->close_sequence(s);
}

// Drawn place by place: each from the distribution that goes out with it, at the number given.
TEST_P(Consistency, DrawnDraftsComeFromTheirDistributions) {
  const auto block = static_cast<size_t>(model_->max_drafts());
  std::vector<DraftRequest> requests;
  for (int32_t s = 0; s < 4; ++s) {
    const std::vector<int32_t> prompt = random_tokens(static_cast<size_t>(2 + 13 * s));
    model_->open_sequence(s);
    golden::run_tokens(*model_, s, prompt);
    DraftRequest request{
        .sequence = s, .anchor = 17 + s, .position = static_cast<int32_t>(prompt.size()) - 1};
    if (s != 1) request.filter = {.temperature = s == 3 ? 1e-4 : 2.0, .top_k = s == 2 ? 20 : 0};
    for (size_t i = 0; i < block; ++i) request.uniforms[i] = static_cast<double>(pick(1, 1000)) / 1000;
    requests.push_back(request);
  }
  const Drafts all = model_->draft(requests);
  const std::vector<int32_t> tokens(all.tokens.begin(), all.tokens.end());
  const std::vector<float> confidence(all.confidence.begin(), all.confidence.end());
  const std::vector<TokenDistribution> proposals(all.proposals.begin(), all.proposals.end());
  ASSERT_EQ(tokens.size(), 4 * block);
  ASSERT_EQ(proposals.size(), 3 * block);  // one request is greedy
  size_t next = 0;
  for (size_t s = 0; s < 4; ++s) {
    for (size_t i = 0; i < block && s != 1; ++i, ++next) {
      EXPECT_EQ(tokens[s * block + i], proposals[next].draw(requests[s].uniforms[i]));
      EXPECT_LE(proposals[next].tokens().size(),
                s == 2 ? size_t{20} : static_cast<size_t>(model_->vocab_size()));
    }
    // The same alone; a greedy request the same as without any that draws.
    const Drafts one = model_->draft({&requests[s], 1});
    for (size_t i = 0; i < block; ++i) {
      EXPECT_EQ(one.tokens[i], tokens[s * block + i]) << s << " " << i;
      EXPECT_EQ(one.confidence[i], confidence[s * block + i]);
    }
  }
  // So cold that only the likeliest is left.
  requests[3].filter = {};
  const Drafts greedy = model_->draft({&requests[3], 1});
  for (size_t i = 0; i < block; ++i) EXPECT_EQ(greedy.tokens[i], tokens[3 * block + i]);
  // Another number, another draft.
  requests[0].uniforms[0] = requests[0].uniforms[0] > 0.5 ? 0.1 : 0.9;
  EXPECT_NE(model_->draft({&requests[0], 1}).tokens[0], tokens[0]);
  for (int32_t s = 0; s < 4; ++s) model_->close_sequence(s);
}

INSTANTIATE_TEST_SUITE_P(Backends, Consistency, testing::ValuesIn(backend_names()));

TEST(Backends, ThreadCountDoesNotMatter) {
  std::mt19937 random(5);
  const auto one = golden::load(golden::synthetic_checkpoint(), "cpu", 1);
  const auto two = golden::load(golden::synthetic_checkpoint(), "cpu", 2);
  std::uniform_int_distribution<int32_t> token(0, one->vocab_size() - 1);
  std::vector<int32_t> tokens(400);
  for (int32_t& t : tokens) t = token(random);
  one->open_sequence(0);
  two->open_sequence(0);
  for (const size_t chunk : {size_t{0}, size_t{1}, size_t{13}}) {
    EXPECT_EQ(first_difference(golden::run_tokens(*one, 0, tokens, 0, chunk),
                               golden::run_tokens(*two, 0, tokens, 0, chunk)),
              -1)
        << "chunks of " << chunk;
  }
}

TEST(Backends, CpuAgreesWithTheReference) {
  std::mt19937 random(6);
  const auto cpu = golden::load(golden::synthetic_checkpoint(), "cpu", 1);
  const auto reference = golden::load(golden::synthetic_checkpoint(), "reference");
  std::uniform_int_distribution<int32_t> token(0, cpu->vocab_size() - 1);
  for (const size_t length : {size_t{5}, size_t{40}, size_t{150}}) {
    std::vector<int32_t> tokens(length);
    for (int32_t& t : tokens) t = token(random);
    cpu->open_sequence(0);
    reference->open_sequence(0);
    const Rows a = golden::run_tokens(*cpu, 0, tokens);
    const Rows b = golden::run_tokens(*reference, 0, tokens);
    std::vector<double> distance;
    for (size_t i = 0; i < a.size(); ++i) {
      distance.push_back(golden::relative_l2(a[i].data(), b[i].data(), a[i].size()));
    }
    std::sort(distance.begin(), distance.end());
    std::printf("  cpu against reference, %zu tokens: median %.4f, worst %.4f\n", length,
                distance[distance.size() / 2], distance.back());
    // What FP32 summation orders are measured to do to this size of model; a wrong mechanism gives 0.1 to 1.
    EXPECT_LE(distance[distance.size() / 2], 0.07);
    cpu->close_sequence(0);
    reference->close_sequence(0);
  }
}

}  // namespace
}  // namespace spark::engine
