// Synthetic checkpoints: deterministic, complete, in the published layout, with the structure they promise.
#include "engine/checkpoint/synthetic.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <map>

#include "common/error.h"
#include "common/file.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/inspect.h"
#include "engine/checkpoint/synthetic_random.h"
#include "engine/checkpoint/synthetic_tokenizer.h"
#include "model/layer_plan.h"
#include "model/split.h"
#include "model/tensors.h"
#include "text/engram_map.h"
#include "text/tokenizer.h"
#include "text/tool_text.h"
#include "unit/checkpoint/temporary_folder.h"

namespace spark::engine {
namespace {

namespace fs = std::filesystem;

std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file())
      files[fs::relative(entry.path(), folder).string()] = read_file(entry.path().string());
  }
  return files;
}

uint64_t fingerprint(const std::map<std::string, std::string>& files) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const auto& [name, content] : files) {
    for (const std::string* text : {&name, &content}) {
      for (const char c : *text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
    }
  }
  return hash;
}

// One tiny checkpoint for all tests.
class Synthetic : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    write_synthetic_checkpoint(SyntheticPreset::kTiny, 1, folder_->path());
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static std::string path() { return folder_->path(); }

  // A copy that a test may damage.
  static void copy_to(const TemporaryFolder& other) {
    fs::copy(path(), other.path(), fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }

 private:
  static inline TemporaryFolder* folder_ = nullptr;
};

TEST_F(Synthetic, SameSeedSameBytes) {
  const auto files = files_of(path());
  TemporaryFolder again, other;
  write_synthetic_checkpoint(SyntheticPreset::kTiny, 1, again.path());
  EXPECT_TRUE(files == files_of(again.path()));
  write_synthetic_checkpoint(SyntheticPreset::kTiny, 2, other.path());
  for (const auto& [name, content] : files_of(other.path())) {
    const bool holds_tensors =
        name.find(".safetensors") != std::string::npos && name.find(".json") == std::string::npos;
    EXPECT_EQ(content != files.at(name), holds_tensors) << name;
  }
  // Any machine, compiler and optimisation must give this. A deliberate change of the recipe changes it.
  EXPECT_EQ(fingerprint(files), 0x3557123a04f49af7u);
}

TEST_F(Synthetic, HasThePublishedLayoutAndNoFault) {
  const auto files = files_of(path());
  for (const char* name : {"config.json", "inference/config.json", "generation_config.json", "tokenizer.json",
                           "tokenizer_config.json", "encoding/encoding.py", "model.safetensors.index.json"}) {
    EXPECT_TRUE(files.count(name)) << name;
  }
  size_t bytes = 0;
  for (const auto& [name, content] : files) bytes += content.size();
  EXPECT_LT(bytes, 12'000'000u);
  const Inspection found = inspect_checkpoint(path());
  for (const Fault& fault : found.faults) ADD_FAILURE() << fault.where << ": " << fault.what;
  ASSERT_TRUE(found.config);
  EXPECT_TRUE(found.ignored_keys.empty());
  const Checkpoint checkpoint(path());
  ASSERT_EQ(checkpoint.shards().size(), 4u);
  for (size_t shard : {2u, 3u}) {
    for (const auto& entry : checkpoint.shards()[shard]->header().tensors) {
      EXPECT_NE(entry.name.find("engram.embed."), std::string::npos) << entry.name;
    }
    EXPECT_EQ(checkpoint.shards()[shard]->header().tensors.size(), 2u);
  }
}

TEST_F(Synthetic, HasAToolTextOfThePublishedForm) {
  const auto parts = text::load_tool_text(path());
  ASSERT_TRUE(parts);
  EXPECT_TRUE(parts->before_schemas.starts_with("## Tools\n"));
  EXPECT_NE(parts->before_schemas.find("<｜DSML｜ invoke name=\"NAME\">"), std::string::npos);
  EXPECT_TRUE(parts->after_schemas.starts_with("\n\n"));
  EXPECT_FALSE(text::is_published_tool_text(*parts));
}

