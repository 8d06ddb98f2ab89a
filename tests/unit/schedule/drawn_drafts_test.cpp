// Speculation on a whole (tiny) model with its own drafter, and drafts that are drawn at random.
//
// SPARK_LONG_TESTS=1 draws twenty times as many answers.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>

#include "engine/collective/host_communicator.h"
#include "engine/forward/ranked_model.h"
#include "engine/schedule/engine.h"
#include "golden/tiny_model.h"
#include "unit/collective/ranks_on_threads.h"
#include "unit/schedule/chi_square.h"
#include "unit/schedule/drafting_model.h"
#include "unit/schedule/toy_model.h"

namespace spark::engine {
namespace {

using namespace std::chrono_literals;

// Seeds and batches are fixed, so that a test either always passes or always fails.
constexpr double kLeastLikelihood = 0.01;

bool is_long() {
  return std::getenv("SPARK_LONG_TESTS") != nullptr;
}

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<double> logprobs;
  int32_t verified = 0, accepted = 0;
};

// One answer for each choice of each request.
std::vector<Answer> answers(Engine& engine, const std::vector<GenerationRequest>& requests) {
  size_t count = 0;
  for (const GenerationRequest& request : requests) count += static_cast<size_t>(request.choices);
  std::vector<Answer> out(count);
  std::vector<std::promise<void>> done(count);
  size_t first = 0;
  for (const GenerationRequest& request : requests) {
    engine.submit(request, [&, first](const Output& output) {
      const size_t i = first + static_cast<size_t>(output.choice);
      for (const TokenOutput& token : output.tokens) {
        out[i].tokens.push_back(token.token);
        if (token.logprobs) out[i].logprobs.push_back(token.logprobs->chosen);
      }
      if (output.drafts) {
        out[i].verified += output.drafts->verified;
        out[i].accepted += output.drafts->accepted;
      }
      if (!output.finish) return;
      EXPECT_EQ(output.finish->error, "");
      done[i].set_value();
    });
    first += static_cast<size_t>(request.choices);
  }
  for (std::promise<void>& each : done) {
    if (each.get_future().wait_for(300s) != std::future_status::ready) throw std::runtime_error("no answer");
  }
  return out;
}

SpeculationOptions speculation(int32_t drafts, bool drawn, bool adaptive,
                               RejectionMethod rejection = RejectionMethod::kBlock) {
  SpeculationOptions options;
  options.max_drafts = drafts;
  options.drawn = drawn;
  options.adaptive = adaptive;
  options.rejection = rejection;
  // Rows are cheap: the engine verifies some drafts and leaves some.
  options.costs = {CostCurve({{1, 1}, {100, 8}}), CostCurve({{1, 0.1}, {16, 0.2}})};
  return options;
}

class TinyModel : public testing::Test {
 protected:
  static Decoder& model() {
    static const auto kModel = golden::load(golden::synthetic_checkpoint(), "cpu", 1,
                                            {.max_sequences = 16, .max_context = 256, .max_step_rows = 128});
    return *kModel;
  }
  static const text::Tokenizer& tokenizer() {
    static const text::Tokenizer kTokenizer =
        text::Tokenizer::from_file(golden::synthetic_checkpoint() + "/tokenizer.json");
    return kTokenizer;
  }
  static std::vector<Answer> run(const std::vector<GenerationRequest>& requests,
                                 const SpeculationOptions& options, int32_t sequences = 0) {
    EngineOptions engine_options;
    engine_options.max_sequences = sequences;
    engine_options.max_waiting = 100000;
    engine_options.speculation = options;
    Engine engine(model(), tokenizer(), engine_options);
    return answers(engine, requests);
  }
  static GenerationRequest request(int32_t variety, int32_t max_tokens) {
    GenerationRequest one;
    for (int32_t i = 0; i < 3 + variety * 7 % 40; ++i) one.prompt.push_back((variety * 131 + i * 17) % 600);
    one.max_tokens = max_tokens;
    one.ignore_eos = true;
    one.sampling.seed = static_cast<uint64_t>(variety);
    return one;
  }
};

// Ids and log probabilities, greedy and drawn, alone and together, whatever is verified.
TEST_F(TinyModel, GreedyDraftsChangeNoToken) {
  std::vector<GenerationRequest> requests;
  for (int32_t i = 0; i < 10; ++i) {
    requests.push_back(request(i, 12 + 5 * i));
    requests.back().sampling.temperature = i % 2 == 0 ? 0 : 0.3;
    requests.back().top_logprobs = 0;
  }
  const auto expected = run(requests, {}, 1);
  int64_t verified = 0, accepted = 0;
  for (const bool adaptive : {false, true}) {
    for (const int32_t drafts : {5, 2}) {
      for (const int32_t sequences : {1, 10}) {
        const auto got = run(requests, speculation(drafts, false, adaptive), sequences);
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_EQ(got[i].tokens, expected[i].tokens) << i;
          EXPECT_EQ(got[i].logprobs, expected[i].logprobs) << i;
          verified += got[i].verified;
          accepted += got[i].accepted;
        }
      }
    }
  }
  std::printf("  %lld drafts verified, %lld accepted\n", static_cast<long long>(verified),
              static_cast<long long>(accepted));
  EXPECT_GT(verified, 0);
}

