// The engine around the model: tokens per second of one stream and of many, and what the scheduler takes per
// step.
//
//   engine_bench CHECKPOINT [--streams 1,16] [--tokens 128] [--threads N] [--rounds 5]
//
// Greedy answers without drafts, the whole of them decoding together. "Scheduler" is everything between the
// end of one model step and the beginning of the next on the engine's thread: choosing tokens, planning,
// bookkeeping, handing outputs over; by the clock, and in CPU time of that thread, which other work on the
// machine does not add to. Rounds alternate between the numbers of streams; the best counts.
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "engine/forward/load_model.h"
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
class TimedModel : public StepModel {
 public:
  TimedModel(StepModel& inner, int32_t full) : inner_(inner), full_(full) {}
  int32_t vocab_size() const override { return inner_.vocab_size(); }
  int32_t max_sequences() const override { return inner_.max_sequences(); }
  int32_t max_context() const override { return inner_.max_context(); }
  int32_t max_step_rows() const override { return inner_.max_step_rows(); }
  int32_t max_rollback() const override { return inner_.max_rollback(); }
  int32_t decoder_window() const override { return inner_.decoder_window(); }
  void open_sequence(int32_t slot) override { inner_.open_sequence(slot); }
  void close_sequence(int32_t slot) override { inner_.close_sequence(slot); }
  int32_t start_sequence(int32_t slot, const SequenceStart& start) override {
    return inner_.start_sequence(slot, start);
  }
  bool has_room(std::span<const SequenceLength> lengths) const override { return inner_.has_room(lengths); }
  int32_t longest_sequence() const override { return inner_.longest_sequence(); }
  CacheOccupancy cache_occupancy() const override { return inner_.cache_occupancy(); }

  std::span<const float> run(std::span<const StepRow> rows) override {
    const bool full = static_cast<int32_t>(rows.size()) == full_;
    if (full && last_was_full_) {
      wall_s_.push_back(monotonic_s() - wall_end_s_);
      cpu_s_ += thread_cpu_s() - cpu_end_s_;
    }
    const double begin_s = monotonic_s();
    const auto logits = inner_.run(rows);
    wall_end_s_ = monotonic_s();
    model_s_ += full && last_was_full_ ? wall_end_s_ - begin_s : 0;
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

 private:
  StepModel& inner_;
  int32_t full_;
  bool last_was_full_ = false;
  double wall_end_s_ = 0, cpu_end_s_ = 0, cpu_s_ = 0, model_s_ = 0;
  std::vector<double> wall_s_;
};

struct Result {
  double tokens_per_s = 0, tokens_per_cpu_s = 0, wall_us = 1e9, cpu_us = 1e9, model_us = 1e9;
};

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
  return {all / seconds, all / cpu_s, timed.median_wall_us(), timed.mean_cpu_us(), timed.mean_model_us()};
}

std::vector<int> numbers(const std::string& list) {
  std::vector<int> out;
  std::stringstream in(list);
  for (std::string word; std::getline(in, word, ',');) out.push_back(std::stoi(word));
  return out;
}

void run(int argc, char** argv) {
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
  if (checkpoint.empty() || streams.empty()) throw Error("name a checkpoint folder", "engine_bench");
  set_log_level(LogLevel::kWarning);
  const auto model = load_model(
      {.folder = checkpoint,
       .backend = backend_names().front(),
       .threads = threads,
       .limits = {.max_sequences = *std::max_element(streams.begin(), streams.end()), .max_context = 1024}});
  const text::Tokenizer tokenizer = text::Tokenizer::from_file(checkpoint + "/tokenizer.json");
  std::vector<Result> best(streams.size());
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < streams.size(); ++i) {
      const Result r = measure(*model, tokenizer, streams[i], tokens);
      best[i].tokens_per_s = std::max(best[i].tokens_per_s, r.tokens_per_s);
      best[i].tokens_per_cpu_s = std::max(best[i].tokens_per_cpu_s, r.tokens_per_cpu_s);
      best[i].wall_us = std::min(best[i].wall_us, r.wall_us);
      best[i].cpu_us = std::min(best[i].cpu_us, r.cpu_us);
      best[i].model_us = std::min(best[i].model_us, r.model_us);
    }
  }
  std::printf("%8s %10s %7s %13s %14s %13s %12s\n", "streams", "tokens/s", "ratio", "tokens/cpu-s",
              "scheduler us", "(thread cpu)", "model us");
  for (size_t i = 0; i < streams.size(); ++i) {
    std::printf("%8d %10.1f %7.2f %13.1f %14.1f %13.1f %12.1f\n", streams[i], best[i].tokens_per_s,
                best[i].tokens_per_s / best[0].tokens_per_s, best[i].tokens_per_cpu_s, best[i].wall_us,
                best[i].cpu_us, best[i].model_us);
  }
}

}  // namespace
}  // namespace spark::engine

int main(int argc, char** argv) {
  try {
    spark::engine::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
