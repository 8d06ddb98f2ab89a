// Caches that are too small for what runs: who gives way, who comes back, and that no answer shows it.
#include <gtest/gtest.h>

#include <future>
#include <random>

#include "engine/schedule/engine.h"
#include "engine/schedule/prefill_governor.h"
#include "unit/schedule/cramped_model.h"

namespace spark::engine {
namespace {

using namespace std::chrono_literals;

const text::Tokenizer& small_tokenizer() {
  static const text::Tokenizer kTokenizer =
      text::Tokenizer::from_file(SPARK_TEST_DATA "/golden/tiny-tokenizer.json");
  return kTokenizer;
}

GenerationRequest request(size_t prompt, int32_t max_tokens, uint64_t seed) {
  GenerationRequest out;
  std::mt19937 random(static_cast<unsigned>(seed));
  for (size_t i = 0; i < prompt; ++i) out.prompt.push_back(10 + static_cast<int32_t>(random() % 200));
  out.max_tokens = max_tokens;
  out.sampling.seed = seed;
  out.sampling.temperature = seed % 2 == 0 ? 0 : 1;
  out.ignore_eos = true;
  out.top_logprobs = 1;
  return out;
}

struct PausedAnswer {
  std::vector<int32_t> tokens;
  std::vector<double> logprobs;
  int64_t cached = 0;
  std::vector<PrefillProgress> progress;
  std::optional<Finish> finish;
  bool operator==(const PausedAnswer& other) const {
    return tokens == other.tokens && logprobs == other.logprobs;
  }
};

class Pending {
 public:
  OutputSink sink() {
    return [this](Output output) {
      if (output.progress) {
        EXPECT_TRUE(output.tokens.empty() && output.text.empty() && !output.finish);
        answer_.progress.push_back(*output.progress);
      }
      for (const TokenOutput& token : output.tokens) {
        answer_.tokens.push_back(token.token);
        answer_.logprobs.push_back(token.logprobs->chosen);
      }
      if (output.cached_tokens) answer_.cached = *output.cached_tokens;
      answer_.finish = output.finish;
      if (output.finish) done_.set_value();
    };
  }
  const PausedAnswer& wait() {
    if (future_.wait_for(60s) != std::future_status::ready) throw std::runtime_error("no answer");
    return answer_;
  }