// Drafts that stand up to any place, or fail at any, over the real caches: rows of rejected drafts leave no
// trace in windows, compressed entries, open pairs and Engram histories.
TEST_F(TinyModel, ForcedDraftsChangeNoToken) {
  std::vector<GenerationRequest> requests;
  for (const int32_t variety : {0, 1, 3, 5}) {
    requests.push_back(request(variety, 15 + 6 * variety));
    requests.back().sampling.temperature = variety < 2 ? 0 : 0.8;
    requests.back().top_logprobs = 0;
  }
  const auto expected = run(requests, {}, 1);
  const auto right = [&](std::span<const int32_t> history, int32_t place) -> int32_t {
    for (size_t i = 0; i < requests.size(); ++i) {
      std::vector<int32_t> whole = requests[i].prompt;
      whole.insert(whole.end(), expected[i].tokens.begin(), expected[i].tokens.end());
      const size_t at = history.size() + static_cast<size_t>(place);
      if (at < whole.size() && std::equal(history.begin(), history.end(), whole.begin())) return whole[at];
    }
    return 0;
  };
  for (int32_t form = 0; form <= 10; ++form) {
    // 0 .. 5: so many right, then wrong ones; 6 .. 10: one wrong among right ones.
    DraftingModel drafting(model(), 5, [&](std::span<const int32_t> history, int32_t place) {
      const bool wrong = form <= 5 ? place >= form : place == form - 6;
      return (right(history, place) + (wrong ? 1 + place : 0)) % 600;
    });
    for (const int32_t sequences : {1, 4}) {
      EngineOptions options;
      options.max_sequences = sequences;
      options.speculation = speculation(5, false, false);
      Engine engine(drafting, tokenizer(), options);
      const auto got = answers(engine, requests);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].tokens, expected[i].tokens) << "form " << form << " request " << i;
        EXPECT_EQ(got[i].logprobs, expected[i].logprobs) << "form " << form << " request " << i;
      }
    }
  }
}

// The same through rejection sampling, where a request is greedy.
TEST_F(TinyModel, DrawnDraftsLeaveGreedyRequestsAlone) {
  std::vector<GenerationRequest> requests;
  for (int32_t i = 0; i < 6; ++i) {
    requests.push_back(request(i, 40));
    requests.back().sampling.temperature = i % 2 == 0 ? 0 : 1;
  }
  const auto expected = run(requests, {});
  const auto got = run(requests, speculation(5, true, false));
  for (size_t i = 0; i < got.size(); i += 2) EXPECT_EQ(got[i].tokens, expected[i].tokens);
}

// Over several ranks, where calls are replayed: the drafts and the cuts that they cause.
TEST_F(TinyModel, DraftsChangeNoTokenOverRanks) {
  std::vector<GenerationRequest> requests;
  for (int32_t i = 0; i < 4; ++i) {
    requests.push_back(request(i, 20 + 4 * i));
    requests.back().sampling.temperature = i % 2 == 0 ? 0 : 0.4;
    requests.back().top_logprobs = 0;
  }
  on_ranks(2, [&](Transport& transport) {
    HostCommunicator communicator(transport);
    const auto part = load_model({.folder = golden::synthetic_checkpoint(),
                                  .backend = "cpu",
                                  .threads = 1,
                                  .limits = {.max_sequences = 4, .max_context = 128, .max_step_rows = 32},
                                  .communicator = &communicator});
    if (transport.rank() != 0) return follow(*part, communicator, transport);
    LeadingModel leading(*part, communicator, transport);
    std::vector<Answer> expected;
    for (const int32_t drafts : {0, 5}) {
      for (const bool drawn : {false, true}) {
        EngineOptions options;
        options.speculation = speculation(drafts, drawn, false);
        Engine engine(leading, tokenizer(), options);
        const auto got = answers(engine, requests);
        if (expected.empty()) expected = got;
        for (size_t i = 0; i < got.size(); ++i) {
          if (drawn && i % 2 == 1) continue;  // another answer of the same distribution
          EXPECT_EQ(got[i].tokens, expected[i].tokens) << drafts << " " << drawn << " " << i;
          EXPECT_EQ(got[i].logprobs, expected[i].logprobs) << drafts << " " << drawn << " " << i;
          EXPECT_EQ(got[i].verified > 0, drafts > 0);
        }
      }
    }
    leading.stop();
  });
}

