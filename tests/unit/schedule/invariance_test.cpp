// What a sequence answers, ids and log probabilities to the last bit, whatever happens around it: alone, in a
// crowd, beside a long cold prompt, from the prefix cache, paused at every step, with drafts that stand or
// fall at every place. On the real model (tiny, CPU), through the engine. And the same comparison on a model
// with a fault that real kernels have had, a sum whose order depends on the batch: it must notice.
//
// The short form takes seconds. With SPARK_LONG_TESTS set the cold prompt has 8,000 tokens, and the pauses
// come one at a time, with and without the prefix cache.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <future>
#include <random>
#include <set>

#include "engine/forward/wrapped_model.h"
#include "engine/schedule/engine.h"
#include "golden/tiny_model.h"
#include "unit/schedule/drafting_model.h"

namespace spark::engine {
namespace {

using namespace std::chrono_literals;

bool long_form() {
  return std::getenv("SPARK_LONG_TESTS") != nullptr;
}

struct Seen {
  std::vector<int32_t> tokens;
  std::vector<double> logprobs;  // compared as they are: the same bits, or not the same
  int64_t cached = 0;
  bool operator==(const Seen& other) const { return tokens == other.tokens && logprobs == other.logprobs; }
};

class Listener {
 public:
  OutputSink sink() {
    return [this](Output output) {
      for (const TokenOutput& token : output.tokens) {
        seen_.tokens.push_back(token.token);
        seen_.logprobs.push_back(token.logprobs->chosen);
        for (const TokenLogprob& top : token.logprobs->top) seen_.logprobs.push_back(top.logprob);
      }
      if (output.cached_tokens) seen_.cached = *output.cached_tokens;
      if (!output.finish) return;
      if (output.finish->reason != FinishReason::kLength) ADD_FAILURE() << output.finish->error;
      done_.set_value();
    };
  }
  const Seen& wait() {
    if (future_.wait_for(300s) != std::future_status::ready) throw std::runtime_error("no answer");
    return seen_;
  }

 private:
  Seen seen_;
  std::promise<void> done_;
  std::shared_future<void> future_ = done_.get_future().share();
};

// Takes a sequence's place away at given lengths, once each.
class Pauser : public WrappedModel {
 public:
  Pauser(StepModel& inner, std::vector<int32_t> victim, std::set<int32_t> at)
      : WrappedModel(inner), victim_(std::move(victim)), at_(std::move(at)) {}

  int32_t start_sequence(int32_t slot, const SequenceStart& start) override {
    const auto prompt = start.tokens.first(static_cast<size_t>(start.prompt_tokens));
    if (std::equal(prompt.begin(), prompt.end(), victim_.begin(), victim_.end())) slot_ = slot;
    SequenceStart other = start;
    if (forget) other.cache_salt = start.cache_salt * 1000 + ++starts_;  // finds nothing in the cache
    return inner_.start_sequence(slot, other);
  }
  void close_sequence(int32_t slot) override {
    if (slot == slot_) slot_ = -1;
    inner_.close_sequence(slot);
  }
  bool has_room(std::span<const SequenceLength> lengths) const override {
    for (const SequenceLength& wanted : lengths) {
      if (wanted.sequence == slot_ && at_.erase(wanted.tokens) > 0) {
        ++paused_;
        return false;
      }
    }
    return inner_.has_room(lengths);
  }
  int paused() const { return paused_; }
  bool forget = false;

 private:
  std::vector<int32_t> victim_;
  mutable std::set<int32_t> at_;
  mutable int paused_ = 0;
  uint64_t starts_ = 0;
  int32_t slot_ = -1;
};

// Adds three numbers to each logit, with a sum of nothing, in an order that depends on the step's rows.
class OrderBug : public WrappedModel {
 public:
  using WrappedModel::WrappedModel;
  std::span<const float> run(std::span<const StepRow> rows) override {
    const auto logits = inner_.run(rows);
    logits_.assign(logits.begin(), logits.end());
    const bool other_order = rows.size() % 2 == 0;
    for (float& logit : logits_) {
      const float a = 0.7F, b = logit, c = -0.7F;
      logit = other_order ? (a + b) + c : (a + c) + b;
    }
    return logits_;
  }

