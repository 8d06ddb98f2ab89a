// What can go wrong around a model: names, limits, files that change under it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <functional>

#include "common/error.h"
#include "common/file.h"
#include "golden/tiny_model.h"
#include "unit/temporary_folder.h"

namespace spark::engine {
namespace {

namespace fs = std::filesystem;

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.describe();
  }
  return "no error";
}

// A writable copy of the tiny checkpoint.
class Copy {
 public:
  Copy() {
    fs::copy(golden::synthetic_checkpoint(), folder_, fs::copy_options::recursive);
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      fs::permissions(entry.path(), fs::perms::owner_write, fs::perm_options::add);
    }
  }
  fs::path folder() const { return folder_; }

  // The shard that holds an Engram table.
  fs::path engram_shard() const {
    const Json index = parse_json(read_file(folder_ / "model.safetensors.index.json"), "index");
    const std::string layer = std::to_string(
        model::read_model_config(parse_json(read_file(folder_ / "config.json"), "config"), "config")
            .engram_layer_ids.back());
    return folder_ / index.at("weight_map").at("layers." + layer + ".engram.embed.weight").get<std::string>();
  }

 private:
  const test::TemporaryFolder temporary_;
  fs::path folder_ = temporary_.path();
};

TEST(LoadModel, SaysWhatIsWrong) {
  const std::string folder = golden::synthetic_checkpoint();
  EXPECT_NE(message_of([&] { golden::load(folder, "gpu"); }).find("choose one of: cpu, reference"),
            std::string::npos);
  EXPECT_NE(message_of([&] { golden::load(folder + "/none", "cpu"); }).find("config.json"),
            std::string::npos);
  const std::string limits = message_of([&] {
    golden::load(folder, "cpu", 1, {.max_sequences = 0, .max_context = 1 << 30, .max_step_rows = -1});
  });
  EXPECT_NE(limits.find("max_sequences"), std::string::npos) << limits;
  EXPECT_NE(limits.find("max_context"), std::string::npos) << limits;
  EXPECT_NE(limits.find("max_step_rows"), std::string::npos) << limits;
}

TEST(LoadModel, TokenizerOfAnotherRelease) {
  const Copy copy;
  std::string text = read_file(copy.folder() / "config.json");
  const size_t at = text.find("\"engram_compressed_vocab_size\"");
  ASSERT_NE(at, std::string::npos);
  text.replace(text.find(':', at) + 1, text.find_first_of(",}\n", at) - text.find(':', at) - 1, " 17");
  write_file_atomic(copy.folder() / "config.json", text);
  const std::string message = message_of([&] { golden::load(copy.folder(), "cpu"); });
  EXPECT_NE(message.find("same release"), std::string::npos) << message;
}

TEST(LoadModel, MissingTensorsAreNamed) {
  const Copy copy;
  const fs::path index = copy.folder() / "model.safetensors.index.json";
  std::string text = read_file(index);
  const size_t at = text.find("layers.0.attn.wq_a.weight");
  text.replace(at, 8, "layerz.0");
  write_file_atomic(index, text);
  const std::string message = message_of([&] { golden::load(copy.folder(), "cpu"); });
  EXPECT_NE(message.find("layers.0.attn.wq_a.weight"), std::string::npos) << message;
}

// A table that cannot be read fails the step, and leaves sequences as if it had not been tried.
struct Watch : LoadObserver {
  void on_phase(const std::string& name) override { phases.push_back(name); }
  void on_weights(uint64_t done_bytes, uint64_t total_bytes) override {
    EXPECT_GE(done_bytes, done);
    done = done_bytes;
    total = total_bytes;
  }
  std::vector<std::string> phases;
  uint64_t done = 0, total = 0;
};

TEST(LoadModel, WeightsReadDirectlyAreTheSame) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 20; ++i) tokens.push_back(i * 31 % 500);
  for (const std::string& backend : backend_names()) {
    std::vector<golden::Rows> logits;
    for (const WeightReading reading : {WeightReading::kMapped, WeightReading::kDirect}) {
      Watch watch;
      const auto model = load_model({.folder = golden::synthetic_checkpoint(),
                                     .backend = backend,
                                     .threads = 1,
                                     .limits = {.max_sequences = 1, .max_context = 64, .max_step_rows = 32},
                                     .weight_reading = reading,
                                     .observer = &watch});
      EXPECT_GE(watch.phases.size(), 3u);
      EXPECT_GT(watch.total, 0u);
      EXPECT_EQ(watch.done, watch.total) << backend;
      model->open_sequence(0);
      logits.push_back(golden::run_tokens(*model, 0, tokens));
    }
    EXPECT_EQ(logits[0], logits[1]) << backend;
  }
}

class FailedRead : public testing::TestWithParam<bool> {};

TEST_P(FailedRead, FailsTheStepAndNothingElse) {
  const Copy copy;
  // Nothing is cached, so that every step reads.
  const auto model = load_model({.folder = copy.folder(),
                                 .backend = "cpu",
                                 .threads = 1,
                                 .limits = {.max_sequences = 2, .max_context = 256, .max_step_rows = 64},
                                 .engram = {.cache_bytes = 0, .queue = {.use_io_uring = GetParam()}}});
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 40; ++i) tokens.push_back((i * 37 + 5) % model->vocab_size());
  model->open_sequence(1);
  const golden::Rows expected = golden::run_tokens(*model, 1, tokens);
  model->open_sequence(0);
  golden::run_tokens(*model, 0, {tokens.begin(), tokens.begin() + 20});
  const std::string shard = read_file(copy.engram_shard());
  fs::resize_file(copy.engram_shard(), 1000);
  EXPECT_THROW(golden::run_tokens(*model, 0, {tokens.begin() + 15, tokens.end()}, 15), Error);
  EXPECT_EQ(model->cache().length(0), 15);
  {
    std::FILE* file = std::fopen(copy.engram_shard().c_str(), "r+b");
    ASSERT_NE(file, nullptr);
    ASSERT_EQ(std::fwrite(shard.data(), 1, shard.size(), file), shard.size());
    std::fclose(file);
  }
  const golden::Rows got = golden::run_tokens(*model, 0, {tokens.begin() + 15, tokens.end()}, 15);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), expected.begin() + 15));
  EXPECT_GT(model->table_counters().misses, 0u);
  EXPECT_GT(model->table_counters().failures, 0u);
}

INSTANTIATE_TEST_SUITE_P(Methods, FailedRead, testing::Values(true, false),
                         [](const auto& io_uring) { return io_uring.param ? "io_uring" : "pread"; });

TEST(Decoder, TokensToldAheadAreNotWaitedFor) {
  const auto model = golden::load(golden::synthetic_checkpoint(), "cpu");
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 60; ++i) tokens.push_back((i * 37 + 5) % model->vocab_size());
  model->open_sequence(0);
  golden::run_tokens(*model, 0, {tokens.begin(), tokens.begin() + 20});
  const uint64_t misses = model->table_counters().misses;
  const int32_t lead = model->prefetch_lead();
  EXPECT_EQ(lead, model->config().engram_max_ngram_size - 1);
  model->prefetch(std::span(tokens).subspan(static_cast<size_t>(20 - lead)), 20 - lead);
  model->engram().wait_for_prefetches();
  golden::run_tokens(*model, 0, {tokens.begin() + 20, tokens.end()}, 20);
  EXPECT_EQ(model->table_counters().misses, misses) << "the look-back must lead to the same rows";
  EXPECT_GT(model->table_counters().prefetched, 0u);
}

}  // namespace
}  // namespace spark::engine