 private:
  PausedAnswer answer_;
  std::promise<void> done_;
  std::shared_future<void> future_ = done_.get_future().share();
};

std::vector<PausedAnswer> together(ToyModel& model, Engine& engine,
                                   const std::vector<GenerationRequest>& requests) {
  std::vector<std::unique_ptr<Pending>> pending;
  model.hold(true);
  for (const GenerationRequest& one : requests) {
    pending.push_back(std::make_unique<Pending>());
    engine.submit(one, pending.back()->sink());
  }
  model.hold(false);
  std::vector<PausedAnswer> answers;
  for (const auto& one : pending) answers.push_back(one->wait());
  return answers;
}

std::vector<PausedAnswer> alone(const std::vector<GenerationRequest>& requests) {
  ToyModel model;
  Engine engine(model, small_tokenizer(), {.max_sequences = 1});
  std::vector<PausedAnswer> answers;
  for (const GenerationRequest& one : requests) {
    Pending pending;
    engine.submit(one, pending.sink());
    answers.push_back(pending.wait());
  }
  return answers;
}

class Counts : public EngineObserver {
 public:
  void on_step(const StepCounts& counts) override {
    prompt += counts.prompt_rows;
    decode += counts.decode_rows;
    recomputed += counts.recomputed_rows;
  }
  void on_admit(int64_t, int64_t cached_tokens) override { cached += cached_tokens; }
  void on_preempt() override { ++preemptions; }
  void on_first_token(double) override {}
  void on_next_tokens(int64_t, double) override {}
  void on_finish(const ChoiceRecord& record) override { of_records += record.preemptions; }
  std::atomic<int64_t> prompt{0}, decode{0}, recomputed{0}, cached{0}, preemptions{0}, of_records{0};
};

TEST(Preemption, AnswersDoNotShowIt) {
  std::vector<GenerationRequest> requests;
  int64_t prompt_tokens = 0;
  for (uint64_t i = 0; i < 10; ++i) {
    requests.push_back(request(3 + 17 * i, static_cast<int32_t>(100 - 7 * i), i));
    prompt_tokens += static_cast<int64_t>(requests.back().prompt.size());
  }
  const std::vector<PausedAnswer> expected = alone(requests);
  int64_t preemptions = 0;
  for (const bool caching : {false, true}) {
    for (const int32_t blocks : {17, 20, 33}) {
      CrampedModel model({.sequences = 4, .rows = 40}, blocks, caching);
      Counts counts;
      {
        Engine engine(model, small_tokenizer(), {.growth_room = 0, .observer = &counts});
        EXPECT_EQ(together(model, engine, requests), expected) << blocks << " blocks";
        EXPECT_EQ(engine.load().cache_usage, 0);
      }
      EXPECT_EQ(model.opened(), model.closed());
      EXPECT_EQ(counts.preemptions, counts.of_records);
      EXPECT_EQ(model.started(), static_cast<int64_t>(requests.size()) + counts.preemptions);
      EXPECT_EQ(counts.prompt + counts.cached, prompt_tokens);
      if (!caching) {
        EXPECT_EQ(counts.recomputed > 0, counts.preemptions > 0);
      } else if (counts.preemptions > 0) {
        EXPECT_GT(model.cached_tokens(), 0);
      }
      preemptions += counts.preemptions;
    }
  }
  EXPECT_GT(preemptions, 6);
}

// Once at every step of an answer of 60 tokens, with an older sequence beside it.
TEST(Preemption, AtEveryStepOfAnAnswer) {
  const GenerationRequest young = request(9, 60, 5), old = request(20, 90, 2);
  const std::vector<PausedAnswer> expected = alone({old, young});
  for (const bool caching : {false, true}) {
    for (int32_t at = 9; at < 9 + 60; ++at) {
      CrampedModel model({.sequences = 2, .rows = 64}, 40, caching);
      model.deny_slot = 1;
      model.deny_at = at;
      model.deny_once = true;
      Counts counts;
      Engine engine(model, small_tokenizer(), {.observer = &counts});
      EXPECT_EQ(together(model, engine, {old, young}), expected) << "preempted at length " << at;
      EXPECT_EQ(counts.preemptions, 1) << at;
    }
  }
}

TEST(Preemption, TheYoungestGivesWayAndComesBackFirst) {
  // Two run and outgrow their 12 blocks; a third waits all the time.
  CrampedModel model({.sequences = 2, .rows = 32}, 12);
  Engine engine(model, small_tokenizer(), {.growth_room = 0});
  std::vector<int> order;
  std::promise<void> done;
  model.hold(true);
  for (int i = 0; i < 3; ++i) {
    engine.submit(request(20, i == 2 ? 5 : 140, static_cast<uint64_t>(i)), [&, i](Output output) {
      if (!output.finish) return;
      order.push_back(i);
      if (order.size() == 3) done.set_value();
    });
  }
  model.hold(false);
  ASSERT_EQ(done.get_future().wait_for(60s), std::future_status::ready);
  EXPECT_EQ(order.at(0), 0);
  // The second comes back before the third begins; there is room for both, and the third is the shorter.
  EXPECT_EQ(order.at(1), 2);
}

TEST(Preemption, WhatCouldNeverFitIsRefused) {
  CrampedModel model({.sequences = 4}, 6);
  Engine engine(model, small_tokenizer(), {});
  EXPECT_EQ(engine.max_context(), 96);
  EXPECT_THROW(engine.submit(request(90, 10, 1), [](Output) {}), Error);
  Pending pending;
  engine.submit(request(90, 6, 1), pending.sink());
  EXPECT_EQ(pending.wait().tokens.size(), 6u);
}

TEST(Preemption, PausedRequestsCanBeAborted) {
  CrampedModel model({.sequences = 2, .rows = 32}, 12);
  Counts counts;
  Engine engine(model, small_tokenizer(), {.growth_room = 0, .observer = &counts});
  Pending old, young;
  std::atomic<uint64_t> young_id{0};
  model.before_step = [&](std::span<const StepRow>) {
    if (counts.preemptions > 0 && young_id != 0) engine.abort(young_id.exchange(0));
  };
  model.hold(true);
  engine.submit(request(20, 150, 0), old.sink());
  young_id = engine.submit(request(20, 150, 1), young.sink());
  model.hold(false);
  EXPECT_EQ(young.wait().finish->reason, FinishReason::kAbort);
  EXPECT_EQ(old.wait().finish->reason, FinishReason::kLength);
}

TEST(PrefixHits, AreReportedAndSkipTheirRows) {
  CrampedModel model({.rows = 32}, 100, true);
  Counts counts;
  Engine engine(model, small_tokenizer(), {.growth_room = 0, .observer = &counts});
  GenerationRequest one = request(70, 5, 4);
  one.report_progress = true;
  Pending first;
  engine.submit(one, first.sink());
  const PausedAnswer cold = first.wait();
  EXPECT_EQ(cold.cached, 0);
  ASSERT_EQ(cold.progress.size(), 2u);  // after 32 and 64 rows; the third chunk begins the answer
  EXPECT_EQ(cold.progress[1].processed, 64);
  EXPECT_EQ(cold.progress[1].total, 70);
  Pending second;
  engine.submit(one, second.sink());
  const PausedAnswer warm = second.wait();
  EXPECT_EQ(warm, cold);
  EXPECT_EQ(warm.cached, 64);
  EXPECT_TRUE(warm.progress.empty());
  EXPECT_EQ(counts.prompt, 70 + 6);
}

// A crowd that never ends, caches that are too small: everyone is served, whoever they are.
TEST(Fairness, NobodyStarves) {
  CrampedModel model({.sequences = 3, .rows = 24}, 14);
  std::atomic<int> long_done{0}, crowd_done{0};
  std::atomic<bool> stop{false};
  Engine engine(model, small_tokenizer(), {.growth_room = 0, .max_waiting = 64});
  // The crowd keeps several requests in the queue for as long as the long ones take.
  std::thread crowd([&] {
    std::atomic<int> in_flight{0};
    for (uint64_t i = 0; !stop; ++i) {
      while (in_flight > 6 && !stop) std::this_thread::sleep_for(200us);
      GenerationRequest one = request(1 + i % 60, 1 + static_cast<int32_t>(i % 30), i);
      one.client = "crowd";
      ++in_flight;
      engine.submit(one, [&](Output output) {
        if (!output.finish) return;
        ++crowd_done;
        --in_flight;
      });
    }
    while (in_flight > 0) std::this_thread::sleep_for(1ms);
  });
  std::vector<std::unique_ptr<Pending>> patient;
  for (uint64_t i = 0; i < 5; ++i) {
    GenerationRequest one = request(150, 60, 1000 + i);
    one.client = "patient";
    patient.push_back(std::make_unique<Pending>());
    engine.submit(one, patient.back()->sink());
  }
  for (const auto& one : patient) EXPECT_EQ(one->wait().finish->reason, FinishReason::kLength);
  stop = true;
  crowd.join();
  EXPECT_GT(crowd_done, 0);
}

// A machine on which a row of a prompt takes 0.2 ms and a decoding step 5 ms: chunks grow to what the bound
// allows, and after a slow spell come back.
TEST(Governor, FindsTheRowsThatFit) {
  PrefillGovernor governor(50);
  const auto step = [&](int32_t decode_rows, double row_ms) {
    const int32_t rows = governor.rows();
    const double ms = 5 + row_ms * rows;
    governor.observe({.prefill_rows = rows, .decode_rows = decode_rows, .ms = ms});
    return ms;
  };
  EXPECT_EQ(governor.rows(), PrefillGovernor::kLeastRows);
  for (int i = 0; i < 5; ++i) governor.observe({.prefill_rows = 0, .decode_rows = 4, .ms = 5});
  for (int i = 0; i < 20; ++i) EXPECT_LE(step(4, 0.2), 50);
  EXPECT_EQ(governor.rows(), 128);  // 5 + 25.6 ms; 256 would take 56 ms
  EXPECT_GT(step(4, 2.0), 50);      // it cannot know
  EXPECT_LE(governor.rows(), 16);
  for (int i = 0; i < 60; ++i) EXPECT_LE(step(4, 0.2), 50);
  EXPECT_EQ(governor.rows(), 128);
  // A bound that no chunk can keep: prompts are read all the same.
  PrefillGovernor tight(1);
  tight.observe({.prefill_rows = 16, .decode_rows = 1, .ms = 30});
  EXPECT_EQ(tight.rows(), PrefillGovernor::kLeastRows);
}

TEST(Governor, BoundsChunksOnlyWhileStreamsWait) {
  ToyModel model({.sequences = 2, .context = 4096, .rows = 512});
  model.step_time = 1ms;
  struct Chunks : Counts {
    void on_step(const StepCounts& counts) override {
      if (counts.prompt_rows > 0) (counts.decode_rows > 0 ? beside : apart).push_back(counts.prompt_rows);
    }
    std::vector<int64_t> beside, apart;
  } chunks;
  {
    Engine engine(model, small_tokenizer(), {.max_token_gap_ms = 2, .observer = &chunks});
    Pending stream, cold;
    engine.submit(request(600, 300, 1), stream.sink());
    while (engine.load().prefill_backlog_tokens > 0 || engine.load().running == 0)
      std::this_thread::sleep_for(1ms);
    engine.submit(request(1500, 3, 2), cold.sink());
    cold.wait();
    stream.wait();
  }
  ASSERT_FALSE(chunks.apart.empty());
  EXPECT_EQ(chunks.apart.front(), 512);
  ASSERT_FALSE(chunks.beside.empty());
  EXPECT_LT(*std::max_element(chunks.beside.begin(), chunks.beside.end()), 512);
}

}  // namespace
}  // namespace spark::engine