 private:
  std::vector<float> logits_;
};

class Invariance : public testing::Test {
 protected:
  static Decoder& decoder() {
    static const auto kModel = golden::load(golden::synthetic_checkpoint(), "cpu", 2,
                                            {.max_sequences = 16,
                                             .max_context = 8192,
                                             .max_step_rows = 256,
                                             .prefix_caching = true,
                                             .retention = 256});
    return *kModel;
  }
  static const text::Tokenizer& tokenizer() {
    static const text::Tokenizer kTokenizer =
        text::Tokenizer::from_file(golden::synthetic_checkpoint() + "/tokenizer.json");
    return kTokenizer;
  }

  void TearDown() override {
    decoder().cache().check_accounting();
    EXPECT_EQ(decoder().cache().usage().bytes_in_use, 0u);
  }

  static GenerationRequest request(size_t prompt, int32_t max_tokens, unsigned seed, double temperature) {
    GenerationRequest out;
    std::mt19937 random(seed);
    for (size_t i = 0; i < prompt; ++i) out.prompt.push_back(8 + static_cast<int32_t>(random() % 250));
    out.max_tokens = max_tokens;
    out.sampling.seed = seed;
    out.sampling.temperature = temperature;
    out.ignore_eos = true;
    out.top_logprobs = 3;
    return out;
  }
  // Answers of 60 tokens: greedy, and drawn. Long enough for the decoder to be skipped and a block to be
  // cached.
  static std::vector<GenerationRequest> subjects() {
    return {request(300, 60, 1, 0), request(295, 60, 2, 1)};
  }
  // All of them in the long form, else the one.
  static std::vector<GenerationRequest> some_subjects(size_t one) {
    return long_form() ? subjects() : std::vector{subjects()[one]};
  }
  // Nothing cached can be taken up.
  GenerationRequest fresh(GenerationRequest request) {
    request.cache_salt = ++salt_;
    return request;
  }

  Seen ask(Engine& engine, const GenerationRequest& request) {
    Listener listener;
    engine.submit(request, listener.sink());
    return listener.wait();
  }
  Seen alone(StepModel& model, const GenerationRequest& request) {
    Engine engine(model, tokenizer(), {});
    return ask(engine, fresh(request));
  }

  // The subject with others before, with and after it; `apart` passes between them.
  Seen beside(StepModel& model, const GenerationRequest& subject,
              const std::vector<GenerationRequest>& others, std::chrono::milliseconds apart,
              const EngineOptions& options = {}) {
    Engine engine(model, tokenizer(), options);
    std::vector<std::unique_ptr<Listener>> listeners;
    Listener listener;
    for (size_t i = 0; i < others.size(); ++i) {
      if (i == others.size() / 2) engine.submit(fresh(subject), listener.sink());
      listeners.push_back(std::make_unique<Listener>());
      engine.submit(fresh(others[i]), listeners.back()->sink());
      std::this_thread::sleep_for(apart);
    }
    for (const auto& other : listeners) other->wait();
    return listener.wait();
  }
  static std::vector<GenerationRequest> crowd() {
    std::vector<GenerationRequest> out;
    for (unsigned i = 0; i < 15; ++i)
      out.push_back(request(1 + 23 * i, 20 + static_cast<int32_t>(i), 100 + i, i % 2));
    return out;
  }

