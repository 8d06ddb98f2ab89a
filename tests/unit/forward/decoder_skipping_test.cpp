// Prompts whose first rows skip the decoder's layers: what those rows leave is what they always leave, the
// rest follows from the prompt alone, and the rows really are not computed.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "golden/tiny_model.h"

namespace spark::engine {
namespace {

using golden::Rows;

class DecoderSkipping : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    model_ = golden::load(golden::synthetic_checkpoint(), GetParam());
    window_ = model_->decoder_window();
  }

  bool fast() const { return GetParam() != "reference"; }

  std::vector<int32_t> random_tokens(size_t count) {
    std::uniform_int_distribution<int32_t> token(0, model_->vocab_size() - 1);
    std::vector<int32_t> tokens(count);
    for (int32_t& t : tokens) t = token(random_);
    return tokens;
  }

  // Rows [begin, end) of `tokens`, of which the first `prompt` are the prompt.
  std::vector<StepRow> rows_of(int32_t sequence, const std::vector<int32_t>& tokens, size_t begin, size_t end,
                               size_t prompt, bool exact) const {
    std::vector<StepRow> rows;
    for (size_t t = begin; t < end; ++t) {
      const bool skips =
          !exact && may_skip_decoder(*model_, static_cast<int64_t>(t), static_cast<int64_t>(prompt));
      rows.push_back({.sequence = sequence,
                      .token = tokens[t],
                      .position = static_cast<int32_t>(t),
                      .wants_logits = !skips,
                      .encoder_only = skips});
    }
    return rows;
  }

  void run(const std::vector<StepRow>& rows, std::map<int32_t, Rows>& logits) {
    const auto all = model_->run(rows);
    size_t next = 0;
    const auto vocab = static_cast<size_t>(model_->vocab_size());
    for (const StepRow& row : rows) {
      if (!row.wants_logits) continue;
      const auto from = all.begin() + static_cast<std::ptrdiff_t>(next++ * vocab);
      logits[row.sequence].emplace_back(from, from + static_cast<std::ptrdiff_t>(vocab));
    }
  }

  // Logits of all rows that have some, in steps of `chunk` rows.
  Rows alone(const std::vector<int32_t>& tokens, size_t prompt, size_t chunk, bool exact = false) {
    std::map<int32_t, Rows> logits;
    model_->open_sequence(0);
    for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
      run(rows_of(0, tokens, begin, std::min(begin + chunk, tokens.size()), prompt, exact), logits);
    }
    if (keep_open_) return logits[0];
    model_->close_sequence(0);
    return logits[0];
  }

  // The stored records [begin, end) of sequence 0.
  std::vector<uint8_t> records(const PagedCache& cache, int32_t begin, int32_t end) const {
    std::vector<int32_t> table(static_cast<size_t>(cache.table_stride));
    model_->backend().download(table.data(), cache.block_table, table.size() * sizeof(int32_t));
    std::vector<uint8_t> bytes;
    for (int32_t j = begin; j < end; ++j) {
      const int64_t block = table[static_cast<size_t>(j / cache.records_per_block)];
      EXPECT_GE(block, 0) << "record " << j;
      const int64_t record = block * cache.records_per_block + j % cache.records_per_block;
      const size_t at = bytes.size();
      bytes.resize(at + static_cast<size_t>(cache.record_bytes));
      model_->backend().download(bytes.data() + at, cache.base + record * cache.record_bytes,
                                 static_cast<size_t>(cache.record_bytes));
    }
    return bytes;
  }

  std::mt19937 random_{15};
  std::unique_ptr<Decoder> model_;
  int32_t window_ = 0;
  bool keep_open_ = false;
};

// The oracle is slow: it runs the two tests that would find it wrong.
class DecoderSkippingEverywhere : public DecoderSkipping {};

struct CountRows : Observer {
  void tensor(const ObservedTensor& tensor) override { rows[tensor.name] += tensor.rows; }
  std::map<std::string, int64_t> rows;
};

