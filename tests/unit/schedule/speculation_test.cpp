// Speculation in the engine: what it changes is when tokens come, never which.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <map>
#include <memory>

#include "engine/schedule/engine.h"
#include "unit/schedule/drafting_model.h"
#include "unit/schedule/toy_model.h"

namespace spark::engine {
namespace {

using namespace std::chrono_literals;

constexpr int32_t kDrafts = 5;

const text::Tokenizer& drafting_tokenizer() {
  static const text::Tokenizer kTokenizer =
      text::Tokenizer::from_file(SPARK_TEST_DATA "/golden/tiny-tokenizer.json");
  return kTokenizer;
}

struct SpeculatedAnswer {
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;
  std::string text;
  Finish finish;
  int32_t verified = 0, accepted = 0, judged = 0;
  size_t most_at_once = 0;
};

// All requests together, in the order given; `hold` so that they share steps from the first on.
std::vector<SpeculatedAnswer> answers(Engine& engine, ToyModel& toy,
                                      const std::vector<GenerationRequest>& requests) {
  std::vector<SpeculatedAnswer> out(requests.size());
  std::vector<std::promise<void>> done(requests.size());
  toy.hold(true);
  for (size_t i = 0; i < requests.size(); ++i) {
    engine.submit(requests[i], [&, i](Output output) {
      SpeculatedAnswer& answer = out[i];
      for (TokenOutput& token : output.tokens) {
        answer.tokens.push_back(token.token);
        if (token.logprobs) answer.logprobs.push_back(*token.logprobs);
      }
      answer.text += output.text;
      answer.most_at_once = std::max(answer.most_at_once, output.tokens.size());
      if (output.drafts) {
        answer.verified += output.drafts->verified;
        answer.judged += output.drafts->judged;
        answer.accepted += output.drafts->accepted;
      }
      if (output.finish) {
        answer.finish = *output.finish;
        done[i].set_value();
      }
    });
  }
  toy.hold(false);
  for (std::promise<void>& each : done) {
    if (each.get_future().wait_for(60s) != std::future_status::ready) throw std::runtime_error("no answer");
  }
  return out;
}

void expect_same(const SpeculatedAnswer& got, const SpeculatedAnswer& want, const std::string& what) {
  EXPECT_EQ(got.tokens, want.tokens) << what;
  EXPECT_EQ(got.text, want.text) << what;
  EXPECT_EQ(got.finish.reason, want.finish.reason) << what;
  EXPECT_EQ(got.finish.stop, want.finish.stop) << what;
  ASSERT_EQ(got.logprobs.size(), want.logprobs.size()) << what;
  for (size_t t = 0; t < got.logprobs.size(); ++t) {
    EXPECT_EQ(got.logprobs[t].chosen, want.logprobs[t].chosen) << what << " token " << t;
    ASSERT_EQ(got.logprobs[t].top.size(), want.logprobs[t].top.size());
    for (size_t k = 0; k < got.logprobs[t].top.size(); ++k) {
      EXPECT_EQ(got.logprobs[t].top[k].token, want.logprobs[t].top[k].token);
      EXPECT_EQ(got.logprobs[t].top[k].logprob, want.logprobs[t].top[k].logprob);
    }
  }
}

// Requests of every kind: greedy and drawn, filtered, with stops of all sorts, lower bounds, short and long.
std::vector<GenerationRequest> requests_of_every_kind() {
  std::vector<GenerationRequest> out;
  for (int i = 0; i < 14; ++i) {
    GenerationRequest one;
    one.prompt = drafting_tokenizer().encode(std::string(static_cast<size_t>(1 + i * 5), 'y') + " prompt",
                                             text::ControlTokens::kAsText);
    one.max_tokens = 1 + 4 * i;
    one.ignore_eos = i % 5 != 0;
    one.sampling.seed = static_cast<uint64_t>(100 + i);
    one.sampling.temperature = i % 3 == 0 ? 0 : 0.7 + 0.1 * i;
    if (i % 4 == 1) one.sampling.top_k = 7;
    if (i % 4 == 2) one.sampling.top_p = 0.8;
    if (i % 2 == 0) one.top_logprobs = 3;
    if (i % 4 == 3) one.stop = {"e", "qq"};
    if (i % 3 == 1) one.min_tokens = i;
    one.include_stop = i % 2 == 0;
    out.push_back(one);
  }
  return out;
}

// What the model says without drafts, and a way to look up how an answer goes on.
class Oracle {
 public:
  Oracle(const std::vector<GenerationRequest>& requests, const ToyModel::Script& script) {
    for (const GenerationRequest& request : requests) {
      ToyModel model({}, script);
      Engine engine(model, drafting_tokenizer(), {.max_sequences = 1});
      answers_.push_back(answers(engine, model, {request}).at(0));
      std::vector<int32_t> whole = request.prompt;
      whole.insert(whole.end(), answers_.back().tokens.begin(), answers_.back().tokens.end());
      wholes_.push_back(whole);
    }
  }