TEST_F(Synthetic, EveryPresetHasEveryMechanismAndSplits) {
  for (const SyntheticPreset preset : {SyntheticPreset::kTiny, SyntheticPreset::kSmall}) {
    const model::ModelConfig config = synthetic_model(preset).config;
    for (const int64_t ranks : {1, 2, 3, 4}) EXPECT_NO_THROW(model::split_for(config, ranks));
    std::map<model::AttentionMode, int> modes;
    bool engram_at_source = false, aux = false, candidates = false;
    for (const model::LayerRole& role : model::make_layer_plan(config).layers) {
      ++modes[role.mode];
      engram_at_source = engram_at_source || (role.engram >= 0 && role.owns_kv());
      aux = aux || role.aux >= 0;
      candidates = candidates || role.uses_candidates;
    }
    EXPECT_EQ(modes.size(), 4u);
    EXPECT_TRUE(engram_at_source && aux && candidates);
    EXPECT_EQ(config.num_nextn_predict_layers, 3);
  }
  EXPECT_EQ(synthetic_preset("tiny"), SyntheticPreset::kTiny);
  EXPECT_EQ(synthetic_preset("small"), SyntheticPreset::kSmall);
  EXPECT_EQ(synthetic_preset("huge"), std::nullopt);
}

TEST_F(Synthetic, TokenizerFitsTheModel) {
  const text::Tokenizer tokenizer = text::Tokenizer::from_file(path() + "/tokenizer.json");
  const model::ModelConfig config = *inspect_checkpoint(path()).config;
  EXPECT_EQ(tokenizer.vocab_size(), config.vocab_size);
  EXPECT_EQ(tokenizer.added_token("<｜begin▁of▁sentence｜>"), 0);
  EXPECT_EQ(tokenizer.added_token("<｜end▁of▁sentence｜>"), 1);
  EXPECT_EQ(tokenizer.added_token("<｜System｜>"), config.dspark_noise_token_id);
  EXPECT_EQ(tokenizer.added_token("<｜deepseek_image｜>"), config.image_token_id);
  EXPECT_FALSE(tokenizer.is_special(*tokenizer.added_token("<think>")));
  EXPECT_TRUE(tokenizer.is_special(*tokenizer.added_token("<｜User｜>")));
  const std::string text =
      "The model should think first. for (size_t i = 0; i < n; ++i) 今天天气很好 🎉 naïve\n\n  end";
  const auto ids = tokenizer.encode(text, text::ControlTokens::kAsText);
  EXPECT_EQ(tokenizer.decode(ids), text);
  EXPECT_LT(ids.size(), text.size() / 2);  // merges are used
  EXPECT_EQ(text::build_engram_map(tokenizer).class_count, config.engram_compressed_vocab_size);
  EXPECT_THROW(make_synthetic_tokenizer(100), Error);
}

TEST_F(Synthetic, HeadAndTablesHaveTheirOddities) {
  const Checkpoint checkpoint(path());
  int zeros = 0, low = 0, high = 0, usual = 0;
  for (const uint16_t bits : checkpoint.tensor("head.weight").as<uint16_t>()) {
    const int exponent = (bits >> 7) & 0xFF;
    ++((bits & 0x7FFF) == 0 ? zeros : exponent < 112 ? low : exponent > 126 ? high : usual);
  }
  EXPECT_GT(zeros, 0);
  EXPECT_GT(low, 0);
  EXPECT_GT(high, 0);
  EXPECT_GT(usual, 200 * (zeros + low + high));
  const auto codes = checkpoint.tensor("layers.1.engram.embed.weight").as<uint8_t>();
  const auto scales = checkpoint.tensor("layers.1.engram.embed.scale").as<uint8_t>();
  for (size_t i = 5 * 64; i < 6 * 64; ++i) EXPECT_EQ(codes[i] & 0x7F, 0);
  int tiny = 0;
  for (const uint8_t scale : scales) tiny += scale <= 105 ? 1 : 0;
  EXPECT_GT(tiny, 2);
}