// With every draft verified, a seed's answer is the same in every batch even when drafts are drawn.
TEST_F(TinyModel, DrawnDraftsRepeatWhenAllAreVerified) {
  std::vector<GenerationRequest> requests;
  for (int32_t i = 0; i < 6; ++i) {
    requests.push_back(request(i, 30));
    requests.back().sampling.temperature = 3;
  }
  const auto alone = run(requests, speculation(5, true, false), 1);
  const auto together = run(requests, speculation(5, true, false), 6);
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(alone[i].tokens, together[i].tokens);
}

// The first tokens of an answer, in cells: the classes of each by its remainder.
void count(const std::vector<Answer>& drawn, std::vector<double>& cells) {
  cells.resize(64);
  for (const Answer& answer : drawn) {
    size_t cell = 0;
    for (size_t i = 1; i < 4; ++i) cell = cell * 4 + static_cast<size_t>(answer.tokens.at(i) % 4);
    ++cells[cell];
  }
}

struct Case {
  double temperature;
  int32_t top_k;
  double top_p;
  RejectionMethod rejection;
  bool adaptive;
};

std::vector<Case> twenty_cases() {
  std::vector<Case> cases;
  const std::vector<std::tuple<double, int32_t, double>> filters = {
      {1, 0, 1}, {1.5, 0, 1}, {3, 0, 1}, {2, 40, 1}, {2, 0, 0.9}};
  for (const auto& [temperature, top_k, top_p] : filters) {
    for (const auto rejection : {RejectionMethod::kBlock, RejectionMethod::kStandard}) {
      for (const bool adaptive : {false, true}) {
        cases.push_back({temperature, top_k, top_p, rejection, adaptive});
      }
    }
  }
  return cases;
}

TEST_F(TinyModel, DrawnDraftsKeepTheDistribution) {
  const uint64_t many = is_long() ? 2000 : 100;
  std::map<std::tuple<double, int32_t, double>, std::vector<double>> without;
  int64_t verified = 0, accepted = 0;
  double least = 1;
  uint64_t seed = 1;
  const auto draw = [&](const Case& c, const SpeculationOptions& options, std::vector<double>& cells) {
    // Choices of one request enter the engine together, so that the batches are the same in every run.
    GenerationRequest one = request(0, 4);
    one.choices = static_cast<int32_t>(many);
    one.sampling = {
        .temperature = c.temperature, .top_p = c.top_p, .top_k = c.top_k, .min_p = 0, .seed = seed};
    seed += many;
    const auto drawn = run({one}, options);
    for (const Answer& answer : drawn) {
      verified += answer.verified;
      accepted += answer.accepted;
    }
    count(drawn, cells);
  };
  for (const Case& c : twenty_cases()) {
    std::vector<double>& plain = without[{c.temperature, c.top_k, c.top_p}];
    if (plain.empty()) draw(c, {}, plain);
    std::vector<double> drafted;
    draw(c, speculation(5, true, c.adaptive, c.rejection), drafted);
    const double likelihood = same_distribution(plain, drafted);
    least = std::min(least, likelihood);
    EXPECT_GT(likelihood, kLeastLikelihood)
        << "temperature " << c.temperature << " top_k " << c.top_k << " top_p " << c.top_p << " method "
        << static_cast<int>(c.rejection) << " adaptive " << c.adaptive;
  }
  std::printf("  20 cases: least likelihood %.3f; %lld of %lld drafts accepted\n", least,
              static_cast<long long>(accepted), static_cast<long long>(verified));
  EXPECT_GT(accepted, verified / 20);
}

// A drafter that is often right, on the toy model: long accepted runs, where mistakes would show most.
class GoodDrafter : public DraftingModel {
 public:
  explicit GoodDrafter(ToyModel& toy)
      : DraftingModel(toy, 5, [](std::span<const int32_t>, int32_t) { return 0; }), toy_(toy) {}

