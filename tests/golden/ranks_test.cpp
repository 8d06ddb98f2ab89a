// One model over several ranks against the same model on one: ranks as threads, with the real split, sums and
// replayed calls.
#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "common/statistics.h"
#include "engine/collective/host_communicator.h"
#include "engine/forward/ranked_model.h"
#include "golden/golden_file.h"
#include "golden/tiny_model.h"
#include "unit/collective/ranks_on_threads.h"

namespace spark::engine {
namespace {

using golden::argmax;

constexpr CacheLimits kLimits{.max_sequences = 4, .max_context = 512, .max_step_rows = 96};
constexpr size_t kPrompts = 20;
constexpr size_t kContinued = 6;  // tokens generated after each prompt

struct Answer {
  std::vector<std::vector<float>> logits;  // of the prompt's last row and of each generated token
  std::vector<int32_t> ids;
  std::vector<int32_t> drafts;
};

std::vector<std::vector<int32_t>> random_prompts(int32_t vocab) {
  std::mt19937 random(20261129);
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < kPrompts; ++i) {
    std::vector<int32_t> prompt(2 + random() % 399);
    for (int32_t& token : prompt) token = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

std::vector<float> last_row(StepModel& model, int32_t sequence, const std::vector<int32_t>& tokens, int32_t from) {
  std::vector<float> logits;
  const auto step = static_cast<size_t>(model.max_step_rows());
  for (size_t begin = 0; begin < tokens.size(); begin += step) {
    std::vector<StepRow> rows;
    for (size_t t = begin; t < std::min(begin + step, tokens.size()); ++t) {
      rows.push_back({.sequence = sequence,
                      .token = tokens[t],
                      .position = from + static_cast<int32_t>(t),
                      .wants_logits = t + 1 == tokens.size()});
    }
    const auto got = model.run(rows);
    logits.assign(got.begin(), got.end());
  }
  return logits;
}

Answer answer(StepModel& model, const std::vector<int32_t>& prompt, int32_t sequence = 0) {
  Answer result;
  model.open_sequence(sequence);
  result.logits.push_back(last_row(model, sequence, prompt, 0));
  for (size_t i = 0; i < kContinued; ++i) {
    result.ids.push_back(argmax(result.logits.back()));
    const auto position = static_cast<int32_t>(prompt.size() + i);
    const DraftRequest request{.sequence = sequence, .anchor = result.ids.back(), .position = position - 1};
    const auto drafts = model.draft({&request, 1}).tokens;
    result.drafts.insert(result.drafts.end(), drafts.begin(), drafts.end());
    result.logits.push_back(last_row(model, sequence, {result.ids.back()}, position));
  }
  model.close_sequence(sequence);
  return result;
}

// Gives the work a model over so many ranks.
void with_ranks(int32_t ranks, const std::string& folder, const std::string& backend,
                const std::function<void(StepModel&)>& work) {
  const auto load = [&](Communicator* communicator) {
    return load_model(
        {.folder = folder, .backend = backend, .threads = 1, .limits = kLimits, .communicator = communicator});
  };
  if (ranks == 1) {
    const auto model = load(nullptr);
    return work(*model);
  }
  on_ranks(ranks, [&](Transport& transport) {
    HostCommunicator communicator(transport, 4096);  // both kinds of sums occur
    const auto model = load(&communicator);
    if (transport.rank() != 0) return follow(*model, communicator, transport);
    LeadingModel leading(*model, communicator, transport);
    work(leading);
    leading.stop();
  });
}

std::vector<Answer> answers(int32_t ranks, const std::string& folder, const std::string& backend,
                            const std::vector<std::vector<int32_t>>& prompts) {
  std::vector<Answer> result;
  with_ranks(ranks, folder, backend, [&](StepModel& model) {
    for (const auto& prompt : prompts) result.push_back(answer(model, prompt));
  });
  return result;
}

// How far the second largest value is below the largest, relative to the row's spread.
double margin(const std::vector<float>& row) {
  std::vector<float> sorted = row;
  std::partial_sort(sorted.begin(), sorted.begin() + 2, sorted.end(), std::greater<>());
  double square = 0;
  for (const float value : row) square += static_cast<double>(value) * static_cast<double>(value);
  return (static_cast<double>(sorted[0]) - static_cast<double>(sorted[1])) /
         std::sqrt(square / static_cast<double>(row.size()));
}

struct Comparison {
  std::vector<double> distances;  // relative L2 of rows that saw the same tokens
  size_t equal_ids = 0;
  size_t ids = 0;
  double worst_margin = 0;  // of the rows whose largest logit differs
  size_t equal_drafts = 0;
  size_t drafts = 0;
};

Comparison compare(const std::vector<Answer>& one, const std::vector<Answer>& many) {
  Comparison result;
  for (size_t p = 0; p < one.size(); ++p) {
    for (size_t i = 0; i < one[p].logits.size(); ++i) {
      const std::vector<float>& want = one[p].logits[i];
      result.distances.push_back(golden::relative_l2(many[p].logits[i].data(), want.data(), want.size()));
      ++result.ids;
      if (argmax(want) != argmax(many[p].logits[i])) {
        result.worst_margin = std::max(result.worst_margin, margin(want));
        break;  // other tokens follow from here on
      }
      ++result.equal_ids;
      const size_t block = one[p].drafts.size() / kContinued;
      for (size_t d = i * block; i < kContinued && d < (i + 1) * block; ++d) {
        ++result.drafts;
        result.equal_drafts += one[p].drafts[d] == many[p].drafts[d] ? 1 : 0;
      }
    }
  }
  std::sort(result.distances.begin(), result.distances.end());
  return result;
}

void expect_close(const char* name, int32_t ranks, const Comparison& got, double median_limit, double row_limit) {
  const double median = got.distances[got.distances.size() / 2];
  std::printf("  %s, %d ranks: %zu of %zu ids equal (margin of the others up to %.4f), %zu of %zu drafts; "
              "logits: median %.4f, worst %.4f\n",
              name, ranks, got.equal_ids, got.ids, got.worst_margin, got.equal_drafts, got.drafts, median,
              got.distances.back());
  EXPECT_LE(median, median_limit);
  EXPECT_LE(got.distances.back(), row_limit);
}

int32_t vocabulary_of(const std::string& folder) {
  const std::string path = folder + "/config.json";
  return static_cast<int32_t>(
      model::read_model_config(parse_json(read_file(path), path), path).vocab_size);
}

TEST(Ranks, TheGoldenCheckpointGivesTheSameOnOneTwoAndThree) {
  const std::string folder = golden::full_set();
  if (folder.empty()) GTEST_SKIP() << "the full golden set is not here (SPARK_GOLDEN_DIR)";
  const std::string checkpoint = folder + "/tiny-checkpoint";
  const auto prompts = random_prompts(vocabulary_of(checkpoint));
  const auto one = answers(1, checkpoint, "cpu", prompts);
  for (const int32_t ranks : {2, 3}) {
    expect_close("golden", ranks, compare(one, answers(ranks, checkpoint, "cpu", prompts)), 0.06, 0.3);
  }
}

TEST(Ranks, TheSyntheticCheckpointGivesTheSameOnOneToFour) {
  const std::string& checkpoint = golden::synthetic_checkpoint();
  const auto prompts = random_prompts(vocabulary_of(checkpoint));
  const auto one = answers(1, checkpoint, "cpu", prompts);
  for (const int32_t ranks : {2, 3, 4}) {
    expect_close("synthetic", ranks, compare(one, answers(ranks, checkpoint, "cpu", prompts)), 0.06, 0.3);
  }
}

// With any number of ranks a row's bits depend on the row alone: not on the batch, the chunks or the timing.
TEST(Ranks, RowsDoNotDependOnTheirBatch) {
  const std::string& checkpoint = golden::synthetic_checkpoint();
  auto prompts = random_prompts(vocabulary_of(checkpoint));
  prompts.resize(3);
  with_ranks(3, checkpoint, "cpu", [&](StepModel& model) {
    std::vector<std::vector<float>> alone;
    for (const auto& prompt : prompts) {
      model.open_sequence(0);
      alone.push_back(last_row(model, 0, prompt, 0));
      model.close_sequence(0);
    }
    // All together, a few rows of each at a time.
    std::vector<size_t> done(prompts.size(), 0);
    std::vector<std::vector<float>> together(prompts.size());
    for (size_t p = 0; p < prompts.size(); ++p) model.open_sequence(static_cast<int32_t>(p));
    for (bool more = true; more;) {
      more = false;
      std::vector<StepRow> rows;
      std::vector<size_t> wanted;
      for (size_t p = 0; p < prompts.size(); ++p) {
        const size_t count = std::min(prompts[p].size() - done[p], 5 + 13 * p);
        for (size_t t = done[p]; t < done[p] + count; ++t) {
          const bool last = t + 1 == prompts[p].size();
          rows.push_back({.sequence = static_cast<int32_t>(p),
                          .token = prompts[p][t],
                          .position = static_cast<int32_t>(t),
                          .wants_logits = last});
          if (last) wanted.push_back(p);
        }
        done[p] += count;
        more = more || done[p] < prompts[p].size();
      }
      const auto logits = model.run(rows);
      const auto vocab = static_cast<size_t>(model.vocab_size());
      for (size_t i = 0; i < wanted.size(); ++i) {
        const auto row = logits.subspan(i * vocab, vocab);
        together[wanted[i]].assign(row.begin(), row.end());
      }
    }
    for (size_t p = 0; p < prompts.size(); ++p) {
      model.close_sequence(static_cast<int32_t>(p));
      EXPECT_EQ(alone[p], together[p]) << "prompt " << p;
    }
  });
}

TEST(Ranks, ARankLoadsItsPartOnly) {
  const std::string& checkpoint = golden::synthetic_checkpoint();
  const std::string path = checkpoint + "/config.json";
  const auto config = model::read_model_config(parse_json(read_file(path), path), path);
  int64_t before = 0;
  for (const int32_t ranks : {1, 2, 3, 4}) {
    int64_t expected = 0;
    const Checkpoint stored(checkpoint);
    std::vector<model::TensorEntry> tensors;
    for (const model::TensorEntry& tensor : model::tensor_catalogue(config)) {
      if (stored.contains(tensor.name)) tensors.push_back(tensor);
    }
    for (const auto& part : model::rank_bytes(tensors, model::split_for(config, ranks))) {
      if (part.component == model::Component::kEngramTable || part.component == model::Component::kVision) continue;
      expected += part.split + part.replicated;
    }
    std::vector<int64_t> loaded(static_cast<size_t>(ranks));
    on_ranks(ranks, [&](Transport& transport) {
      HostCommunicator communicator(transport);
      const auto model = load_model({.folder = checkpoint,
                                     .backend = "cpu",
                                     .threads = 1,
                                     .limits = kLimits,
                                     .communicator = &communicator});
      loaded[static_cast<size_t>(transport.rank())] = model->loaded_bytes();
    });
    for (const int64_t bytes : loaded) EXPECT_EQ(bytes, expected) << ranks << " ranks";
    if (before > 0) {
      EXPECT_LT(expected, before);
    }
    before = expected;
  }
}

// Fails the meeting of one rank when told to.
class FailingCommunicator final : public Communicator {
 public:
  explicit FailingCommunicator(Communicator& inner) : inner_(inner) {}
  int32_t rank() const override { return inner_.rank(); }
  int32_t ranks() const override { return inner_.ranks(); }
  bool recordable() const override { return inner_.recordable(); }
  void sum_rows(uint16_t* x, int32_t rows, int32_t cols) override { inner_.sum_rows(x, rows, cols); }
  void gather_columns(const GatherColumns& args) override { inner_.gather_columns(args); }
  void note(std::span<const uint8_t> call) override { inner_.note(call); }
  std::string meet(std::string_view failure) override {
    const bool fails = rank() == 1 && ++meetings_ == 2;
    return inner_.meet(fails ? "cannot read a table" : failure);
  }

 private:
  Communicator& inner_;
  int meetings_ = 0;
};

TEST(Ranks, AFailureOfOneRankFailsTheStepOnAllAndTheyGoOn) {
  const std::string& checkpoint = golden::synthetic_checkpoint();
  on_ranks(3, [&](Transport& transport) {
    HostCommunicator host(transport);
    FailingCommunicator communicator(host);
    const auto model = load_model({.folder = checkpoint,
                                   .backend = "cpu",
                                   .threads = 1,
                                   .limits = kLimits,
                                   .communicator = &communicator});
    if (transport.rank() != 0) return follow(*model, communicator, transport);
    LeadingModel leading(*model, communicator, transport);
    leading.open_sequence(0);
    const auto first = last_row(leading, 0, {1, 2, 3}, 0);
    try {
      last_row(leading, 0, {4}, 3);
      ADD_FAILURE() << "the failure was lost";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "rank 1: cannot read a table");
    }
    const auto again = last_row(leading, 0, {4}, 3);
    leading.close_sequence(0);
    leading.open_sequence(1);
    last_row(leading, 1, {1, 2, 3}, 0);
    EXPECT_EQ(last_row(leading, 1, {4}, 3), again);
    leading.stop();
  });
}

}  // namespace
}  // namespace spark::engine
