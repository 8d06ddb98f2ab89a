#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "common/file.h"
#include "ops/tuning/recipe.h"
#include "ops/tuning/topology.h"
#include "unit/case_file.h"
#include "unit/model/published_config.h"
#include "unit/temporary_folder.h"

namespace spark::ops {
namespace {

using test::error_of;

constexpr const char* kRing = "config/examples/nodes-ring4.json";
constexpr const char* kTriangle = "config/nodes.example.json";

// A copy of the configuration that a test may write into.
class Workshop {
 public:
  Workshop() {
    for (const char* name : {"config", "manifests", "upstreams.lock.json"}) {
      std::filesystem::copy(std::string(SPARK_SOURCE_DIR) + "/" + name, root_ / name,
                            std::filesystem::copy_options::recursive);
    }
  }

  Repository repository() const { return Repository(root_.string()); }
  bool has(const std::string& path) const { return std::filesystem::exists(root_ / path); }
  void write(const std::string& path, const std::string& text) const {
    write_file_atomic((root_ / path).string(), text);
  }

 private:
  const test::TemporaryFolder temporary_;
  std::filesystem::path root_ = temporary_.path();
};

TEST(Sizes, AreBinary) {
  EXPECT_EQ(byte_size("2MB"), 2097152);
  EXPECT_EQ(byte_size("16"), 16);
  EXPECT_EQ(byte_size("512KB"), 524288);
  EXPECT_EQ(byte_size("3B"), 3);
  EXPECT_EQ(byte_size("1GB"), 1073741824);
  for (const char* bad : {"", "MB", "2 MB", "-1", "2TB", "99999999999GB", "1.5MB"})
    EXPECT_EQ(byte_size(bad), std::nullopt) << bad;
}

TEST(Catalogue, ShippedRecipesResolveAndShow) {
  const Repository repository(SPARK_SOURCE_DIR);
  for (const auto& [name, ranks, heads] : {std::tuple{"tp3-rocenante", 3, 72}, {"tp4-rocenante", 4, 64}}) {
    const ResolvedRecipe recipe = resolve_recipe(repository, kDefaultCatalogue, name);
    const Json json = recipe_json(recipe, model::published_config());
    EXPECT_EQ(json["node_count"], ranks);
    EXPECT_EQ(json["derived_layout"]["attention"]["heads"], heads);
    // One-shot up to 2 MiB: 204 rows of 10,240 B; the next one is sequence-parallel.
    const int64_t least = json["derived_layout"]["sequence_parallel_min_rows"].get<int64_t>();
    EXPECT_GE(least, 202);
    EXPECT_LE(least, 205);
  }
  const ResolvedRecipe three = resolve_recipe(repository, kDefaultCatalogue, "tp3-rocenante");
  EXPECT_EQ(three.environment.count("NCCL_MIN_NCHANNELS"), 0U);
  EXPECT_EQ(three.environment.at("NCCL_MAX_NCHANNELS"), "8");
}

TEST(Catalogue, FileCases) {
  const std::string good = read_file(std::string(SPARK_SOURCE_DIR) + "/" + kDefaultCatalogue);
  for (const test::FileCase& entry :
       test::read_cases(std::string(SPARK_TEST_DATA) + "/tuning/recipes.test")) {
    SCOPED_TRACE(entry.place);
    const std::string name = entry["recipe"].get<std::string>();
    Json catalogue = parse_json(good, "catalogue");
    if (entry.has("edit")) {
      for (auto it = entry["edit"].begin(); it != entry["edit"].end(); ++it) {
        catalogue[Json::json_pointer("/profiles/" + name + "/" + it.key())] = it.value();
      }
    }
    Repository repository(SPARK_SOURCE_DIR);
    repository.overlay(kDefaultCatalogue, catalogue.dump());
    if (entry.has("base_edit")) {
      const std::string base = "config/cluster-64k.json";
      Json document = parse_json(repository.read(base), base);
      document.update(entry["base_edit"]);
      repository.overlay(base, document.dump());
    }
    const std::string error = error_of([&] { resolve_recipe(repository, kDefaultCatalogue, name); });
    for (const Json& part : entry["error"])
      EXPECT_NE(error.find(part.get<std::string>()), std::string::npos) << part << "\n" << error;
  }
}

TEST(Create, WritesAProfileThatLoadsAndCannotBeLaunched) {
  const Workshop workshop;
  const Repository repository = workshop.repository();
  const ResolvedRecipe recipe = resolve_recipe(repository, kDefaultCatalogue, "tp4-rocenante");
  create_from_recipe(repository, recipe, model::published_config(), kRing, "experiments/tp4.json");
  const Site site =
      load_site(repository, {.profile = "experiments/tp4.json", .site_file = "config/site.example.json"});
  EXPECT_EQ(error_of([&] { throw_if_any_fault(site); }), "");
  EXPECT_FALSE(site.profile.deployment.launch_enabled);
  EXPECT_FALSE(site.profile.deployment.branch);
  EXPECT_EQ(site.profile.distributed.master_addr, "192.0.2.1");
  EXPECT_EQ(site.profile.environment.at("NCCL_THREAD_THRESHOLDS"), "-2 -2 -2 1 1 1");
  ASSERT_TRUE(site.profile.tuning_origin);
  EXPECT_EQ((*site.profile.tuning_origin)["profile"], "tp4-rocenante");
  // Never twice, never elsewhere, never for other cables.
  const auto create = [&](const char* nodes, const char* output) {
    return error_of(
        [&] { create_from_recipe(repository, recipe, model::published_config(), nodes, output); });
  };
  EXPECT_NE(create(kRing, "experiments/tp4.json").find("exists already"), std::string::npos);
  EXPECT_NE(create(kRing, "config/tp4.json").find("is not below experiments/"), std::string::npos);
  EXPECT_NE(create(kRing, "experiments/../config/tp4.json").find("is not below experiments/"),
            std::string::npos);
  EXPECT_NE(create(kRing, "../tp4.json"), "");
  EXPECT_NE(create(kTriangle, "experiments/other.json").find("has 3 nodes; the recipe is for 4"),
            std::string::npos);
  EXPECT_FALSE(workshop.has("experiments/other.json"));
}

TEST(Topology, FourNodesGetTheRingPolicy) {
  const Workshop workshop;
  const Repository repository = workshop.repository();
  create_topology(repository, "config/cluster.json", kRing, "experiments/ring.json");
  const Site site =
      load_site(repository, {.profile = "experiments/ring.json", .site_file = "config/site.example.json"});
  EXPECT_EQ(error_of([&] { throw_if_any_fault(site); }), "");
  EXPECT_EQ(site.profile.transport_name, "nccl-ring");
  EXPECT_EQ(site.profile.environment.at("NCCL_ALGO"), "Ring");
  EXPECT_EQ(site.profile.environment.at("NCCL_MIN_NCHANNELS"), "1");
  EXPECT_EQ(site.profile.environment.count("SPARKNET_ROCE_GID_INDEX"), 0U);
  EXPECT_EQ(site.engine.tensor_parallel_size, 4);
  EXPECT_EQ(site.engine.nnodes, 4);
  EXPECT_EQ(site.engine.draft_tensor_parallel_size, 4);
  EXPECT_EQ(site.engine.kv_cache_memory_bytes, 3758096384);
  EXPECT_TRUE(ServerArguments(site.profile.serve_args).has("--disable-custom-all-reduce"));
  EXPECT_FALSE(site.profile.deployment.launch_enabled);
}

TEST(Topology, ThreeNodesKeepTheTransport) {
  const Workshop workshop;
  const Repository repository = workshop.repository();
  create_topology(repository, "config/cluster-64k.json", kTriangle, "experiments/three.json");
  const Site site =
      load_site(repository, {.profile = "experiments/three.json", .site_file = "config/site.example.json"});
  EXPECT_EQ(site.profile.transport_name, "oneshot-direct");
  workshop.write("config/two.json", R"({"schema_version": 1, "ssh_user": "s", "nodes": [
    {"name": "a", "rank": 0, "management_ip": "192.0.2.1", "head": true, "roce_peer_hcas": {"1": ["x"]}},
    {"name": "b", "rank": 1, "management_ip": "192.0.2.2", "head": false, "roce_peer_hcas": {"0": ["x"]}}]})");
  const std::string error = error_of([&] {
    create_topology(repository, "config/cluster-64k.json", "config/two.json", "experiments/two.json");
  });
  EXPECT_NE(error.find("on two nodes the weights leave no useful context"), std::string::npos) << error;
  EXPECT_FALSE(workshop.has("experiments/two.json"));
  EXPECT_NE(error_of([&] {
              create_topology(repository, "config/native-64k.json", kTriangle, "experiments/n.json");
            }).find("native engine"),
            std::string::npos);
}

TEST(Probe, IsOneBoundedCommand) {
  const Repository repository(SPARK_SOURCE_DIR);
  const Site site = load_site(
      repository,
      {.profile = "config/cluster-tp4.json", .nodes = kRing, .site_file = "config/site.example.json"});
  const std::string command = probe_command(site, *site.nodes.find("node3"), kProbePort);
  for (const char* part :
       {"docker run --rm --name spark-collective-probe --network=host --gpus=all --memory=12g",
        "--entrypoint /usr/bin/timeout", "NCCL_DEBUG=INFO", "NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET",
        "--kill-after=10s 600s python3 /probe.py --rank 2 --world-size 4", "--master-port 29999"}) {
    EXPECT_NE(command.find(part), std::string::npos) << part << "\n" << command;
  }
  EXPECT_EQ(command.find("/models"), std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(std::string(SPARK_SOURCE_DIR) + "/host/collective-probe.py"));
  for (const int64_t port : {int64_t{0}, int64_t{65536}, int64_t{9999}, int64_t{8000}}) {
    EXPECT_NE(error_of([&] { probe_command(site, site.nodes.nodes[0], port); }), "") << port;
  }
}

}  // namespace
}  // namespace spark::ops
