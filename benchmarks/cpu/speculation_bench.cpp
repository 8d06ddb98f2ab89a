// What speculation brings on a checkpoint: tokens per second of the engine without drafts, with every draft
// verified, and with as many as pay, for several numbers of streams.
//
//   speculation_bench CHECKPOINT [--streams 1,16] [--tokens 128] [--temperature 0] [--drawn] [--threads N]
//                     [--rounds 3] [--cost-scale 1]
//
// Rounds alternate between the forms, so that a busy machine slows all of them alike; the best round counts.
// The ratio is of tokens per second of processor time, which a busy machine hardly changes.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "../../apps/run_program.h"
#include "common/error.h"
#include "common/log.h"
#include "engine/forward/load_model.h"
#include "engine/schedule/engine.h"
#include "text/tokenizer.h"

namespace spark::engine {
namespace {

struct Flags {
  std::string checkpoint;
  std::vector<int> streams = {1, 16};
  int tokens = 128;
  double temperature = 0;
  bool drawn = false;
  int threads = 0;
  int rounds = 3;
  double cost_scale = 1;
};

struct Result {
  double tokens_per_s = 0;
  double tokens_per_cpu_s = 0;
  double tokens = 0, blocks = 0, verified = 0, accepted = 0;
};

class Waiting {
 public:
  void done() {
    const std::lock_guard lock(mutex_);
    ++done_;
    changed_.notify_all();
  }
  void wait_for(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int done_ = 0;
};

struct Counter : EngineObserver {
  void on_step(const StepCounts&) override {}
  void on_first_token(double) override {}
  void on_next_tokens(int64_t, double) override {}
  void on_finish(const ChoiceRecord&) override {}
  void on_drafts(const DraftOutcome& outcome) override {
    ++result.blocks;
    result.verified += outcome.verified;
    result.accepted += outcome.accepted;
  }
  Result result;
};

const char* const kTexts[] = {
    "Speculative decoding drafts several tokens with a small model and verifies them with the large one.",
    "def median(values):\n    values = sorted(values)\n    return values[len(values) // 2]\n",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18",
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the lazy dog.",
};

Result measure(StepModel& model, const text::Tokenizer& tokenizer, const Flags& flags, int streams,
               const SpeculationOptions& speculation, uint64_t seed) {
  Counter counter;
  EngineOptions options;
  options.speculation = speculation;
  options.max_sequences = streams;
  options.observer = &counter;
  Engine engine(model, tokenizer, options);
  const auto run = [&](int tokens, uint64_t first_seed) {
    Waiting waiting;
    for (int i = 0; i < streams; ++i) {
      GenerationRequest request;
      request.prompt =
          tokenizer.encode(kTexts[static_cast<size_t>(i) % std::size(kTexts)], text::ControlTokens::kAsText);
      request.prompt.insert(request.prompt.begin(), static_cast<int32_t>(i % 7 + 3));
      request.max_tokens = tokens;
      request.ignore_eos = true;
      request.sampling.temperature = flags.temperature;
      request.sampling.seed = first_seed + static_cast<uint64_t>(i);
      engine.submit(request, [&](const Output& output) {
        if (output.finish) waiting.done();
      });
    }
    waiting.wait_for(streams);
  };
  run(32, 1000 + seed);  // so that estimates have settled
  counter.result = {};
  const auto begin = std::chrono::steady_clock::now();
  const std::clock_t cpu_begin = std::clock();
  run(flags.tokens, seed);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double cpu_s = static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC;
  Result result = counter.result;
  result.tokens_per_cpu_s = static_cast<double>(flags.tokens) * streams / cpu_s;
  result.tokens = static_cast<double>(flags.tokens) * streams;
  result.tokens_per_s = result.tokens / seconds;
  return result;
}

std::vector<int> numbers(const std::string& list) {
  std::vector<int> out;
  std::stringstream in(list);
  for (std::string word; std::getline(in, word, ',');) out.push_back(std::stoi(word));
  return out;
}

Flags parse(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--drawn") {
      flags.drawn = true;
    } else if (word.starts_with("--") && i + 1 < argc) {
      const std::string value = argv[++i];
      if (word == "--streams") flags.streams = numbers(value);
      if (word == "--tokens") flags.tokens = std::stoi(value);
      if (word == "--temperature") flags.temperature = std::stod(value);
      if (word == "--threads") flags.threads = std::stoi(value);
      if (word == "--rounds") flags.rounds = std::stoi(value);
      if (word == "--cost-scale") flags.cost_scale = std::stod(value);
    } else {
      flags.checkpoint = word;
    }
  }
  if (flags.checkpoint.empty()) throw Error("name a checkpoint folder", "speculation_bench");
  return flags;
}

void run(const Flags& flags) {
  set_log_level(LogLevel::kWarning);
  const int most = *std::max_element(flags.streams.begin(), flags.streams.end());
  const auto model =
      load_model({.folder = flags.checkpoint,
                  .backend = backend_names().front(),
                  .threads = flags.threads,
                  .limits = {.max_sequences = most, .max_context = 1024, .max_step_rows = 512}});
  const text::Tokenizer tokenizer = text::Tokenizer::from_file(flags.checkpoint + "/tokenizer.json");
  SpeculationOptions every;
  every.max_drafts = model->max_drafts();
  every.adaptive = false;
  every.drawn = flags.drawn;
  SpeculationOptions paying = every;
  paying.adaptive = true;
  paying.cost_scale = flags.cost_scale;
  paying.costs = measure_step_costs(
      *model, {.max_sequences = most, .max_drafts = every.max_drafts, .drawn = flags.drawn});
  std::printf("costs: %s\n", paying.costs.describe().c_str());
  std::printf("%8s %-10s %10s %14s %8s %12s %10s\n", "streams", "drafts", "tokens/s", "tokens/cpu-s", "ratio",
              "tokens/step", "verified");
  const std::pair<const char*, SpeculationOptions> forms[] = {
      {"none", SpeculationOptions{}}, {"every", every}, {"paying", paying}};
  for (const int streams : flags.streams) {
    Result best[3];
    for (int round = 0; round < flags.rounds; ++round) {
      for (size_t form = 0; form < 3; ++form) {
        const Result result = measure(*model, tokenizer, flags, streams, forms[form].second,
                                      static_cast<uint64_t>(100 * round));
        if (result.tokens_per_cpu_s > best[form].tokens_per_cpu_s) best[form] = result;
      }
    }
    for (size_t form = 0; form < 3; ++form) {
      const Result& r = best[form];
      const double blocks = r.blocks > 0 ? r.blocks : 1;
      std::printf("%8d %-10s %10.1f %14.1f %8.2f %12.2f %10.2f\n", streams, forms[form].first, r.tokens_per_s,
                  r.tokens_per_cpu_s, r.tokens_per_cpu_s / best[0].tokens_per_cpu_s, 1 + r.accepted / blocks,
                  r.verified / blocks);
    }
  }
}

}  // namespace
}  // namespace spark::engine

int main(int argc, char** argv) {
  const auto body = [&] {
    spark::engine::run(spark::engine::parse(argc, argv));
    return 0;
  };
  return spark::app::run_program(body, 1);
}