TEST_P(DecoderSkippingEverywhere, OnlyTheLastWindowRunsTheDecoder) {
  ASSERT_GT(window_, 0);
  const int64_t first = model_->plan().first_decoder_layer;
  const std::vector<int32_t> tokens = random_tokens(fast() ? 200 : 70);
  CountRows count;
  model_->set_observer(&count);
  alone(tokens, tokens.size(), 48);
  model_->set_observer(nullptr);
  for (const model::LayerRole& role : model_->plan().layers) {
    const int64_t expected = role.layer < first ? static_cast<int64_t>(tokens.size()) : window_;
    EXPECT_EQ(count.rows["layers." + std::to_string(role.layer) + ".h"], expected) << "layer " << role.layer;
  }
  EXPECT_EQ(count.rows["drafter_aux"], window_);
}

TEST_P(DecoderSkippingEverywhere, ChunksOfAnySize) {
  const std::vector<size_t> lengths = fast() ? std::vector<size_t>{400, 263, 131} : std::vector<size_t>{67};
  for (const size_t length : lengths) {
    const std::vector<int32_t> tokens = random_tokens(length + 6);
    const Rows whole = alone(tokens, length, tokens.size());
    ASSERT_EQ(whole.size(), static_cast<size_t>(window_) + 6);
    const std::vector<size_t> chunks =
        fast() ? std::vector<size_t>{1, 2, 3, 5, 7, 13, 16, 17, 64, 100, 128} : std::vector<size_t>{7, 64};
    for (const size_t chunk : chunks) {
      EXPECT_EQ(alone(tokens, length, chunk), whole) << length << " tokens, chunks of " << chunk;
    }
  }
}

TEST_P(DecoderSkipping, BesideOthersAndStaggered) {
  const size_t longest = 300;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<size_t> prompts = {longest, longest / 2, static_cast<size_t>(window_), longest / 3, 5};
  std::map<int32_t, Rows> expected, got;
  for (size_t s = 0; s < prompts.size(); ++s) {
    tokens.push_back(random_tokens(prompts[s] + 8));
    expected[static_cast<int32_t>(s)] = alone(tokens[s], prompts[s], 512);
  }
  std::vector<size_t> done(prompts.size(), 0);
  for (size_t s = 0; s < prompts.size(); ++s) model_->open_sequence(static_cast<int32_t>(s));
  for (bool more = true; more;) {
    std::vector<StepRow> step;
    more = false;
    for (size_t s = 0; s < prompts.size(); ++s) {
      const size_t take = std::min<size_t>(tokens[s].size() - done[s], random_() % 40);
      for (const StepRow& row :
           rows_of(static_cast<int32_t>(s), tokens[s], done[s], done[s] + take, prompts[s], false)) {
        step.push_back(row);
      }
      done[s] += take;
      more = more || done[s] < tokens[s].size();
    }
    run(step, got);
  }
  for (size_t s = 0; s < prompts.size(); ++s) {
    EXPECT_EQ(got[static_cast<int32_t>(s)], expected[static_cast<int32_t>(s)]) << "sequence " << s;
    model_->close_sequence(static_cast<int32_t>(s));
  }
}

TEST_P(DecoderSkipping, ComputedAnewBehindTheSamePrompt) {
  // What a resumed sequence does: prompt and answer in one go, the prompt's rows marked as before.
  const size_t prompt = 150;
  const std::vector<int32_t> tokens = random_tokens(prompt + 12);
  const Rows one_by_one = [&] {
    std::map<int32_t, Rows> logits;
    model_->open_sequence(0);
    run(rows_of(0, tokens, 0, prompt, prompt, false), logits);
    for (size_t t = prompt; t < tokens.size(); ++t) run(rows_of(0, tokens, t, t + 1, prompt, false), logits);
    model_->close_sequence(0);
    return logits[0];
  }();
  EXPECT_EQ(alone(tokens, prompt, tokens.size()), one_by_one);
  EXPECT_EQ(alone(tokens, prompt, 33), one_by_one);
}

TEST_P(DecoderSkipping, ShortPromptsAreExact) {
  for (const size_t length : {1, window_ - 1, window_}) {
    const std::vector<int32_t> tokens = random_tokens(length + 4);
    EXPECT_EQ(alone(tokens, length, 512), alone(tokens, length, 512, true)) << length;
  }
}

