#include "engine/schedule/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <limits>
#include <memory>
#include <set>

#include "unit/schedule/toy_model.h"

namespace spark::engine {
namespace {

using namespace std::chrono_literals;

const text::Tokenizer& tokenizer() {
  static const text::Tokenizer kTokenizer =
      text::Tokenizer::from_file(SPARK_TEST_DATA "/golden/tiny-tokenizer.json");
  return kTokenizer;
}

std::vector<int32_t> ids(const std::string& text) {
  return tokenizer().encode(text, text::ControlTokens::kAsText);
}

// A model that answers every prompt of `prompt` with `answer` and then the end of sequence, again and again.
ToyModel::Script says(size_t prompt, const std::string& answer) {
  std::vector<int32_t> tokens = ids(answer);
  tokens.push_back(1);
  return [=](std::span<const int32_t> history) { return tokens[(history.size() - prompt) % tokens.size()]; };
}

struct Reply {
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;
  std::string text;
  std::optional<Finish> finish;
};

// Collects the outputs of one request.
class Collector {
 public:
  explicit Collector(int32_t choices = 1) : answers_(static_cast<size_t>(choices)), left_(choices) {}

  OutputSink sink() {
    return [this](Output output) {
      Reply& answer = answers_.at(static_cast<size_t>(output.choice));
      if (answer.finish) ADD_FAILURE() << "output after the finish";
      for (TokenOutput& token : output.tokens) {
        answer.tokens.push_back(token.token);
        if (token.logprobs) answer.logprobs.push_back(*token.logprobs);
      }
      answer.text += output.text;
      answer.finish = output.finish;
      if (output.finish && --left_ == 0) done_.set_value();
    };
  }
  const std::vector<Reply>& wait() {
    if (future_.wait_for(60s) != std::future_status::ready) throw std::runtime_error("no answer");
    return answers_;
  }

 private:
  std::vector<Reply> answers_;
  int32_t left_;
  std::promise<void> done_;
  std::shared_future<void> future_ = done_.get_future().share();
};

std::vector<Reply> answers(Engine& engine, const GenerationRequest& request) {
  Collector collector(request.choices);
  engine.submit(request, collector.sink());
  return collector.wait();
}
Reply answer(Engine& engine, const GenerationRequest& request) {
  return answers(engine, request).at(0);
}

GenerationRequest request(const std::string& prompt, int32_t max_tokens, uint64_t seed = 1) {
  GenerationRequest out;
  out.prompt = ids(prompt);
  out.max_tokens = max_tokens;
  out.sampling.seed = seed;
  out.ignore_eos = true;
  return out;
}

void wait_until(const std::function<bool()>& condition) {
  for (int i = 0; i < 30000 && !condition(); ++i) std::this_thread::sleep_for(1ms);
  ASSERT_TRUE(condition());
}

TEST(Engine, AnswersDoNotDependOnBatchOrChunks) {
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 12; ++i) {
    requests.push_back(request(std::string(static_cast<size_t>(1 + i * 9), 'x') + " prompt", 5 + 7 * (i % 4),
                               static_cast<uint64_t>(i)));
    requests.back().sampling.temperature = i % 3 == 0 ? 0 : 1;
    requests.back().sampling.top_p = i % 2 == 0 ? 0.9 : 1;
    requests.back().top_logprobs = 2;
  }
  std::vector<Reply> alone;
  {
    ToyModel model;
    Engine engine(model, tokenizer(), {.max_sequences = 1});
    for (const GenerationRequest& one : requests) alone.push_back(answer(engine, one));
    EXPECT_EQ(model.most_open(), 1u);
  }
  for (const int32_t rows : {4, 5, 17, 64}) {
    ToyModel model({.rows = rows});
    Engine engine(model, tokenizer(), {});
    model.hold(true);  // so that they run together
    std::vector<std::unique_ptr<Collector>> collectors;
    for (const GenerationRequest& one : requests) {
      collectors.push_back(std::make_unique<Collector>());
      engine.submit(one, collectors.back()->sink());
    }
    model.hold(false);
    for (size_t i = 0; i < requests.size(); ++i) {
      const Reply& together = collectors[i]->wait().at(0);
      EXPECT_EQ(together.tokens, alone[i].tokens) << i << " rows " << rows;
      EXPECT_EQ(together.text, alone[i].text);
      ASSERT_EQ(together.logprobs.size(), together.tokens.size());
      for (size_t t = 0; t < together.tokens.size(); ++t) {
        EXPECT_EQ(together.logprobs[t].chosen, alone[i].logprobs[t].chosen);
      }
    }
    EXPECT_EQ(model.most_open(), 4u);
  }
}

TEST(Engine, TextIsTheTokensText) {
  ToyModel model;
  Engine engine(model, tokenizer(), {});
  const Reply got = answer(engine, request("hi", 200));
  EXPECT_EQ(got.tokens.size(), 200u);
  EXPECT_EQ(got.text, tokenizer().decode(got.tokens, true));
  EXPECT_EQ(got.finish->reason, FinishReason::kLength);
}

TEST(Engine, StopsAtTheEndOfSequence) {
  const auto prompt = ids("hi");
  ToyModel model({}, says(prompt.size(), "hello there"));
  Engine engine(model, tokenizer(), {});
  GenerationRequest one = request("hi", 100);
  one.ignore_eos = false;
  one.sampling.temperature = 0;
  const Reply got = answer(engine, one);
  EXPECT_EQ(got.text, "hello there");
  EXPECT_EQ(got.tokens.back(), 1);
  EXPECT_EQ(got.finish->reason, FinishReason::kStop);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(got.finish->stop));