TEST_F(Synthetic, CreateNeverDestroysByAccident) {
  const TemporaryFolder folder;
  const std::string target = (folder / "model").string();
  EXPECT_GT(create_synthetic_checkpoint(SyntheticPreset::kTiny, 1, target + "/", false), 10'000'000);
  EXPECT_TRUE(files_of(target) == files_of(path()));
  EXPECT_THROW(create_synthetic_checkpoint(SyntheticPreset::kTiny, 2, target, false), Error);
  EXPECT_TRUE(files_of(target) == files_of(path()));
  write_file_atomic(target + "/config.json", "another one");
  create_synthetic_checkpoint(SyntheticPreset::kTiny, 1, target, true);
  EXPECT_TRUE(files_of(target) == files_of(path()));
  EXPECT_EQ(folder.files(), 1);  // no temporary folder is left
  write_file_atomic((folder / "file").string(), "x");
  EXPECT_THROW(create_synthetic_checkpoint(SyntheticPreset::kTiny, 1, (folder / "file").string(), true),
               Error);
  EXPECT_THROW(
      create_synthetic_checkpoint(SyntheticPreset::kTiny, 1, (folder / "file").string() + "/x", true), Error);
  EXPECT_EQ(folder.files(), 2);
}

// "--force" is for checkpoints: whatever else a folder holds is somebody's work.
TEST_F(Synthetic, CreateReplacesNothingButCheckpoints) {
  const TemporaryFolder folder;
  for (const char* name : {"/thesis.txt", "/model-00001-of-00004.safetensors.backup", "/inference/notes"}) {
    const std::string target = (folder / "home").string();
    fs::create_directories(target + "/inference");
    write_file_atomic(target + name, "precious");
    EXPECT_THROW(create_synthetic_checkpoint(SyntheticPreset::kTiny, 1, target, true), Error) << name;
    EXPECT_EQ(read_file(target + name), "precious");
    EXPECT_EQ(folder.files(), 1);
    fs::remove_all(target);
  }
  fs::create_directory(folder / "linked");
  fs::create_directory(folder / "model");
  fs::create_directory_symlink(folder / "linked", folder / "model" / "inference");
  EXPECT_THROW(create_synthetic_checkpoint(SyntheticPreset::kTiny, 1, (folder / "model").string(), true),
               Error);
  for (const char* nowhere : {"", "/"}) {
    EXPECT_THROW(create_synthetic_checkpoint(SyntheticPreset::kTiny, 1, nowhere, true), Error);
  }
}

