// What skipping the decoder in prefill gains and costs: time of a prompt with every layer for every row and
// with the decoder for the last window only, and how far the answers differ.
//
//   prefill_bench DIR [--backend cpu] [--threads N] [--chunk N] [--prompts N] [--lengths 64,256,1024]
//
// Per length: both times, the relative distance of the logits of the prompt's last row (L2), the same of the
// first 16 tokens of an answer both continue alike, and how often the likeliest token is the same. The scale
// to judge the distance by is that of the same row after one token in the middle of the prompt was changed.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iostream>
#include <random>

#include "../../apps/run_program.h"
#include "common/clock.h"
#include "common/table.h"
#include "common/units.h"
#include "engine/forward/load_model.h"

namespace spark::engine {
namespace {

constexpr int32_t kAnswer = 16;

struct Flags {
  LoadOptions load;
  int32_t chunk = 512;
  int prompts = 8;
  std::vector<int32_t> lengths = {64, 256, 1024};
};

using Logits = std::vector<float>;

struct Outcome {
  double prefill_s = 0;
  std::vector<Logits> rows;  // of the prompt's last token, then of the answer's
};

double distance(const Logits& a, const Logits& b) {
  double difference = 0, length = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    length += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / length);
}

int32_t likeliest(const Logits& row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  explicit Bench(const Flags& flags) : flags_(flags), model_(load_model(flags.load)) {}

  void run() {
    Table table({{"prompt", Align::kRight},
                 {"all layers ms", Align::kRight},
                 {"skipping ms", Align::kRight},
                 {"ratio", Align::kRight},
                 {"distance, last row", Align::kRight},
                 {"distance, answer", Align::kRight},
                 {"same likeliest", Align::kRight},
                 {"a token changed", Align::kRight}});
    for (const int32_t length : flags_.lengths) compare(length, table);
    std::cout << model_->backend().name() << ", chunks of " << flags_.chunk << ", window "
              << model_->decoder_window() << ", medians of " << flags_.prompts << " prompts\n\n"
              << table.text();
  }

 private:
  // `answer` is given to the sequence after the prompt; when empty, it is filled with the likeliest tokens.
  Outcome generate(const std::vector<int32_t>& prompt, bool exact, std::vector<int32_t>& answer) {
    Outcome outcome;
    model_->open_sequence(0);
    const auto length = static_cast<int32_t>(prompt.size());
    const double began_s = monotonic_s();
    for (int32_t begin = 0; begin < length; begin += flags_.chunk) {
      std::vector<StepRow> rows;
      for (int32_t t = begin; t < std::min(begin + flags_.chunk, length); ++t) {
        rows.push_back({.sequence = 0,
                        .token = prompt[static_cast<size_t>(t)],
                        .position = t,
                        .wants_logits = t + 1 == length,
                        .encoder_only = !exact && may_skip_decoder(*model_, t, length)});
      }
      const auto logits = model_->run(rows);
      if (!logits.empty()) outcome.rows.emplace_back(logits.begin(), logits.end());
    }
    outcome.prefill_s = monotonic_s() - began_s;
    const bool free = answer.empty();
    for (int32_t i = 0; i < kAnswer; ++i) {
      if (free) answer.push_back(likeliest(outcome.rows.back()));
      const StepRow row{.sequence = 0,
                        .token = answer[static_cast<size_t>(i)],
                        .position = length + i,
                        .wants_logits = true};
      const auto logits = model_->run({&row, 1});
      outcome.rows.emplace_back(logits.begin(), logits.end());
    }
    model_->close_sequence(0);
    return outcome;
  }

  void compare(int32_t length, Table& table) {
    std::uniform_int_distribution<int32_t> token(0, model_->vocab_size() - 1);
    std::vector<double> exact_ms, skipping_ms, last, answers, changed;
    int same = 0, rows = 0;
    for (int i = 0; i < flags_.prompts; ++i) {
      std::vector<int32_t> prompt(static_cast<size_t>(length));
      for (int32_t& t : prompt) t = token(random_);
      std::vector<int32_t> answer;
      const Outcome exact = generate(prompt, true, answer);
      const Outcome skipping = generate(prompt, false, answer);
      prompt[prompt.size() / 2] = token(random_);
      const Outcome other = generate(prompt, true, answer);
      exact_ms.push_back(exact.prefill_s * 1e3);
      skipping_ms.push_back(skipping.prefill_s * 1e3);
      last.push_back(distance(skipping.rows[0], exact.rows[0]));
      changed.push_back(distance(other.rows[0], exact.rows[0]));
      for (size_t r = 0; r < exact.rows.size(); ++r) {
        if (r > 0) answers.push_back(distance(skipping.rows[r], exact.rows[r]));
        same += likeliest(skipping.rows[r]) == likeliest(exact.rows[r]) ? 1 : 0;
        ++rows;
      }
    }
    const auto percent = [](double share) { return format_fixed(share * 100, 2) + "%"; };
    table.add({std::to_string(length), format_fixed(median(exact_ms), 1),
               format_fixed(median(skipping_ms), 1), format_fixed(median(exact_ms) / median(skipping_ms), 2),
               percent(median(last)), percent(median(answers)), percent(static_cast<double>(same) / rows),
               percent(median(changed))});
  }

  Flags flags_;
  std::unique_ptr<Decoder> model_;
  std::mt19937 random_{5};
};

int run(int argc, char** argv) {
  Flags flags;
  CLI::App app("Prefill with and without the decoder's layers.", "prefill_bench");
  app.add_option("DIR", flags.load.folder, "Checkpoint")->required();
  app.add_option("--backend", flags.load.backend)->capture_default_str();
  app.add_option("--threads", flags.load.threads)->capture_default_str();
  app.add_option("--chunk", flags.chunk, "Rows of a step")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  app.add_option("--prompts", flags.prompts)->capture_default_str()->check(CLI::Range(1, 10000));
  app.add_option("--lengths", flags.lengths)
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 20));
  CLI11_PARSE(app, argc, argv);
  const int32_t longest = *std::max_element(flags.lengths.begin(), flags.lengths.end());
  flags.load.limits = {
      .max_sequences = 1, .max_context = longest + kAnswer + 1, .max_step_rows = flags.chunk};
  Bench(flags).run();
  return 0;
}

}  // namespace
}  // namespace spark::engine

int main(int argc, char** argv) {
  return spark::app::run_program([&] { return spark::engine::run(argc, argv); }, 1);
}