  one.ignore_eos = true;
  one.max_tokens = 2 * static_cast<int32_t>(got.tokens.size());
  const Reply longer = answer(engine, one);
  EXPECT_EQ(longer.text, "hello therehello there");  // the end of sequence is a special token
  EXPECT_EQ(longer.finish->reason, FinishReason::kLength);

  one.ignore_eos = false;
  one.min_tokens = static_cast<int32_t>(got.tokens.size()) + 3;
  EXPECT_GE(answer(engine, one).tokens.size(), got.tokens.size() + 3);
}

TEST(Engine, StopsAtStringsAndTokens) {
  const auto prompt = ids("hi");
  ToyModel model({}, says(prompt.size(), "one two three"));
  Engine engine(model, tokenizer(), {});
  GenerationRequest one = request("hi", 100);
  one.sampling.temperature = 0;
  one.stop = {"zzz", "o t"};
  Reply got = answer(engine, one);
  EXPECT_EQ(got.text, "one tw");
  EXPECT_EQ(std::get<std::string>(got.finish->stop), "o t");
  one.include_stop = true;
  EXPECT_EQ(answer(engine, one).text, "one two t");
  // Stop strings count only in what comes after min_tokens.
  one.include_stop = false;
  one.min_tokens = static_cast<int32_t>(ids("one two three").size()) + 1;
  got = answer(engine, one);
  EXPECT_GT(got.text.size(), std::string("one two three").size());
  EXPECT_GE(static_cast<int32_t>(got.tokens.size()), one.min_tokens);

  one = request("hi", 100);
  one.sampling.temperature = 0;
  one.stop_token_ids = {ids("one two three").back()};
  got = answer(engine, one);
  EXPECT_EQ(std::get<int32_t>(got.finish->stop), one.stop_token_ids[0]);
  EXPECT_EQ(got.tokens.back(), one.stop_token_ids[0]);
  EXPECT_EQ(got.text, "on");
  one.include_stop = true;
  EXPECT_EQ(answer(engine, one).text, "one");
}

TEST(Engine, ReleasesAnUnfinishedStopStringAtTheEnd) {
  ToyModel model({}, says(ids("hi").size(), "abc"));
  Engine engine(model, tokenizer(), {});
  GenerationRequest one = request("hi", 100);
  one.ignore_eos = false;
  one.sampling.temperature = 0;
  one.stop = {"bcd"};
  EXPECT_EQ(answer(engine, one).text, "abc");
}

TEST(Engine, ChoicesDrawApart) {
  ToyModel model;
  Engine engine(model, tokenizer(), {});
  GenerationRequest three = request("hi", 20, 100);
  three.choices = 3;
  const auto got = answers(engine, three);
  EXPECT_NE(got[0].tokens, got[1].tokens);
  EXPECT_EQ(got[2].tokens, answer(engine, request("hi", 20, 102)).tokens);
}

