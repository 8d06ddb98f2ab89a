#include "ops/site/layers.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "common/file.h"
#include "ops/site/inspect.h"
#include "unit/temporary_folder.h"

namespace spark::ops {
namespace {

Repository tree() {
  return Repository(SPARK_SOURCE_DIR);
}

TEST(Layers, LaterLayersWinKeyByKey) {
  Repository repository = tree();
  repository.overlay(
      "a.json", R"({"schema_version": 1, "host": {"home": "/a", "memguard_gib": 3}, "serve_args": ["x"]})");
  repository.overlay("b.json", R"({"extends": "a.json", "host": {"home": "/b"}, "serve_args": ["y", "z"]})");
  FileFaults faults;
  const LayeredDocument layers = load_layers(repository, "b.json", "", faults);
  EXPECT_TRUE(faults.empty());
  EXPECT_EQ(layers.document["host"], Json::parse(R"({"home": "/b", "memguard_gib": 3})"));
  EXPECT_EQ(layers.document["serve_args"], Json::parse(R"(["y", "z"])"));
  EXPECT_FALSE(layers.document.contains("extends"));
  EXPECT_EQ(layers.origin_of("host.home").file, "b.json");
  EXPECT_EQ(layers.origin_of("host.memguard_gib").file, "a.json");
  EXPECT_EQ(layers.origin_of("serve_args[1]").file, "b.json");
  EXPECT_EQ(layers.files, (std::vector<std::string>{"b.json", "a.json"}));
}

TEST(Layers, NullRemoves) {
  Repository repository = tree();
  repository.overlay("a.json", R"({"environment": {"A": "1", "B": "2"}, "fabric": {"transport": "x"}})");
  repository.overlay("b.json", R"({"extends": "a.json", "environment": {"A": null}, "fabric": null})");
  FileFaults faults;
  const LayeredDocument layers = load_layers(repository, "b.json", "", faults);
  EXPECT_EQ(layers.document, Json::parse(R"({"environment": {"B": "2"}})"));
  EXPECT_EQ(layers.origins.count("environment.A"), 0u);
  EXPECT_EQ(layers.origins.count("fabric.transport"), 0u);
}

TEST(Layers, SeveralBasesApplyInOrderAndEachOnce) {
  Repository repository = tree();
  repository.overlay("root.json", R"({"host": {"home": "/root", "memguard_gib": 1}})");
  repository.overlay("left.json", R"({"extends": "root.json", "host": {"home": "/left"}})");
  repository.overlay("right.json", R"({"extends": "root.json", "host": {"memguard_gib": 2}})");
  repository.overlay("b.json", R"({"extends": ["left.json", "right.json"]})");
  FileFaults faults;
  const LayeredDocument layers = load_layers(repository, "b.json", "", faults);
  EXPECT_TRUE(faults.empty());
  // The root does not apply again behind `left`.
  EXPECT_EQ(layers.document["host"], Json::parse(R"({"home": "/left", "memguard_gib": 2})"));
}

TEST(Layers, ASiteFileServesAProfileInTheReferenceFormat) {
  Repository repository = tree();
  repository.overlay("site.json",
                     R"({"schema_version": 1, "host": {"home": "/srv/op"}, "engine": {"host": "127.0.0.1",
      "port": 8100, "management_interface": "eth7", "rdma_devices": ["mlx5_0", "mlx5_1"]},
      "deployment": {"ready_url": "http://127.0.0.1:8100/v1/models"}})");
  const Site site = load_site(repository, {.profile = "tests/data/site/reference/cluster-4k.json",
                                           .nodes = "config/nodes.example.json",
                                           .site_file = "site.json"});
  EXPECT_TRUE(site.faults.empty());
  EXPECT_EQ(site.engine.host, "127.0.0.1");
  EXPECT_EQ(site.engine.port, 8100);
  EXPECT_EQ(site.profile.environment.at("GLOO_SOCKET_IFNAME"), "eth7");
  EXPECT_EQ(site.profile.environment.at("TP_SOCKET_IFNAME"), "eth7");
  EXPECT_EQ(site.profile.environment.at("NCCL_IB_HCA"), "mlx5_0,mlx5_1");
  EXPECT_EQ(site.profile.container.mounts[1].source.rfind("/srv/op/.cache/", 0), 0u);
  EXPECT_EQ(site.origin_of("serve_args.--port").file, "site.json");
  EXPECT_EQ(site.origin_of("serve_args.--dtype").file, "tests/data/site/reference/cluster-4k.json");
  EXPECT_EQ(site.origin_of("environment.NCCL_IB_HCA").file, "site.json");
  EXPECT_EQ(site.profile.serve_args.size(),
            load_site(tree(), {.profile = "tests/data/site/reference/cluster-4k.json",
                               .nodes = "config/nodes.example.json",
                               .site_file = ""})
                .profile.serve_args.size());
}

TEST(Layers, WhatCannotReachAReferenceProfileIsSaid) {
  Repository repository = tree();
  repository.overlay("site.json",
                     R"({"schema_version": 1, "engine": {"secret_environment_file": "/etc/spark/api.env"}})");
  const Site site = load_site(repository, {.profile = "tests/data/site/reference/cluster-4k.json",
                                           .nodes = "config/nodes.example.json",
                                           .site_file = "site.json"});
  ASSERT_EQ(site.faults.size(), 1u);
  EXPECT_EQ(site.faults[0].file, "site.json");
  EXPECT_EQ(site.faults[0].fault.where, "engine.secret_environment_file");
}

