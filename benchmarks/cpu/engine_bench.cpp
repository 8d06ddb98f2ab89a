// The engine around the model: tokens per second of one stream and of many, and what the scheduler takes per
// step.
//
//   engine_bench CHECKPOINT [--streams 1,16] [--tokens 128] [--threads N] [--rounds 5]
//
// Greedy answers without drafts, the whole of them decoding together. "Scheduler" is everything between the
// end of one model step and the beginning of the next on the engine's thread: choosing tokens, planning,
// bookkeeping, handing outputs over; by the clock, and in CPU time of that thread, which other work on the
// machine does not add to. Rounds alternate between the numbers of streams. Times are medians of the rounds;
// a ratio compares with the first number of streams in the same round: median (lowest - highest). The fastest
// step of all rounds is what the machine does when nothing else runs.
#include <algorithm>
#include <condition_variable>
#include <ctime>
#include <iostream>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "../../apps/run_program.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "common/table.h"
#include "common/units.h"
#include "engine/forward/load_model.h"
#include "engine/forward/wrapped_model.h"
#include "engine/schedule/engine.h"
#include "text/tokenizer.h"

namespace spark::engine {
namespace {

double thread_cpu_s() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// The model, with the time noted that its thread spends elsewhere between two full steps.
class TimedModel : public WrappedModel {
 public:
  TimedModel(StepModel& inner, int32_t full) : WrappedModel(inner), full_(full) {}

  std::span<const float> run(std::span<const StepRow> rows) override {
    const bool full = static_cast<int32_t>(rows.size()) == full_;
    if (full && last_was_full_) {
      wall_s_.push_back(monotonic_s() - wall_end_s_);
      cpu_s_ += thread_cpu_s() - cpu_end_s_;
    }
    const double begin_s = monotonic_s();
    const auto logits = inner_.run(rows);
    wall_end_s_ = monotonic_s();
    if (full && last_was_full_) {
      model_s_ += wall_end_s_ - begin_s;
      fastest_s_ = std::min(fastest_s_, wall_end_s_ - begin_s);
    }
    cpu_end_s_ = thread_cpu_s();
    last_was_full_ = full;
    return logits;
  }

  double median_wall_us() {
    if (wall_s_.empty()) return 0;
    std::nth_element(wall_s_.begin(), wall_s_.begin() + std::ssize(wall_s_) / 2, wall_s_.end());
    return wall_s_[wall_s_.size() / 2] * 1e6;
  }
  double mean_cpu_us() const {
    return cpu_s_ * 1e6 / static_cast<double>(std::max<size_t>(1, wall_s_.size()));
  }
  double mean_model_us() const {
    return model_s_ * 1e6 / static_cast<double>(std::max<size_t>(1, wall_s_.size()));
  }
  double fastest_model_us() const { return fastest_s_ * 1e6; }