  const std::vector<SpeculatedAnswer>& answers_alone() const { return answers_; }

  // The token `place` tokens after the history, or -1 when the answer is over.
  int32_t next(std::span<const int32_t> history, int32_t place) const {
    for (const std::vector<int32_t>& whole : wholes_) {
      const size_t at = history.size() + static_cast<size_t>(place);
      if (history.size() > whole.size() || !std::equal(history.begin(), history.end(), whole.begin()))
        continue;
      return at < whole.size() ? whole[at] : -1;
    }
    return -1;
  }

 private:
  std::vector<SpeculatedAnswer> answers_;
  std::vector<std::vector<int32_t>> wholes_;
};

// Favours the end of sequence and a stop token now and then, so that answers end within drafts.
int32_t ends_now_and_then(std::span<const int32_t> history) {
  return history.size() % 19 == 18 ? 1 : -1;
}

class ForcedDrafts : public testing::Test {
 protected:
  static const std::vector<GenerationRequest>& requests() {
    static const auto kRequests = [] {
      auto out = requests_of_every_kind();
      for (size_t i = 0; i < out.size(); i += 4) {
        const Oracle first({out[i]}, ends_now_and_then);
        const auto& tokens = first.answers_alone()[0].tokens;
        out[i].stop_token_ids = {tokens[tokens.size() * 2 / 3]};
      }
      return out;
    }();
    return kRequests;
  }
  static const Oracle& oracle() {
    static const Oracle kOracle(requests(), ends_now_and_then);
    return kOracle;
  }

  // Every batch gives the answers without drafts.
  void expect_unchanged(const DraftingModel::Chooser& chooser, const SpeculationOptions& speculation,
                        const std::string& what, const std::vector<float>& confidence = {}) {
    const auto& alone = oracle().answers_alone();
    for (const int32_t rows : {2, 4, 9, 64}) {
      ToyModel toy({.rows = rows}, ends_now_and_then);
      DraftingModel model(toy, kDrafts, chooser);
      model.confidence = confidence;
      Engine engine(model, drafting_tokenizer(), {.speculation = speculation});
      last_ = answers(engine, toy, requests());
      for (size_t i = 0; i < last_.size(); ++i) {
        expect_same(last_[i], alone[i], what + ", rows " + std::to_string(rows) + ", " + std::to_string(i));
      }
    }
    ToyModel toy({}, ends_now_and_then);
    DraftingModel model(toy, kDrafts, chooser);
    model.confidence = confidence;
    Engine engine(model, drafting_tokenizer(), {.max_sequences = 1, .speculation = speculation});
    last_.clear();
    for (size_t i = 0; i < requests().size(); ++i) {
      last_.push_back(answers(engine, toy, {requests()[i]}).at(0));
      expect_same(last_[i], alone[i], what + ", alone, " + std::to_string(i));
    }
  }

