#include "ops/plan/plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "model/cost.h"
#include "ops/plan/published.h"
#include "unit/case_file.h"
#include "unit/model/published_config.h"

namespace spark::ops {
namespace {

constexpr double kGib = 1024.0 * 1024 * 1024;

PlanRequest request_of(const std::string& profile, const std::function<void(Repository&)>& edit = {}) {
  Repository repository(SPARK_SOURCE_DIR);
  if (edit) edit(repository);
  const Site site = load_site(repository, {.profile = profile, .nodes = "config/nodes.example.json"});
  Faults faults;
  PlanRequest request = plan_request(site, model::published_config(), faults);
  throw_if_any(faults, profile);
  return request;
}

std::map<std::string, PlanRequest> published_requests() {
  std::map<std::string, PlanRequest> requests;
  for (const std::string& profile : published_profiles()) requests[profile] = request_of(profile);
  return requests;
}

TEST(Model, TheShippedDescriptionIsThePublishedOne) {
  const std::string path = std::string(SPARK_SOURCE_DIR) + "/config/models/deepseek-v4.1-flash.json";
  EXPECT_EQ(model::read_model_config(parse_json(read_file(path), path), path), model::published_config());
}

TEST(Request, AWindowBeyondTheModelsIsAMisfit) {
  PlanRequest request = request_of("config/cluster-64k.json");
  request.model.max_position_embeddings = 8192;
  const Plan plan = make_plan(request, {});
  ASSERT_EQ(plan.misfits.size(), 1u);
  EXPECT_NE(plan.misfits[0].what.find("longer than the model's 8,192"), std::string::npos);
  ASSERT_EQ(plan.misfits[0].changes.size(), 1u);
  EXPECT_EQ(plan.misfits[0].changes[0].setting, "engine.max_model_len");
}

TEST(Request, ReadsTheProfile) {
  const PlanRequest r = request_of("config/cluster-64k.json");
  EXPECT_EQ(r.ranks, 3);
  EXPECT_EQ(r.page_size, 65536);
  EXPECT_TRUE(r.memory_saver);
  EXPECT_EQ(r.kv_bytes, 3758096384);
  EXPECT_EQ(r.max_num_batched_tokens, 4096);
  EXPECT_EQ(r.drafts, 5);
  EXPECT_TRUE(r.adaptive);
  EXPECT_TRUE(r.carveout_weights);
  EXPECT_TRUE(r.packed_head);
  EXPECT_EQ(r.captured_sizes.size(), 14U);
  EXPECT_EQ(r.captured_sizes.back(), 48);
  ASSERT_EQ(r.nodes.size(), 3U);
  EXPECT_EQ(r.nodes[0], "node1");
  const PlanRequest native = request_of("config/native-tp4.json");
  EXPECT_EQ(native.engine, EngineKind::kNative);
  EXPECT_EQ(native.ranks, 4);
  EXPECT_EQ(native.max_num_seqs, 16);
}

// Every published figure within the promised distance; fitted and held-out ones alike.
TEST(Published, IsMetWithinTheStatedDistance) {
  const auto rows = compare_with_published(published_requests());
  ASSERT_EQ(rows.size(), 27U);
  for (const Comparison& row : rows) {
    if (row.role == "other image") continue;
    const double limit = row.figure == "cache capacity" ? 0.02 : 0.15;
    EXPECT_LT(std::abs(row.deviation()), limit) << row.profile << " " << row.figure << ": " << row.predicted;
  }
}

TEST(Published, TheTableInTheGuideIsTheOneThatIsComputed) {
  const std::string guide = read_file(std::string(SPARK_SOURCE_DIR) + "/docs/plan.md");
  EXPECT_NE(guide.find(comparison_markdown(compare_with_published(published_requests()))), std::string::npos)
      << "run: spark plan --published";
}

TEST(Capacity, PagesFollowFromRecords) {
  const PlanRequest r = request_of("config/cluster-64k.json");
  const UniformPages pages = uniform_pages(r);
  EXPECT_EQ(pages.page_bytes, 128 * 288);
  EXPECT_EQ(pages.pages_per_block, 3 + 2 + 4);
  EXPECT_EQ(pages.bytes_per_token(256), 1296);
  EXPECT_EQ(pages.window_pages, 43 * 4);
  EXPECT_EQ(cache_capacity(r).growth_per_token, 890);
}

TEST(Capacity, NativeIsExact) {
  PlanRequest r = request_of("config/native-64k.json");
  EXPECT_TRUE(r.prefix_caching);
  const CacheCapacity capacity = cache_capacity(r);
  EXPECT_EQ(capacity.tokens, 8 * 524288);
  // 890 B for every token, window blocks of every layer, open pairs, a table for each of four groups.
  const double global = 890.0 * 8 * 524288;
  const double window_block = 256.0 * 528 * 43;
  const double pairs = 3.0 * 8 * 32 * 2 * 512 * 4;
  const double tables = 4.0 * 8 * 2048 * 4;
  const double checkpoints = 8 * 8 * window_block;  // eight for each sequence
  const double bare = global + (8.0 * 3 + 16) * window_block + pairs + tables;
  EXPECT_EQ(capacity.bytes, bare + checkpoints);
  r.prefix_caching = false;
  EXPECT_EQ(cache_capacity(r).bytes, bare);
}

TEST(Capacity, NativeSequencesShareABudget) {
  PlanRequest r = request_of("config/native-64k.json");
  r.prefix_caching = false;
  r.kv_bytes = int64_t{1} << 30;
  const CacheCapacity shared = cache_capacity(r);
  EXPECT_LE(shared.bytes, 1 << 30);
  EXPECT_GT(shared.bytes, (1 << 30) - 256 * 890);
  EXPECT_EQ(shared.tokens % 256, 0);
  EXPECT_NEAR(shared.windows, static_cast<double>(shared.tokens) / 524288, 1e-9);
  r.kv_bytes = least_native_cache_bytes(r);
  EXPECT_EQ(cache_capacity(r).tokens, 256);
  r.kv_bytes -= 1;
  EXPECT_NE(test::error_of([&] { cache_capacity(r); }).find("--kv-cache-memory-bytes"), std::string::npos);
}

TEST(Request, NativeSettingsReachThePlan) {
  const auto with = [](const std::string& engine) {
    return request_of("config/fuzzy.json", [&](Repository& tree) {
      tree.overlay("config/fuzzy.json",
                   R"({"schema_version": 1, "extends": "config/native-64k.json", "engine": )" + engine + "}");
    });
  };
  EXPECT_EQ(with("{}").drafts, 5);
  EXPECT_EQ(with("{}").kv_bytes, 0);
  EXPECT_EQ(with("{}").engram_cache_bytes, int64_t{256} << 20);
  EXPECT_FALSE(with(R"({"prefix_caching": false})").prefix_caching);
  EXPECT_EQ(with(R"({"speculative": {}})").drafts, 0);
  EXPECT_EQ(with(R"({"speculative": {"num_speculative_tokens": 3}})").drafts, 3);
  EXPECT_EQ(with(R"({"kv_cache_memory_bytes": 5368709120})").kv_bytes, 5368709120);
  EXPECT_EQ(with(R"({"engram_cache_mib": 0})").engram_cache_bytes, 0);
}

TEST(Memory, WeightsAreTheModels) {
  for (const auto& [profile, ranks, gigabytes] :
       {std::tuple{"config/cluster-64k.json", 3, 103.8}, {"config/cluster-tp4.json", 4, 78.2}}) {
    double bytes = 0;
    for (const MemoryPart& part : node_memory(request_of(profile)).parts) {
      if (part.name.starts_with("weights")) bytes += part.worker;
    }
    EXPECT_NEAR(bytes / 1e9, gigabytes, 0.05) << profile;
  }
}

// 66 MB of the drafter: a third or a quarter of it on every vLLM rank, all of it on a native one.
TEST(Memory, TheMarkovHeadIsCutByVllmOnly) {
  EXPECT_NEAR(markov_bytes_elsewhere(request_of("config/cluster-64k.json")) / 1e6, 44.1, 0.2);
  EXPECT_NEAR(markov_bytes_elsewhere(request_of("config/cluster-tp4.json")) / 1e6, 49.6, 0.2);
  EXPECT_EQ(markov_bytes_elsewhere(request_of("config/native-tp4.json")), 0);
}

TEST(Memory, PagesMakeTheDifferenceTheMemorySaverIsKnownFor) {
  PlanRequest r = request_of("config/cluster-64k.json");
  const double packed = node_memory(r).available(true);
  r.memory_saver = false;
  EXPECT_GT(packed - node_memory(r).available(true), 2.5 * kGib);
  r.page_size = 4096;
  const double recovered = packed - node_memory(r).available(true);
  EXPECT_GT(recovered, 1.7 * kGib);  // published: 1.78 to 1.86 GiB
  EXPECT_LT(recovered, 1.9 * kGib);
}

TEST(Plan, EveryPromotedProfileFits) {
  for (const char* profile :
       {"config/cluster-4k.json", "config/cluster-64k.json", "config/cluster-tp4.json", "config/cluster.json",
        "config/native-4k.json", "config/native-64k.json", "config/native-tp4.json"}) {
    const Plan plan = make_plan(request_of(profile));
    EXPECT_TRUE(plan.misfits.empty()) << plan_text(plan);
    EXPECT_EQ(plan_json(plan)["fits"], true);
    EXPECT_NE(plan_text(plan).find("It fits."), std::string::npos);
  }
}

TEST(Plan, SpeedGrowsAndShrinksWhereItMust) {
  const PlanRequest r = request_of("config/cluster-tp4.json");
  const Plan plan = make_plan(r);
  for (size_t i = 1; i < plan.steps.size(); ++i) {
    EXPECT_GT(plan.steps[i].total_s(), plan.steps[i - 1].total_s());
    EXPECT_GT(plan.steps[i].tokens_per_s, plan.steps[i - 1].tokens_per_s);
  }
  for (size_t i = 1; i < plan.prefills.size(); ++i) {
    EXPECT_LT(plan.prefills[i].tokens_per_s(), plan.prefills[i - 1].tokens_per_s());
  }
  // The native floor lies below the prediction for the same rows.
  const Plan floor = make_plan(request_of("config/native-tp4.json"));
  EXPECT_EQ(floor.steps[0].tokens_per_s, 0);
  EXPECT_EQ(plan_json(floor)["steps"][0]["is_floor"], true);
}

// tests/data/plan/misfits.test: a profile, edits of the request, what is wrong, and the change offered first.
TEST(Plan, FileCases) {
  for (const test::FileCase& entry : test::read_cases(std::string(SPARK_TEST_DATA) + "/plan/misfits.test")) {
    SCOPED_TRACE(entry.place);
    PlanRequest r = request_of(entry["profile"].get<std::string>());
    const std::map<std::string, int64_t*> numbers = {{"kv_bytes", &r.kv_bytes},
                                                     {"max_model_len", &r.max_model_len},
                                                     {"max_num_seqs", &r.max_num_seqs},
                                                     {"max_num_batched_tokens", &r.max_num_batched_tokens},
                                                     {"page_size", &r.page_size},
                                                     {"ranks", &r.ranks},
                                                     {"guard_gib", &r.guard_gib},
                                                     {"startup_guard_gib", &r.startup_guard_gib},
                                                     {"service_memory_max_gib", &r.service_memory_max_gib},
                                                     {"block_size", &r.block_size}};
    for (auto it = entry["edit"].begin(); it != entry["edit"].end(); ++it) {
      if (it.key() == "memory_saver") {
        r.memory_saver = it.value().get<bool>();
      } else {
        *numbers.at(it.key()) = it.value().get<int64_t>();
      }
    }
    std::string text;
    Plan plan;
    const std::string error = test::error_of([&] { plan = make_plan(r); });
    text = error.empty() ? plan_text(plan) : error;
    for (const Json& part : entry["says"])
      EXPECT_NE(text.find(part.get<std::string>()), std::string::npos) << part << "\n" << text;
    if (!entry.has("first")) continue;
    ASSERT_FALSE(plan.misfits.empty());
    ASSERT_FALSE(plan.misfits.front().changes.empty()) << text;
    EXPECT_EQ(plan.misfits.front().changes.front().setting, entry["first"].get<std::string>()) << text;
    // Every change offered is a cure by itself, and one step more is not where the setting is a number.
    for (const Change& change : plan.misfits.front().changes) {
      PlanRequest cured = r;
      const auto number = numbers.find(change.setting.substr(change.setting.rfind('.') + 1));
      if (change.setting == "engine.kv_cache_memory_bytes")
        cured.kv_bytes = std::stoll(change.to);
      else if (change.setting == "engine.nodes") {
        cured.ranks = std::stoll(change.to);
        cured.transport = nullptr;
      } else if (change.setting == "host.kernel.memory_saver_required")
        cured.memory_saver = true;
      else {
        ASSERT_NE(number, numbers.end()) << change.setting;
        if (number->first == "max_num_seqs") {
          const int64_t rows = std::stoll(change.to) * (1 + cured.drafts);
          std::erase_if(cured.captured_sizes, [&](int64_t size) { return size > rows; });
          cured.max_num_seqs = std::stoll(change.to);
        } else if (number->first == "max_model_len")
          cured.max_model_len = std::stoll(change.to);
        else
          cured.max_num_batched_tokens = std::stoll(change.to);
      }
      EXPECT_TRUE(reasons_against(cured).empty()) << change.setting << " -> " << change.to;
    }
  }
}

TEST(Plan, RefusesOptionsThatMakeNoSense) {
  const PlanRequest r = request_of("config/cluster-64k.json");
  EXPECT_NE(test::error_of([&] { make_plan(r, {.workload = "pros"}); }).find("did you mean \"prose\"?"),
            std::string::npos);
  EXPECT_NE(test::error_of([&] { make_plan(r, {.streams = {9}}); }).find("admits 1 to 8"), std::string::npos);
  EXPECT_NE(test::error_of([&] { make_plan(r, {.prompts = {1 << 20}}); }).find("admits 524288"),
            std::string::npos);
  PlanRequest empty = r;
  empty.max_num_seqs = 0;
  EXPECT_NE(test::error_of([&] { make_plan(empty); }).find("sizes must be positive"), std::string::npos);
}

}  // namespace
}  // namespace spark::ops
