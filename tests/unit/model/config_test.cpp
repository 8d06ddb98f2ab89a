#include "model/config.h"

#include <gtest/gtest.h>

#include "common/file.h"
#include "model/config_file.h"
#include "model/config_json.h"
#include "unit/model/published_config.h"
#include "unit/temporary_folder.h"

namespace spark::model {
namespace {

// All faults of the published config after one edit, as "where: what" lines.
std::vector<std::string> faults_of(const Json& config) {
  Faults faults;
  parse_model_config(config, faults);
  std::vector<std::string> lines;
  for (const Fault& fault : faults) lines.push_back(fault.where + ": " + fault.what);
  return lines;
}

template <typename Edit>
std::vector<std::string> after(Edit edit) {
  Json config = published_nested();
  edit(config["text_config"]);
  return faults_of(config);
}

void expect_one(const std::vector<std::string>& faults, const std::string& part) {
  ASSERT_EQ(faults.size(), 1u) << testing::PrintToString(faults);
  EXPECT_NE(faults[0].find(part), std::string::npos) << faults[0];
}

TEST(ModelConfig, ReadsThePublishedValues) {
  std::vector<std::string> ignored;
  const ModelConfig c = read_model_config(published_nested(), "config.json", &ignored);
  EXPECT_TRUE(ignored.empty()) << testing::PrintToString(ignored);
  EXPECT_EQ(c.hidden_size, 5120);
  EXPECT_EQ(c.query_width(), 32768);
  EXPECT_EQ(c.o_group_input(), 4096);
  EXPECT_EQ(c.o_width(), 8192);
  EXPECT_EQ(c.hc_mixes(), 24);
  EXPECT_EQ(c.engram_width(), 6144);
  EXPECT_EQ(c.engram_output(), 25600);
  EXPECT_EQ(c.main_proj_input(), 15360);
  EXPECT_EQ(c.rms_norm_eps, 1e-20);
  EXPECT_EQ(c.yarn.original_max_position_embeddings, 65536);
  ASSERT_TRUE(c.vision);
  EXPECT_EQ(c.vision->aligner_width(), 9216);
  EXPECT_EQ(c.vision->patch_width(), 588);
}

TEST(ModelConfig, FlatNamesGiveTheSameModel) {
  std::vector<std::string> ignored;
  const ModelConfig flat = read_model_config(published_flat(), "inference/config.json", &ignored);
  const ModelConfig nested = published_config();
  EXPECT_TRUE(ignored.empty()) << testing::PrintToString(ignored);
  EXPECT_EQ(flat, nested);
}

TEST(ModelConfig, SurvivesWritingInBothForms) {
  const ModelConfig config = published_config();
  EXPECT_EQ(read_model_config(published_json(config), "written"), config);
  EXPECT_EQ(read_model_config(official_json(config), "written"), config);
  ModelConfig text_only = config;
  text_only.vision.reset();
  text_only.gate_temp = 0.5;
  EXPECT_EQ(read_model_config(published_json(text_only), "written"), text_only);
  EXPECT_EQ(read_model_config(official_json(text_only), "written"), text_only);
}

TEST(ModelConfig, LongWrongValuesGiveShortMessages) {
  Json config = published_nested();
  config["text_config"]["engram_num_embeddings"] = std::vector<int>(100000, 0);
  config["quantization_config"]["weight_block_size"] = std::vector<int>(100000, 0);
  try {
    read_model_config(config, "config.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_LT(std::string(error.what()).size(), 1000u);
    EXPECT_NE(std::string(error.what()).find("has 100000 entries"), std::string::npos);
  }
}

TEST(ModelConfig, NamesIgnoredKeys) {
  Json config = published_nested();
  config["text_config"]["new_in_the_next_release"] = 1;
  config["colour"] = "blue";
  std::vector<std::string> ignored;
  read_model_config(config, "config.json", &ignored);
  EXPECT_EQ(ignored, (std::vector<std::string>{"text_config.new_in_the_next_release", "colour"}));
}

TEST(ModelConfig, ReportsEveryFaultInOneRun) {
  const auto faults = after([](Json& text) {
    text.erase("hidden_size");
    text["head_dim"] = "512";
    text["o_groups"] = 7;
    text["scoring_func"] = "softmax";
    text["compress_ratios"].erase(0);
    text["engram_num_embeddings"][1] = 384016681;
    text["dspark_target_layer_ids"] = {37, 38, 40};
  });
  EXPECT_EQ(
      faults,
      (std::vector<std::string>{
          "text_config.hidden_size: is missing", "text_config.head_dim: must be an integer, not a string",
          "text_config.scoring_func: is \"softmax\"; this program computes \"sqrtsoftplus\" only",
          "text_config.o_groups: is 7, which does not divide the 64 attention heads",
          "text_config.compress_ratios: has 42 entries; 40 layers and 3 drafter layers need 43",
          "text_config.engram_num_embeddings: entry 1 is 384016681; the hash primes of layer 14 sum to "
          "384016682",
          "text_config.dspark_target_layer_ids: names layer 40 of a model with layers 0 to 39"}))
      << testing::PrintToString(faults);
}

TEST(ModelConfig, ChecksWidths) {
  expect_one(after([](Json& t) { t["moe_intermediate_size"] = 2300; }), "multiples of 32");
  expect_one(after([](Json& t) { t["q_lora_rank"] = 1288; }), "multiples of 32");
  expect_one(after([](Json& t) { t["qk_rope_head_dim"] = 63; }), "in pairs");
  const auto wide = after([](Json& t) { t["qk_rope_head_dim"] = 256; });
  expect_one(wide, "more than index_head_dim 128");
  expect_one(after([](Json& t) { t["num_experts_per_tok"] = 385; }), "of only 384 experts");
}

TEST(ModelConfig, ChecksTheCompressionPlan) {
  expect_one(after([](Json& t) { t["compress_ratios"][5] = 4; }), "must be between 0 and 2");
  expect_one(after([](Json& t) { t["compress_ratios"][42] = 1; }), "entry 42 is 1");
  expect_one(after([](Json& t) { t["compress_ratios"][5] = 1; }),
             "reads the cache of layer 2, whose ratio is 2");
  expect_one(after([](Json& t) { t["compress_ratios"][1] = 2; }), "layer 1 has ratio 2 but no source");
  expect_one(after([](Json& t) {
               t["kv_source_layer_ids"] = {2, 14, 8, 20};
             }),
             "must ascend, but 8 follows 14");
  expect_one(after([](Json& t) { t["index_source_layer_ids"] = {2, 8, 20, 24}; }), "lacks layer 14");
  expect_one(
      after([](Json& t) { t["index_source_layer_ids"].insert(t["index_source_layer_ids"].begin(), 1); }),
      "whose compress ratio is 0");
  expect_one(after([](Json& t) { t["candidate_source_layer_id"] = 14; }), "whose compress ratio is 2");
  expect_one(after([](Json& t) { t["candidate_source_layer_id"] = 24; }), "not one of kv_source_layer_ids");
  expect_one(after([](Json& t) { t["candidate_topk_blocks"] = 64; }), "guarantees only 505 candidates");
}

TEST(ModelConfig, RefusesOtherModels) {
  Json config = published_nested();
  config["model_type"] = "deepseek_v4";
  expect_one(faults_of(config), "is \"deepseek_v4\"; this program computes \"deepseek_v41\" only");
  expect_one(faults_of(Json::object({{"model_type", "llama"}})), "has neither \"text_config\"");
  expect_one(faults_of(Json::array()), "must be a JSON object");
  config = published_nested();
  config["quantization_config"]["weight_block_size"] = {128, 128};
  expect_one(faults_of(config), "weight_block_size: is [128,128]");
  config = published_nested();
  config["text_config"] = 3;
  EXPECT_GT(faults_of(config).size(), 10u);
}

// Replacing any one value by something of another kind or a wild number must give a message, never a crash.
TEST(ModelConfig, SurvivesEveryWrongValue) {
  const Json wild[] = {nullptr,
                       true,
                       "x",
                       -1,
                       0,
                       1e300,
                       std::numeric_limits<int64_t>::max(),
                       Json::array(),
                       Json::array({1, "x"}),
                       Json::object()};
  const Json original = published_nested();
  for (auto it = original["text_config"].begin(); it != original["text_config"].end(); ++it) {
    for (const Json& value : wild) {
      Json config = original;
      config["text_config"][it.key()] = value;
      faults_of(config);
      config["text_config"].erase(it.key());
      faults_of(config);
    }
  }
}

TEST(ModelConfig, AFileHasOneLimitForAll) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "config.json";
  std::string text = published_nested().dump();
  write_file_atomic(path, text);
  EXPECT_EQ(load_model_config(path), read_model_config(published_nested(), path));
  text.resize(kMaxConfigBytes + 1, ' ');
  write_file_atomic(path, text);
  EXPECT_THROW(load_model_config(path), Error);
}

}  // namespace
}  // namespace spark::model