TEST(Layers, TheHeadsAddressFollowsFromTheNodeMap) {
  const Site site = load_site(tree(), {.profile = "config/cluster-4k.json",
                                       .nodes = "config/nodes.example.json",
                                       .site_file = "config/site.example.json"});
  EXPECT_EQ(site.profile.distributed.master_addr, "192.0.2.1");
  EXPECT_EQ(site.origin_of("distributed.master_addr").file, "config/nodes.example.json");
}

TEST(Layers, KnowsTheSettingBehindAVariable) {
  const Site site = load_site(tree(), {.profile = "config/cluster-tp4.json",
                                       .nodes = "config/examples/nodes-ring4.json",
                                       .site_file = "config/site.example.json"});
  EXPECT_EQ(site.origin_of("environment.NCCL_ALGO").file, "config/cluster-tp4.json");
  EXPECT_EQ(site.origin_of("environment.NCCL_ALGO").note, "engine.nccl.algorithm");
  EXPECT_EQ(site.origin_of("serve_args.--nnodes").note, "engine.nodes");
  EXPECT_EQ(site.origin_of("serve_args.--speculative-config.draft_tensor_parallel_size").note,
            "engine.speculative");
  EXPECT_EQ(site.origin_of("environment.XDG_CACHE_HOME").note, "engine.cache.root");
}

TEST(Repository, StaysInside) {
  const Repository repository = tree();
  EXPECT_EQ(repository.confine("config/../config/cluster.json"), "config/cluster.json");
  for (const char* path : {"", "/etc/passwd", "..", "../x", "config/../../x"}) {
    EXPECT_THROW(repository.confine(path), Error) << path;
    EXPECT_FALSE(repository.exists(path)) << path;
  }
  EXPECT_THROW(Repository("/no/such/folder"), Error);
  EXPECT_THROW(repository.read("config"), Error);

  const test::TemporaryFolder temporary;
  const std::string folder = temporary.path();
  std::filesystem::create_symlink("/etc/passwd", folder + "/link");
  std::filesystem::create_directory_symlink("/etc", folder + "/etc");
  write_file_atomic(folder + "/inside", "text");
  std::filesystem::create_symlink("inside", folder + "/good");
  const Repository linked(folder);
  EXPECT_THROW(linked.read("link"), Error);
  EXPECT_THROW(linked.read("etc/passwd"), Error);
  EXPECT_EQ(linked.read("good"), "text");
}

TEST(Inspect, DifferencesCarryTheirMeaning) {
  const SiteRequest request = {"config/cluster-4k.json", "config/nodes.example.json",
                               "config/site.example.json"};
  SiteRequest other = request;
  other.profile = "config/cluster-64k.json";
  const auto differences = difference(load_site(tree(), request), load_site(tree(), other));
  std::vector<std::string> paths;
  for (const ValueDifference& item : differences) {
    paths.push_back(item.path);
    EXPECT_FALSE(item.meaning.empty()) << item.path;
  }
  EXPECT_EQ(paths, (std::vector<std::string>{
                       "host.kernel.release", "host.kernel.page_size", "host.kernel.memory_saver_required",
                       "serve_args.--max-model-len", "serve_args.--kv-cache-memory-bytes"}));
  EXPECT_TRUE(difference(load_site(tree(), request), load_site(tree(), request)).empty());
}

TEST(Inspect, EveryValueOfAPromotedProfileHasAMeaningAndAnOrigin) {
  for (const char* profile : {"config/cluster-tp4.json", "config/native-tp4.json"}) {
    const Site site = load_site(tree(), {.profile = profile,
                                         .nodes = "config/examples/nodes-ring4.json",
                                         .site_file = "config/site.example.json"});
    for (const ResolvedValue& value : resolved_values(site, &site.nodes.nodes[2])) {
      EXPECT_FALSE(value.meaning.empty()) << value.path;
      EXPECT_FALSE(value.file.empty()) << value.path;
    }
  }
}

TEST(Inspect, TokensInAddressesAreNotShown) {
  Repository repository = tree();
  repository.overlay(
      "site.json",
      R"({"schema_version": 1, "description": "What belongs to this site only: cp config/site.example.json config/site.json and edit", "host": {"home": "/home/spark"}, "deployment": {"repository": "https://SESAME@git.example.org/a.git?token=SESAME"}})");
  const Site site = load_site(repository, {.profile = "config/cluster-tp4.json",
                                           .nodes = "config/examples/nodes-ring4.json",
                                           .site_file = "site.json"});
  const std::string text = values_text(resolved_values(site, nullptr), true);
  EXPECT_NE(text.find("deployment.repository = https://...@git.example.org/a.git?..."), std::string::npos)
      << text;
  EXPECT_EQ(text.find("SESAME"), std::string::npos) << text;
}

TEST(Inspect, SettingsDocumentIsCurrent) {
  EXPECT_EQ(read_file(std::string(SPARK_SOURCE_DIR) + "/docs/settings.md"), settings_markdown())
      << "run: spark config settings --markdown > docs/settings.md";
}

}  // namespace
}  // namespace spark::ops
