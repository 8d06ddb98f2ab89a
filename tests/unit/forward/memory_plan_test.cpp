// What is planned is what is allocated, and what does not fit is refused.
#include "engine/forward/memory_plan.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include "common/error.h"
#include "common/file.h"
#include "golden/tiny_model.h"
#include "model/tensors.h"

namespace spark::engine {
namespace {

model::ModelConfig config_at(const std::string& path) {
  return model::read_model_config(parse_json(read_file(path), path), path);
}

model::ModelConfig config_of(const std::string& folder) {
  return config_at(folder + "/config.json");
}

uint64_t allocated() {
  const struct mallinfo2 info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST(MemoryPlan, IsWhatTheModelTakes) {
  const std::string folder = golden::synthetic_checkpoint();
  for (const int32_t rows : {64, 2048}) {
    const LoadOptions options{.folder = folder,
                              .backend = "cpu",
                              .threads = 1,
                              .limits = {.max_sequences = 4, .max_context = 8192, .max_step_rows = rows},
                              .engram = {.cache_bytes = 0}};
    const MemoryPlan plan = plan_memory(config_of(folder), options, 1);
    const uint64_t before = allocated();
    const auto model = load_model(options);
    const auto taken = static_cast<double>(allocated() - before);
    // The tokenizer's map, names of tensors and the like are not in the plan.
    EXPECT_GT(static_cast<double>(plan.total()), 0.9 * taken - 3e6) << plan.text();
    EXPECT_LT(static_cast<double>(plan.total()), 1.05 * taken) << plan.text();
  }
}

TEST(MemoryPlan, CachesAreExact) {
  const std::string folder = golden::synthetic_checkpoint();
  const LoadOptions options{.folder = folder,
                            .backend = "reference",
                            .limits = {.max_sequences = 3, .max_context = 5000, .max_step_rows = 100}};
  const auto model = load_model(options);
  for (const MemoryPlan::Item& item : plan_memory(config_of(folder), options, 1).items) {
    if (item.name != "caches of sequences") continue;
    EXPECT_EQ(item.bytes, model->cache().usage().bytes);
  }
}

TEST(MemoryPlan, RefusesWhatDoesNotFit) {
  const model::ModelConfig config = config_of(golden::synthetic_checkpoint());
  const MemoryPlan plan = plan_memory(
      config, {.folder = "", .backend = "cpu", .limits = {.max_sequences = 8, .max_context = 65536}}, 1);
  plan.check(plan.total());
  plan.check(std::nullopt);
  try {
    plan.check(plan.total() - 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.describe().find("--max-model-len"), std::string::npos) << error.describe();
    EXPECT_NE(error.describe().find("caches of sequences"), std::string::npos) << error.describe();
  }
}

// The release's sizes (a published calculation has 307.2, 154.5, 103.8 and 78.2 GB with the vision tower).
TEST(MemoryPlan, OfTheReleaseOnOneToFourRanks) {
  const model::ModelConfig config =
      config_at(std::string(SPARK_SOURCE_DIR) + "/config/models/deepseek-v4.1-flash.json");
  for (const auto& [ranks, gigabytes] : std::vector<std::pair<int64_t, double>>{
           {1, 307.2 - 0.97}, {2, 154.5 - 0.97}, {3, 103.8 - 0.97}, {4, 78.2 - 0.97}}) {
    const MemoryPlan plan = plan_memory(config, {.folder = "", .backend = "cuda", .limits = {}}, ranks);
    uint64_t weights = 0;
    for (const MemoryPlan::Item& item : plan.items) {
      if (item.name.starts_with("weights")) weights += item.bytes;
    }
    // That calculation packs the head only; embedding and Markov matrices are packed, too.
    EXPECT_NEAR(static_cast<double>(weights) / 1e9, gigabytes, 0.6) << ranks << " ranks";
    EXPECT_EQ(plan.mapped, 0u);
  }
}

}  // namespace
}  // namespace spark::engine