  static inline uint64_t salt_ = 1000;
};

TEST_F(Invariance, InACrowd) {
  for (const GenerationRequest& subject : subjects()) {
    const Seen expected = alone(decoder(), subject);
    ASSERT_EQ(expected.tokens.size(), 60u);
    EXPECT_EQ(beside(decoder(), subject, crowd(), 0ms), expected) << "at once";
    if (long_form() || subject.sampling.temperature > 0) {
      EXPECT_EQ(beside(decoder(), subject, crowd(), 7ms), expected) << "staggered";
    }
  }
}

TEST_F(Invariance, BesideAColdPrompt) {
  const size_t cold = long_form() ? 8000 : 1500;
  for (const GenerationRequest& subject : subjects()) {
    const Seen expected = alone(decoder(), subject);
    const bool greedy = subject.sampling.temperature == 0;
    for (const double bound_ms : long_form() ? std::vector{0.0, 20.0} : std::vector{greedy ? 20.0 : 0.0}) {
      const EngineOptions options{.max_token_gap_ms = bound_ms};
      EXPECT_EQ(beside(decoder(), subject, {request(30, 90, 7, 1), request(cold, 3, 8, 0)}, 5ms, options),
                expected)
          << "bound " << bound_ms;
    }
  }
}

TEST_F(Invariance, FromThePrefixCache) {
  for (const GenerationRequest& subject : subjects()) {
    const Seen expected = alone(decoder(), subject);
    Engine engine(decoder(), tokenizer(), {});
    const GenerationRequest again = fresh(subject);
    const Seen cold = ask(engine, again), warm = ask(engine, again);
    EXPECT_EQ(cold, expected);
    EXPECT_EQ(cold.cached, 0);
    EXPECT_EQ(warm, expected);
    EXPECT_EQ(warm.cached, 256);
    // A second turn: the first turn's answer is part of the prompt, and of the cache.
    GenerationRequest turn = again;
    turn.prompt.insert(turn.prompt.end(), expected.tokens.begin(), expected.tokens.end());
    for (int32_t token = 20; token < 220; ++token) turn.prompt.push_back(token);
    const Seen second = alone(decoder(), turn), second_warm = ask(engine, turn);
    EXPECT_EQ(second_warm, second);
    EXPECT_GT(second_warm.cached, 0);
  }
}

TEST_F(Invariance, PausedAtEveryStep) {
  // Older, so that the subject is the one to go; and long enough.
  const GenerationRequest company = request(5, long_form() ? 400 : 200, 50, 0);
  for (const GenerationRequest& subject : some_subjects(1)) {
    const Seen expected = alone(decoder(), subject);
    const auto first = static_cast<int32_t>(subject.prompt.size());
    std::vector<std::set<int32_t>> runs(1);
    for (int32_t length = first; length < first + 60; ++length) {
      runs[0].insert(length);
      if (long_form()) runs.push_back({length});
    }
    for (const std::set<int32_t>& at : runs) {
      for (const bool cached : long_form() ? std::vector{true, false} : std::vector{true}) {
        Pauser model(decoder(), subject.prompt, at);
        model.forget = !cached;
        Engine engine(model, tokenizer(), {});
        Listener older, listener;
        engine.submit(fresh(company), older.sink());
        engine.submit(fresh(subject), listener.sink());
        const Seen got = listener.wait();
        EXPECT_EQ(got, expected) << "paused first at length " << *at.begin() << ", cached " << cached;
        older.wait();
        EXPECT_EQ(model.paused(), static_cast<int>(at.size()));
      }
    }
  }
}

// Drafts that are right up to a place and wrong from there on, or right now and then.
TEST_F(Invariance, WithDraftsThatStandOrFall) {
  constexpr int32_t kDrafts = 5;
  for (const GenerationRequest& subject : some_subjects(0)) {
    const Seen expected = alone(decoder(), subject);
    for (int32_t right = 0; right <= kDrafts; ++right) {
      DraftingModel model(decoder(), kDrafts, [&](std::span<const int32_t> history, int32_t place) {
        const size_t next = history.size() - subject.prompt.size() + static_cast<size_t>(place);
        const int32_t token = next < expected.tokens.size() ? expected.tokens[next] : 9;
        return place < right ? token : (token + 1) % 250;
      });
      const EngineOptions options{.speculation = {.max_drafts = kDrafts, .adaptive = false}};
      Engine engine(model, tokenizer(), options);
      EXPECT_EQ(ask(engine, fresh(subject)), expected) << right << " drafts stand";
      EXPECT_GT(model.drafted(), 0);
    }
  }
}

// The comparison sees what it is there to see.
TEST_F(Invariance, NoticesASumWhoseOrderDependsOnTheBatch) {
  OrderBug model(decoder());
  const GenerationRequest subject = subjects()[0];
  const Seen expected = alone(model, subject);
  EXPECT_EQ(alone(model, subject), expected) << "alone the fault does not show";
  EXPECT_FALSE(beside(model, subject, crowd(), 0ms) == expected);
  EXPECT_FALSE(beside(model, subject, {request(30, 90, 7, 1), request(700, 3, 8, 0)}, 5ms) == expected);
}

}  // namespace
}  // namespace spark::engine
