// `spark plan` counts a native rank's weights and caches without including the engine; here both are
// compared: what plan_memory says is what `spark-engine --check` prints and what the engine refuses to start
// without.
#include <gtest/gtest.h>

#include <map>

#include "engine/forward/memory_plan.h"
#include "ops/plan/memory.h"
#include "unit/model/published_config.h"

namespace spark::ops {
namespace {

PlanRequest changed_request(const std::string& profile, const std::string& engine) {
  Repository tree(SPARK_SOURCE_DIR);
  tree.overlay("config/changed.json",
               R"({"schema_version": 1, "extends": ")" + profile + R"(", "engine": )" + engine + "}");
  const Site site = load_site(tree, {.profile = "config/changed.json", .nodes = "config/nodes.example.json"});
  Faults faults;
  PlanRequest request = plan_request(site, model::published_config(), faults);
  throw_if_any(faults, profile);
  return request;
}

// As apps/spark-engine/prepare.cpp makes them from the flags that the profile renders to.
engine::LoadOptions options_of(const PlanRequest& request) {
  engine::LoadOptions options;
  options.backend = "cuda";
  options.limits = {.max_sequences = static_cast<int32_t>(request.max_num_seqs),
                    .max_context = static_cast<int32_t>(request.max_model_len),
                    .max_step_rows = static_cast<int32_t>(request.max_num_batched_tokens),
                    .budget_bytes = request.kv_bytes,
                    .prefix_caching = request.prefix_caching};
  options.engram.cache_bytes = static_cast<size_t>(request.engram_cache_bytes) /
                               std::max<size_t>(1, request.model.engram_layer_ids.size());
  return options;
}

TEST(NativeMemory, IsCountedAsTheEngineCountsIt) {
  for (const char* profile : {"config/native-4k.json", "config/native-64k.json", "config/native-tp4.json"}) {
    for (const char* engine :
         {"{}", R"({"prefix_caching": false})", R"({"kv_cache_memory_bytes": 8589934592})",
          R"({"kv_cache_memory_bytes": 8589934592, "prefix_caching": false, "engram_cache_mib": 100000})"}) {
      SCOPED_TRACE(std::string(profile) + " " + engine);
      const PlanRequest request = changed_request(profile, engine);
      std::map<std::string, double> planned;
      for (const MemoryPart& part : node_memory(request).parts) planned[part.name] = part.worker;
      const engine::MemoryPlan own = engine::plan_memory(request.model, options_of(request), request.ranks);
      std::map<std::string, double> near;
      for (const engine::MemoryPlan::Item& item : own.items) {
        const auto bytes = static_cast<double>(item.bytes);
        if (item.name == "arrays of a step" || item.name == "scratch of operations") {
          near[item.name] = bytes;
        } else {
          EXPECT_EQ(planned.at(item.name == "caches of sequences" ? "KV caches (exact)" : item.name), bytes)
              << item.name;
        }
      }
      const double arrays = near.at("arrays of a step");
      EXPECT_NEAR(planned.at("activation workspace"), arrays, 0.01 * arrays)
          << "see model/native_memory.cpp and engine/forward/scratch.cpp";
      const double scratch = near.at("scratch of operations");
      EXPECT_NEAR(planned.at("scratch of operations"), scratch, 0.01 * scratch)
          << "see model/native_scratch.cpp and engine/kernels/cuda/plan/scratch_plan.cpp";
    }
  }
}

}  // namespace
}  // namespace spark::ops