  int32_t start_sequence(int32_t slot, const SequenceStart& start) override {
    const int32_t cached = DraftingModel::start_sequence(slot, start);
    known_[slot].assign(start.tokens.begin(), start.tokens.end());
    return cached;
  }
  std::span<const float> run(std::span<const StepRow> rows) override {
    for (const StepRow& row : rows) {
      known_[row.sequence].resize(static_cast<size_t>(row.position));
      known_[row.sequence].push_back(row.token);
    }
    return DraftingModel::run(rows);
  }
  Drafts draft(std::span<const DraftRequest> requests) override {
    tokens_.clear();
    confidence_.clear();
    proposals_.clear();
    for (const DraftRequest& request : requests) {
      std::vector<int32_t> history = known_.at(request.sequence);
      history.resize(static_cast<size_t>(request.position) + 1);
      history.push_back(request.anchor);
      for (size_t place = 0; place < 5; ++place) {
        std::vector<float> logits = toy_.logits_after(history);
        for (size_t v = 0; v < logits.size(); ++v) {
          logits[v] += static_cast<float>((v * 7 + history.size() * 3) % 5) * 0.4F;
        }
        TokenDistribution& q = proposals_.emplace_back();
        q.assign(logits, request.filter);
        tokens_.push_back(q.draw(request.uniforms[place]));
        // Knows the drafts before this one only, as a drafter's confidence must.
        confidence_.push_back(static_cast<float>(history.back() % 7) - 2);
        history.push_back(tokens_.back());
      }
    }
    return {.tokens = tokens_, .confidence = confidence_, .proposals = proposals_};
  }

 private:
  ToyModel& toy_;
  std::map<int32_t, std::vector<int32_t>> known_;
  std::vector<int32_t> tokens_;
  std::vector<float> confidence_;
  std::vector<TokenDistribution> proposals_;
};

TEST(DrawnDrafts, LongAcceptedRunsKeepTheDistribution) {
  const text::Tokenizer tokenizer = text::Tokenizer::from_file(SPARK_TEST_DATA "/golden/tiny-tokenizer.json");
  const uint64_t many = is_long() ? 10000 : 500;
  uint64_t seed = 1;
  int64_t verified = 0, accepted = 0;
  double least = 1;
  const auto draw = [&](const SpeculationOptions& options, int32_t top_k, std::vector<double>& cells) {
    ToyModel toy({.sequences = 16, .rows = 40});
    GoodDrafter model(toy);
    EngineOptions engine_options;
    engine_options.max_waiting = many;
    engine_options.speculation = options;
    Engine engine(model, tokenizer, engine_options);
    GenerationRequest one;
    one.prompt = {5, 6, 7};
    one.max_tokens = 7;
    one.choices = static_cast<int32_t>(many);
    one.ignore_eos = true;
    one.sampling = {.temperature = 1, .top_p = 1, .top_k = top_k, .min_p = 0, .seed = seed};
    seed += many;
    const auto drawn = answers(engine, {one});
    // Tokens two to seven by their parity: of six tokens, all that follow the first.
    cells.resize(64);
    for (const Answer& answer : drawn) {
      size_t cell = 0;
      for (size_t i = 1; i < 7; ++i) cell = cell * 2 + static_cast<size_t>(answer.tokens.at(i) % 2);
      ++cells[cell];
      verified += answer.verified;
      accepted += answer.accepted;
    }
  };
  for (const int32_t top_k : {0, 3}) {
    std::vector<double> plain;
    draw({}, top_k, plain);
    for (const auto rejection : {RejectionMethod::kBlock, RejectionMethod::kStandard}) {
      for (const bool adaptive : {false, true}) {
        std::vector<double> drafted;
        draw(speculation(5, true, adaptive, rejection), top_k, drafted);
        const double likelihood = same_distribution(plain, drafted);
        least = std::min(least, likelihood);
        EXPECT_GT(likelihood, kLeastLikelihood)
            << "top_k " << top_k << " method " << static_cast<int>(rejection) << " adaptive " << adaptive;
      }
    }
  }
  std::printf("  8 cases: least likelihood %.3f; %lld of %lld drafts accepted\n", least,
              static_cast<long long>(accepted), static_cast<long long>(verified));
  EXPECT_GT(accepted, verified / 4);
}

}  // namespace
}  // namespace spark::engine