// A run that was killed leaves NAME.partial; the next one takes it over, unless somebody else writes there.
TEST_F(Synthetic, CreateTakesOverWhatAKilledRunLeft) {
  const TemporaryFolder folder;
  const std::string target = (folder / "model").string();
  fs::create_directories(target + ".partial/inference");
  write_file_atomic(target + ".partial/model-00001-of-00004.safetensors.Ab3dE9", "half");
  create_synthetic_checkpoint(SyntheticPreset::kTiny, 1, target, false);
  EXPECT_TRUE(files_of(target) == files_of(path()));
  EXPECT_EQ(folder.files(), 1);

  fs::create_directory(target + ".partial");
  write_file_atomic(target + ".partial/mine.txt", "precious");
  EXPECT_THROW(create_synthetic_checkpoint(SyntheticPreset::kTiny, 1, target, true), Error);
  EXPECT_EQ(read_file(target + ".partial/mine.txt"), "precious");
  fs::remove(target + ".partial/mine.txt");
  const int other_run = ::open((target + ".partial").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(::flock(other_run, LOCK_EX | LOCK_NB), 0);
  EXPECT_THROW(create_synthetic_checkpoint(SyntheticPreset::kTiny, 1, target, true), Error);
  ::close(other_run);
  EXPECT_TRUE(files_of(target) == files_of(path()));
}

// One fault each; the message must name the file.
TEST_F(Synthetic, InspectionNamesWhatIsWrong) {
  const auto faults_after = [&](const std::function<void(const std::string&)>& damage) {
    const TemporaryFolder copy;
    copy_to(copy);
    damage(copy.path());
    std::string all;
    for (const Fault& fault : inspect_checkpoint(copy.path()).faults)
      all += fault.where + ": " + fault.what + "\n";
    return all;
  };
  const auto replace = [](const std::string& file, const std::string& from, const std::string& to) {
    std::string text = read_file(file);
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    write_file_atomic(file, text.replace(at, from.size(), to));
  };
  const auto expect = [](const std::string& faults, const std::string& part) {
    EXPECT_NE(faults.find(part), std::string::npos) << faults;
  };
  expect(faults_after([&](const std::string& dir) {
           replace(dir + "/config.json", "\"o_groups\": 8", "\"o_groups\": 7");
         }),
         "text_config.o_groups: is 7");
  expect(faults_after([&](const std::string& dir) {
           replace(dir + "/inference/config.json", "\"index_topk\": 40", "\"index_topk\": 39");
         }),
         "describes another model");
  expect(faults_after([&](const std::string& dir) { fs::remove(dir + "/tokenizer.json"); }),
         "tokenizer.json: cannot be opened");
  expect(faults_after([&](const std::string& dir) { fs::remove(dir + "/model-00002-of-00004.safetensors"); }),
         "model-00002-of-00004.safetensors");
  expect(faults_after([&](const std::string& dir) {
           fs::resize_file(dir + "/model-00003-of-00004.safetensors", 50000);
         }),
         "model-00003-of-00004.safetensors");
  expect(faults_after([&](const std::string& dir) {
           replace(dir + "/config.json", "\"n_routed_experts\": 6", "\"n_routed_experts\": 7");
           fs::remove(dir + "/inference/config.json");
         }),
         "layers.0.ffn.experts.6.w1");
  expect(faults_after([&](const std::string& dir) {
           replace(dir + "/config.json",
                   "\"engram_compressed_vocab_size\": ", "\"engram_compressed_vocab_size\": 1");
         }),
         "engram_compressed_vocab_size");
  const TemporaryFolder empty;
  EXPECT_THROW(inspect_checkpoint(empty.path()), Error);
  EXPECT_THROW(inspect_checkpoint(empty.path() + "/missing"), Error);
}

TEST(CounterRandom, IsBellShapedAndPinned) {
  const CounterRandom random(7, "name");
  double sum = 0, squares = 0;
  constexpr int kDraws = 200000;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const int32_t value = random.bell(i);
    ASSERT_LE(std::abs(value), 1020);
    sum += value;
    squares += static_cast<double>(value) * value;
    ASSERT_LE(std::abs(random.uniform(i)), 1.0f);
  }
  EXPECT_NEAR(sum / kDraws, 0, 2);
  EXPECT_NEAR(std::sqrt(squares / kDraws), kBellDeviation, 2);
}

TEST(Subspace, DrawsLieInHalfTheSpaceAndMissTheSharedDirection) {
  const Subspace subspace(3, 64);
  double squares = 0, along = 0;
  for (uint64_t draw = 0; draw < 500; ++draw) {
    const auto values = subspace.draw(CounterRandom(3, "draws"), draw * 64);
    double dot = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      squares += static_cast<double>(values[i]) * values[i];
      dot += static_cast<double>(values[i]) * subspace.shared_direction()[i];
    }
    along += std::abs(dot);
  }
  EXPECT_EQ(along, 0);
  EXPECT_NEAR(std::sqrt(squares / (500 * 64)) / subspace.deviation(), 1, 0.05);
}

}  // namespace
}  // namespace spark::engine