 private:
  int32_t full_;
  bool last_was_full_ = false;
  double wall_end_s_ = 0, cpu_end_s_ = 0, cpu_s_ = 0, model_s_ = 0, fastest_s_ = 1e9;
  std::vector<double> wall_s_;
};

struct Result {
  double tokens_per_s = 0, tokens_per_cpu_s = 0, wall_us = 0, cpu_us = 0, model_us = 0, fastest_us = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// One column of the rounds.
std::vector<double> column(const std::vector<Result>& rounds, double Result::*field) {
  std::vector<double> values;
  for (const Result& round : rounds) values.push_back(round.*field);
  return values;
}

std::string ratio_text(const std::vector<Result>& rounds, const std::vector<Result>& base,
                       double Result::*field) {
  std::vector<double> ratios;
  for (size_t i = 0; i < rounds.size(); ++i) ratios.push_back(rounds[i].*field / (base[i].*field));
  const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
  return format_fixed(median(ratios), 2) + " (" + format_fixed(*low, 2) + " - " + format_fixed(*high, 2) +
         ")";
}

Result measure(StepModel& model, const text::Tokenizer& tokenizer, int streams, int tokens) {
  TimedModel timed(model, streams);
  Engine engine(timed, tokenizer, {.max_sequences = streams});
  std::mutex mutex;
  std::condition_variable changed;
  int left = streams;
  const double begin_s = monotonic_s();
  const std::clock_t cpu_begin = std::clock();
  for (int i = 0; i < streams; ++i) {
    GenerationRequest request;
    for (int t = 0; t < 16; ++t) request.prompt.push_back(8 + (t * 31 + i * 7) % 200);
    request.max_tokens = tokens;
    request.ignore_eos = true;
    request.sampling.temperature = 0;
    engine.submit(request, [&](const Output& output) {
      if (!output.finish) return;
      const std::lock_guard lock(mutex);
      if (--left == 0) changed.notify_all();
    });
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return left == 0; });
  const double seconds = monotonic_s() - begin_s;
  const double cpu_s = static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC;
  const double all = static_cast<double>(streams) * tokens;
  return {all / seconds,       all / cpu_s,           timed.median_wall_us(),
          timed.mean_cpu_us(), timed.mean_model_us(), timed.fastest_model_us()};
}

std::vector<int> numbers(const std::string& list) {
  std::vector<int> out;
  std::stringstream in(list);
  for (std::string word; std::getline(in, word, ',');) out.push_back(std::stoi(word));
  return out;
}

int run(int argc, char** argv) {
  std::string checkpoint;
  std::vector<int> streams = {1, 16};
  int tokens = 128, threads = 0, rounds = 5;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (!word.starts_with("--")) {
      checkpoint = word;
      continue;
    }
    if (++i == argc) throw Error(word + " has no value", "engine_bench");
    const std::string value = argv[i];
    if (word == "--streams") {
      streams = numbers(value);
    } else if (word == "--tokens") {
      tokens = std::stoi(value);
    } else if (word == "--threads") {
      threads = std::stoi(value);
    } else if (word == "--rounds") {
      rounds = std::stoi(value);
    } else {
      throw Error("there is no flag " + word, "engine_bench");
    }
  }
  if (checkpoint.empty() || streams.empty() || rounds < 1)
    throw Error("name a checkpoint folder, some streams and a round at least", "engine_bench");
  set_log_level(LogLevel::kWarning);
  const auto model = load_model(
      {.folder = checkpoint,
       .backend = backend_names().front(),
       .threads = threads,
       .limits = {.max_sequences = *std::max_element(streams.begin(), streams.end()), .max_context = 1024}});
  const text::Tokenizer tokenizer = text::Tokenizer::from_file(checkpoint + "/tokenizer.json");
  std::vector<std::vector<Result>> results(streams.size());
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < streams.size(); ++i)
      results[i].push_back(measure(*model, tokenizer, streams[i], tokens));
  }
  Table table({{"streams", Align::kRight},
               {"tokens/s", Align::kRight},
               {"ratio", Align::kRight},
               {"tokens/cpu-s", Align::kRight},
               {"ratio", Align::kRight},
               {"scheduler us", Align::kRight},
               {"its cpu us", Align::kRight},
               {"model us", Align::kRight},
               {"fastest step us", Align::kRight}});
  for (size_t i = 0; i < streams.size(); ++i) {
    const std::vector<double> fastest = column(results[i], &Result::fastest_us);
    const double fastest_us = *std::min_element(fastest.begin(), fastest.end());
    const auto number = [&](double Result::*field, int digits) {
      return format_fixed(median(column(results[i], field)), digits);
    };
    table.add({std::to_string(streams[i]), number(&Result::tokens_per_s, 0),
               ratio_text(results[i], results[0], &Result::tokens_per_s),
               number(&Result::tokens_per_cpu_s, 0),
               ratio_text(results[i], results[0], &Result::tokens_per_cpu_s), number(&Result::wall_us, 1),
               number(&Result::cpu_us, 1), number(&Result::model_us, 0), format_fixed(fastest_us, 0)});
  }
  std::cout << table.text();
  return 0;
}

}  // namespace
}  // namespace spark::engine

int main(int argc, char** argv) {
  return spark::app::run_program([&] { return spark::engine::run(argc, argv); }, 1);
}