  std::vector<SpeculatedAnswer> last_;  // of the run alone
};

SpeculationOptions every_draft() {
  SpeculationOptions options;
  options.max_drafts = kDrafts;
  options.adaptive = false;
  return options;
}

TEST_F(ForcedDrafts, AcceptedUpToAnyPlace) {
  for (int32_t right = 0; right <= kDrafts; ++right) {
    const auto chooser = [&](std::span<const int32_t> history, int32_t place) {
      const int32_t token = oracle().next(history, place);
      if (token < 0) return 5;
      return place < right ? token : (token + 1) % 640;
    };
    expect_unchanged(chooser, every_draft(), std::to_string(right) + " right");
    for (const SpeculatedAnswer& answer : last_) {
      EXPECT_LE(answer.most_at_once, static_cast<size_t>(right) + 1);
      EXPECT_LE(answer.accepted, answer.judged);
      EXPECT_LE(answer.judged, answer.verified);
    }
    // A long answer shows the acceptance in full.
    if (right > 0) {
      EXPECT_EQ(last_.back().most_at_once, static_cast<size_t>(right) + 1);
    } else {
      EXPECT_EQ(last_.back().accepted, 0);
    }
  }
}

TEST_F(ForcedDrafts, RejectedAtAnyPlace) {
  for (int32_t wrong = 0; wrong < kDrafts; ++wrong) {
    const auto chooser = [&](std::span<const int32_t> history, int32_t place) {
      const int32_t token = std::max(oracle().next(history, place), 0);
      return place == wrong ? (token + 320) % 640 : token;  // right again after it, in vain
    };
    expect_unchanged(chooser, every_draft(), "wrong at " + std::to_string(wrong));
    EXPECT_EQ(last_.back().most_at_once, static_cast<size_t>(wrong) + 1);
  }
}

TEST_F(ForcedDrafts, MixedAndAdaptive) {
  uint64_t state = 1;
  const auto chooser = [&](std::span<const int32_t> history, int32_t place) {
    const int32_t token = oracle().next(history, place);
    state = state * 6364136223846793005u + 1442695040888963407u;
    return token < 0 || state >> 61 == 0 ? static_cast<int32_t>(state >> 40) % 640 : token;
  };
  SpeculationOptions adaptive = every_draft();
  adaptive.adaptive = true;
  adaptive.costs = {CostCurve({{1, 1}, {64, 3}}), CostCurve({{1, 0.1}, {4, 0.2}})};
  expect_unchanged(chooser, every_draft(), "mixed");
  expect_unchanged(chooser, adaptive, "adaptive", {2, 1, 0, -1, 3});
  adaptive.max_drafts = 2;
  expect_unchanged(chooser, adaptive, "adaptive, two drafts", {2, 1, 0, -1, 3});
  adaptive.costs = {CostCurve({{1, 1}, {64, 64}}), CostCurve({{1, 1}, {4, 4}})};
  expect_unchanged(chooser, adaptive, "where drafts do not pay", {-3, -3, -3, -3, -3});
  // Costs measured at the start.
  adaptive.costs = {};
  expect_unchanged(chooser, adaptive, "measured", {0, 0, 0, 0, 0});
}

// Certain drafts through rejection sampling: greedy requests must come out the same, too.
TEST_F(ForcedDrafts, RejectionSamplingOfGreedyRequests) {
  std::vector<GenerationRequest> greedy = requests();
  for (GenerationRequest& request : greedy) request.sampling.temperature = 0;
  const Oracle alone(greedy, ends_now_and_then);
  for (const auto method : {RejectionMethod::kBlock, RejectionMethod::kStandard}) {
    ToyModel toy({.rows = 20}, ends_now_and_then);
    DraftingModel model(toy, kDrafts, [&](std::span<const int32_t> history, int32_t place) {
      return (std::max(alone.next(history, place), 0) + (history.size() % 4 == 0 ? place : 0)) % 640;
    });
    SpeculationOptions speculation = every_draft();
    speculation.drawn = true;
    speculation.rejection = method;
    Engine engine(model, drafting_tokenizer(), {.speculation = speculation});
    const auto got = answers(engine, toy, greedy);
    for (size_t i = 0; i < got.size(); ++i) {
      expect_same(got[i], alone.answers_alone()[i], std::to_string(i));
    }
  }
}

// Drawn requests through rejection sampling end properly wherever they end: at stops within accepted drafts,
// at the length, with what min_tokens forbids left out.
TEST_F(ForcedDrafts, RejectionSamplingKeepsTheLimits) {
  for (const bool adaptive : {false, true}) {
    ToyModel toy({.rows = 40}, ends_now_and_then);
    DraftingModel model(toy, kDrafts, [&](std::span<const int32_t> history, int32_t place) {
      return static_cast<int32_t>(history.size() + static_cast<size_t>(place)) % 19 == 18
                 ? 1
                 : std::max(oracle().next(history, place), 0);
    });
    SpeculationOptions speculation = every_draft();
    speculation.drawn = true;
    speculation.adaptive = adaptive;
    speculation.costs = {CostCurve({{1, 1}, {64, 2}}), CostCurve({{1, 0.1}})};
    Engine engine(model, drafting_tokenizer(), {.speculation = speculation});
    const auto got = answers(engine, toy, requests());
    for (size_t i = 0; i < got.size(); ++i) {
      const GenerationRequest& request = requests()[i];
      const SpeculatedAnswer& answer = got[i];
      EXPECT_LE(std::ssize(answer.tokens), request.max_tokens) << i;
      if (answer.finish.reason == FinishReason::kLength) {
        EXPECT_EQ(std::ssize(answer.tokens), request.max_tokens);
      }
      if (request.top_logprobs) {
        EXPECT_EQ(answer.logprobs.size(), answer.tokens.size());
      }
      if (!request.stop.empty()) continue;
      for (size_t t = 0; t < answer.tokens.size(); ++t) {
        const int32_t token = answer.tokens[t];
        const bool ends = (token == 1 && !request.ignore_eos) ||
                          std::count(request.stop_token_ids.begin(), request.stop_token_ids.end(), token) > 0;
        if (static_cast<int32_t>(t) < request.min_tokens) {
          EXPECT_FALSE(token == 1 || ends) << i << " token " << t;
        }
        EXPECT_EQ(ends, t + 1 == answer.tokens.size() && answer.finish.reason == FinishReason::kStop)
            << i << " token " << t;
      }
    }
  }
}

struct SpeculationCounts : EngineObserver {
  void on_step(const StepCounts& counts) override { decode_rows += counts.decode_rows; }
  void on_first_token(double) override { ++tokens; }
  void on_next_tokens(int64_t count, double) override { tokens += count; }
  void on_drafts(const DraftOutcome& outcome) override {
    ++blocks;
    verified += outcome.verified;
    accepted += outcome.accepted;
  }
  void on_finish(const ChoiceRecord& record) override {
    accepted_in_records += record.accepted_drafts;
    rejected_in_records += record.rejected_drafts;
    tokens_in_records += record.output_tokens;
  }
  int64_t decode_rows = 0, tokens = 0, blocks = 0, verified = 0, accepted = 0;
  int64_t accepted_in_records = 0, rejected_in_records = 0, tokens_in_records = 0;
};

TEST_F(ForcedDrafts, CountersAgree) {
  SpeculationCounts counts;
  int64_t tokens = 0, accepted = 0, verified = 0;
  {
    ToyModel toy({}, ends_now_and_then);
    DraftingModel model(toy, kDrafts, [&](std::span<const int32_t> history, int32_t place) {
      return (std::max(oracle().next(history, place), 0) + (place == 3 ? 1 : 0)) % 640;
    });
    Engine engine(model, drafting_tokenizer(), {.speculation = every_draft(), .observer = &counts});
    for (const SpeculatedAnswer& answer : answers(engine, toy, requests())) {
      tokens += std::ssize(answer.tokens);
      accepted += answer.accepted;
      verified += answer.verified;
    }
  }
  EXPECT_EQ(counts.tokens, tokens);
  EXPECT_EQ(counts.tokens_in_records, tokens);
  EXPECT_EQ(counts.accepted, accepted);
  EXPECT_EQ(counts.accepted_in_records, accepted);
  EXPECT_EQ(counts.verified, verified);
  EXPECT_EQ(counts.rejected_in_records, verified - accepted);
  // One block per sequence and step after the first token; its row and its drafts' rows.
  EXPECT_EQ(counts.decode_rows, counts.blocks + verified);
  EXPECT_GT(accepted, tokens / 2);
  EXPECT_LT(counts.blocks, tokens / 2);
}

// Where drafts fail, an adaptive engine all but stops drafting; where they stand, it verifies them.
TEST(Speculation, FollowsWhatPays) {
  const auto steps = [](bool good, bool adaptive) {
    ToyModel toy({},
                 [](std::span<const int32_t> history) { return static_cast<int32_t>(history.size() % 600); });
    DraftingModel model(toy, kDrafts, [&](std::span<const int32_t> history, int32_t place) {
      const auto right = static_cast<int32_t>((history.size() + static_cast<size_t>(place)) % 600);
      return good ? right : (right + 1) % 600;
    });
    SpeculationOptions speculation = every_draft();
    speculation.adaptive = adaptive;
    speculation.costs = {CostCurve({{1, 1}, {64, 32}}), CostCurve({{1, 0.3}})};
    GenerationRequest one;
    one.prompt = {5, 6, 7};
    one.max_tokens = 300;
    one.ignore_eos = true;
    one.sampling.temperature = 0;
    Engine engine(model, drafting_tokenizer(), {.max_sequences = 1, .speculation = speculation});
    const SpeculatedAnswer answer = answers(engine, toy, {one}).at(0);
    EXPECT_EQ(answer.tokens.size(), 300u);
    return std::pair{toy.steps(), model.drafted()};
  };
  EXPECT_LE(steps(true, true).first, 75);
  EXPECT_LE(steps(true, false).first, 52);
  const auto [bad_steps, bad_drafts] = steps(false, true);
  EXPECT_EQ(bad_steps, 300);
  EXPECT_LE(bad_drafts, 25);
}

// A model that fails while drafting fails the step, and the engine goes on.
TEST(Speculation, SurvivesAFailedDraft) {
  ToyModel toy;
  bool fail = true;
  DraftingModel model(toy, kDrafts, [&](std::span<const int32_t>, int32_t) -> int32_t {
    if (std::exchange(fail, false)) throw Error("a rank is gone");
    return 3;
  });
  Engine engine(model, drafting_tokenizer(), {.speculation = every_draft()});
  GenerationRequest one;
  one.prompt = {5, 6, 7};
  one.max_tokens = 20;
  one.ignore_eos = true;
  const SpeculatedAnswer failed = answers(engine, toy, {one}).at(0);
  EXPECT_EQ(failed.finish.reason, FinishReason::kError);
  EXPECT_NE(failed.finish.error.find("a rank is gone"), std::string::npos);
  EXPECT_EQ(answers(engine, toy, {one}).at(0).tokens.size(), 20u);
}

}  // namespace
}  // namespace spark::engine