TEST(Engine, RefusesWhatDoesNotFit) {
  ToyModel model({.context = 32});
  Engine engine(model, tokenizer(), {});
  EXPECT_EQ(engine.max_context(), 32);
  const auto refuse = [&](GenerationRequest one) {
    EXPECT_THROW(engine.submit(std::move(one), [](Output) {}), Error);
  };
  refuse({});
  refuse(request("hi", 0));
  refuse(request("hi", 32));
  refuse(request(std::string(500, 'q'), 1));
  GenerationRequest wild = request("hi", 1);
  wild.prompt = {640};
  refuse(wild);
  wild.prompt = {-1};
  refuse(wild);
  GenerationRequest whole = request("hi", 1);
  whole.max_tokens = 32 - static_cast<int32_t>(whole.prompt.size());
  EXPECT_EQ(answer(engine, whole).tokens.size(), static_cast<size_t>(whole.max_tokens));
}

TEST(Engine, BoundsTheQueueAndServesClientsInTurn) {
  ToyModel model({.sequences = 1});
  Engine engine(model, tokenizer(), {.max_waiting = 4});
  model.hold(true);
  std::vector<std::string> order;  // written on the engine's thread, read after the last finish
  std::atomic<int> left{5};
  const auto submit = [&](const std::string& client) {
    GenerationRequest one = request("hi", 3);
    one.client = client;
    return engine.submit(one, [&, client](Output output) {
      if (!output.finish) return;
      order.push_back(client);
      --left;
    });
  };
  submit("a");
  wait_until([&] { return model.step_waits(); });
  for (const char* client : {"a", "a", "b", "c"}) submit(client);
  EXPECT_EQ(engine.load().waiting, 4);
  EXPECT_EQ(engine.load().running, 1);
  EXPECT_GT(engine.load().cache_usage, 0);
  try {
    submit("d");
    ADD_FAILURE() << "not refused";
  } catch (const Refused& refused) {
    EXPECT_EQ(refused.why(), Refused::Why::kQueueFull);
  }
  model.hold(false);
  wait_until([&] { return left == 0; });
  EXPECT_EQ(order, (std::vector<std::string>{"a", "a", "b", "c", "a"}));
  EXPECT_EQ(engine.load().running, 0);
  EXPECT_EQ(engine.load().cache_usage, 0);
}

TEST(Engine, AbortsWaitingAndRunningRequests) {
  ToyModel model({.sequences = 1});
  Engine engine(model, tokenizer(), {});
  model.hold(true);
  Collector running, waiting, third;
  const uint64_t first = engine.submit(request("hi", 400), running.sink());
  wait_until([&] { return model.step_waits(); });
  const uint64_t second = engine.submit(request("hi", 5), waiting.sink());
  engine.submit(request("hi", 5), third.sink());
  engine.abort(second);
  engine.abort(first);
  engine.abort(first);
  engine.abort(12345);
  model.hold(false);
  EXPECT_EQ(running.wait()[0].finish->reason, FinishReason::kAbort);
  EXPECT_LT(running.wait()[0].tokens.size(), 400u);
  EXPECT_EQ(waiting.wait()[0].finish->reason, FinishReason::kAbort);
  EXPECT_TRUE(waiting.wait()[0].tokens.empty());
  EXPECT_EQ(third.wait()[0].finish->reason, FinishReason::kLength);
  EXPECT_EQ(model.opened(), model.closed());
}

TEST(Engine, FailsTheStepsRequestsAndGoesOn) {
  ToyModel model;
  Engine engine(model, tokenizer(), {});
  model.fail_next = true;
  const Reply failed = answer(engine, request("hi", 5));
  EXPECT_EQ(failed.finish->reason, FinishReason::kError);
  EXPECT_NE(failed.finish->error.find("on fire"), std::string::npos);
  model.fail_open = true;
  EXPECT_EQ(answer(engine, request("hi", 5)).finish->error, "no room");
  model.poison = true;
  EXPECT_NE(answer(engine, request("hi", 5)).finish->error.find("NaN"), std::string::npos);
  model.poison = false;
  EXPECT_EQ(answer(engine, request("hi", 5)).finish->reason, FinishReason::kLength);
}

TEST(Engine, EndsWhateverIsLeft) {
  ToyModel model({.sequences = 2});
  std::vector<std::unique_ptr<Collector>> collectors;
  {
    Engine engine(model, tokenizer(), {});
    model.hold(true);
    for (int i = 0; i < 5; ++i) {
      collectors.push_back(std::make_unique<Collector>());
      engine.submit(request("hi", 500), collectors.back()->sink());
    }
    model.hold(false);
  }
  for (const auto& collector : collectors)
    EXPECT_EQ(collector->wait()[0].finish->reason, FinishReason::kAbort);
  EXPECT_EQ(model.opened(), model.closed());
}