TEST_P(DecoderSkipping, LongPromptsAreNot) {
  const std::vector<int32_t> tokens = random_tokens(static_cast<size_t>(window_) * 3);
  const Rows exact = alone(tokens, tokens.size(), 512, true);
  const Rows skipping = alone(tokens, tokens.size(), 512);
  EXPECT_NE(skipping.back(), exact.back()) << "the windows of decoder layers end at the first row that ran";
}

TEST_P(DecoderSkipping, EntriesAndEncoderWindowsAreTheSame) {
  const size_t length = static_cast<size_t>(window_) * 4 + 1;
  const std::vector<int32_t> tokens = random_tokens(length);
  const int32_t first = static_cast<int32_t>(model_->plan().first_decoder_layer);
  const auto everything = [&](bool exact) {
    keep_open_ = true;
    alone(tokens, length, 50, exact);
    std::vector<std::vector<uint8_t>> all;
    const int32_t end = static_cast<int32_t>(length);
    for (const CacheSource& source : model_->cache().shape().sources) {
      all.push_back(records(model_->cache().main(source.layer), 0, end / source.ratio));
      all.push_back(records(model_->cache().keys(source.layer), 0, end / source.ratio));
    }
    for (int32_t layer = 0; layer < first; ++layer) {
      all.push_back(records(model_->cache().window(layer), end - window_, end));
    }
    model_->close_sequence(0);
    return all;
  };
  EXPECT_EQ(everything(false), everything(true));
}

TEST_P(DecoderSkipping, TheCacheSaysWhatExists) {
  const size_t length = static_cast<size_t>(window_) * 2;
  const std::vector<int32_t> tokens = random_tokens(length + 3);
  keep_open_ = true;
  alone(tokens, length, 10);
  const auto expect = [&](int32_t end, int32_t decoder_begin) {
    const RecordRange& range = model_->cache().records(0);
    EXPECT_EQ(range.end, end);
    EXPECT_EQ(range.encoder_begin, 0);
    EXPECT_EQ(range.decoder_begin, decoder_begin);
  };
  expect(static_cast<int32_t>(length) + 3, window_);
  // Cut back and again: nothing of what exists changes.
  std::map<int32_t, Rows> logits;
  run(rows_of(0, tokens, length, length + 1, length, false), logits);
  expect(static_cast<int32_t>(length) + 1, window_);
  model_->close_sequence(0);
  model_->open_sequence(0);
  expect(0, 0);
  model_->close_sequence(0);
}

TEST_P(DecoderSkipping, DraftsDoNotDependOnChunks) {
  const size_t length = static_cast<size_t>(window_) * 3 + 5;
  const std::vector<int32_t> tokens = random_tokens(length);
  keep_open_ = true;
  std::vector<int32_t> expected;
  for (const size_t chunk : {length, size_t{1}, size_t{31}, size_t{64}}) {
    alone(tokens, length, chunk);
    const Drafts drafts = model_->drafter()->draft(std::vector<DraftRequest>{
        {.sequence = 0, .anchor = 5, .position = static_cast<int32_t>(length) - 1}});
    const std::vector<int32_t> got(drafts.tokens.begin(), drafts.tokens.end());
    if (expected.empty()) expected = got;
    EXPECT_EQ(got, expected) << "chunks of " << chunk;
    model_->close_sequence(0);
  }
}

std::vector<std::string> fast_backends() {
  std::vector<std::string> names = backend_names();
  std::erase(names, "reference");
  return names;
}

INSTANTIATE_TEST_SUITE_P(Backends, DecoderSkipping, testing::ValuesIn(fast_backends()),
                         [](const auto& backend) { return backend.param; });
INSTANTIATE_TEST_SUITE_P(Backends, DecoderSkippingEverywhere, testing::ValuesIn(backend_names()),
                         [](const auto& backend) { return backend.param; });

TEST(ExactPrefill, TakesNoRowsThatSkip) {
  const auto model = load_model({.folder = golden::synthetic_checkpoint(),
                                 .backend = "reference",
                                 .limits = {.max_sequences = 1, .max_context = 64, .max_step_rows = 8},
                                 .exact_prefill = true});
  EXPECT_EQ(model->decoder_window(), 0);
  EXPECT_FALSE(may_skip_decoder(*model, 0, 1000000));
}

}  // namespace
}  // namespace spark::engine