TEST(Engine, TellsEverybodyWhyTheModelCannotGoOn) {
  ToyModel model({.sequences = 1});
  Engine engine(model, tokenizer(), {});
  model.hold(true);
  Collector running, waiting;
  engine.submit(request("hi", 400), running.sink());
  wait_until([&] { return model.step_waits(); });
  engine.submit(request("hi", 5), waiting.sink());
  engine.fail("rank 2 was lost: its connection ended");
  model.hold(false);
  for (Collector* collector : {&running, &waiting}) {
    EXPECT_EQ(collector->wait()[0].finish->reason, FinishReason::kError);
    EXPECT_EQ(collector->wait()[0].finish->error, "rank 2 was lost: its connection ended");
  }
  try {
    engine.submit(request("hi", 5), waiting.sink());
    FAIL() << "a request was taken";
  } catch (const Refused& refused) {
    EXPECT_EQ(refused.why(), Refused::Why::kStopping);
    EXPECT_STREQ(refused.what(), "rank 2 was lost: its connection ended");
  }
  EXPECT_EQ(model.opened(), model.closed());
}

class Counter : public EngineObserver {
 public:
  void on_step(const StepCounts& counts) override {
    prompt_rows += counts.prompt_rows;
    decode_rows += counts.decode_rows;
    recomputed_rows += counts.recomputed_rows;
  }
  void on_preempt() override { ++preemptions; }
  void on_first_token(double after) override { first += after >= 0; }
  void on_next_tokens(int64_t count, double after) override { next += after >= 0 ? count : 0; }
  void on_finish(const ChoiceRecord& record) override {
    finished[static_cast<int>(record.reason)]++;
    tokens += record.output_tokens;
    if (record.reason == FinishReason::kLength) {
      EXPECT_LE(record.arrived_s, record.admitted_s);
      EXPECT_LE(record.admitted_s, record.first_token_s);
      EXPECT_LE(record.first_token_s, record.last_token_s);
      EXPECT_LE(record.last_token_s, record.finished_s);
    }
  }
  int64_t prompt_rows = 0, decode_rows = 0, recomputed_rows = 0, preemptions = 0, first = 0, next = 0,
          tokens = 0;
  std::map<int, int> finished;
};

TEST(Engine, CountsWhatItDoes) {
  ToyModel model;
  Counter counter;
  int64_t prompt = 0;
  {
    Engine engine(model, tokenizer(), {.observer = &counter});
    for (int i = 0; i < 3; ++i) {
      const GenerationRequest one = request("some prompt", 7, static_cast<uint64_t>(i));
      prompt += static_cast<int64_t>(one.prompt.size());
      answer(engine, one);
    }
  }
  EXPECT_EQ(counter.prompt_rows, prompt);
  EXPECT_EQ(counter.decode_rows, 3 * 6);  // the last token of an answer is not computed
  EXPECT_EQ(counter.first, 3);
  EXPECT_EQ(counter.next, 3 * 6);
  EXPECT_EQ(counter.tokens, 21);
  EXPECT_EQ(counter.finished[static_cast<int>(FinishReason::kLength)], 3);
}

// Many threads submit and abort while the engine runs; for the thread sanitizer, and for slots that leak.
TEST(Engine, SurvivesACrowd) {
  ToyModel model({.sequences = 3, .rows = 16});
  std::atomic<int> finished{0};
  constexpr int kThreads = 4, kEach = 25;
  {
    Engine engine(model, tokenizer(), {.max_waiting = 1000});
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kEach; ++i) {
          GenerationRequest one = request("hello", 1 + i % 9, static_cast<uint64_t>(i));
          one.client = std::to_string(t);
          const uint64_t id =
              engine.submit(one, [&](Output output) { finished += output.finish.has_value(); });
          if (i % 3 == 0) engine.abort(id);
          (void)engine.load();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    wait_until([&] { return finished == kThreads * kEach; });
    EXPECT_EQ(engine.load().running, 0);
    EXPECT_EQ(engine.load().waiting, 0);
  }
  EXPECT_EQ(model.opened(), model.closed());
}

}  // namespace
}  // namespace spark::engine
