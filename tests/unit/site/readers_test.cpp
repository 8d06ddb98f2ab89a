// Node map, per-node environment, argument lists, series, catalogue, baseline.
#include <gtest/gtest.h>

#include "common/file.h"
#include "common/hash.h"
#include "ops/site/api_key.h"
#include "ops/site/baseline_manifest.h"
#include "ops/site/node_environment.h"
#include "ops/site/site.h"
#include "ops/site/text_forms.h"
#include "ops/site/tuning_catalogue.h"

namespace spark::ops {
namespace {

Site ring_site() {
  return load_site(Repository(SPARK_SOURCE_DIR), {.profile = "tests/data/site/reference/cluster-tp4.json",
                                                  .nodes = "tests/data/site/reference/nodes-ring4.json",
                                                  .site_file = ""});
}

std::string value(const std::map<std::string, NodeVariable>& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "(absent)" : found->second.value;
}

TEST(NodeMap, FaultsHaveTheirPath) {
  const Json document = Json::parse(R"({"schema_version": 1, "ssh_user": "spark", "nodes": [
      {"name": "node1", "rank": 0, "management_ip": "192.0.2.1", "head": true, "roce_peer_hcas": {"node2": ["a"]}},
      {"name": "node2", "rank": "1", "management_ip": "192.0.2.2", "hed": false, "roce_peer_hcas": {"0": [1]}}]})");
  Faults faults;
  read_node_map(document, faults);
  std::vector<std::string> lines;
  for (const Fault& fault : faults)
    lines.push_back(fault.where + ": " + fault.what + " (" + fault.hint + ")");
  EXPECT_EQ(lines,
            (std::vector<std::string>{
                "nodes[0].roce_peer_hcas.node2: is not a rank (that node's rank is \"1\": use it as the key)",
                "nodes[1].hed: is not a known key (did you mean \"head\"?)",
                "nodes[1].rank: must be an integer, not a string ()",
                "nodes[1].head: is missing ()",
                "nodes[1].roce_peer_hcas.0[0]: must be a string, not a number ()",
            }));
}

TEST(NodeMap, DeploymentOrderIsWorkersThenHead) {
  std::vector<std::string> names;
  const Site site = ring_site();
  for (const Node* node : site.nodes.deployment_order()) names.push_back(node->name);
  EXPECT_EQ(names, (std::vector<std::string>{"node2", "node3", "node4", "node1"}));
}

TEST(NodeEnvironment, RingOfFour) {
  const Site site = ring_site();
  const auto environment = node_environment(site.profile, site.nodes, *site.nodes.find("node3"));
  EXPECT_EQ(value(environment, "VLLM_HOST_IP"), "192.0.2.3");
  EXPECT_EQ(value(environment, "SPARKNET_ROCE_TOPOLOGY"), "ring4");
  EXPECT_EQ(value(environment, "SPARKNET_ROCE_PEER_HCAS"),
            R"({"1":["rocep1s0f1","roceP2p1s0f1"],"3":["rocep1s0f0","roceP2p1s0f0"]})");
  EXPECT_EQ(value(environment, "NCCL_IB_HCA"), "=roceP2p1s0f0,roceP2p1s0f1,rocep1s0f0,rocep1s0f1");
  EXPECT_EQ(value(environment, "NCCL_IB_GID_INDEX"), "3");
  EXPECT_EQ(environment.at("NCCL_IB_HCA").origin, "nodes[2].roce_peer_hcas");
  // The order of the map is kept.
  EXPECT_EQ(
      value(node_environment(site.profile, site.nodes, *site.nodes.find("node1")), "SPARKNET_ROCE_PEER_HCAS"),
      R"({"3":["rocep1s0f1","roceP2p1s0f1"],"1":["rocep1s0f0","roceP2p1s0f0"]})");
}

TEST(NodeEnvironment, ANodesOwnSlotAndInterfaceWin) {
  Site site = ring_site();
  site.nodes.nodes[1].roce_gid_index = 5;
  site.nodes.nodes[1].management_interface = "eth1";
  const auto environment = node_environment(site.profile, site.nodes, site.nodes.nodes[1]);
  EXPECT_EQ(value(environment, "NCCL_IB_GID_INDEX"), "5");
  EXPECT_EQ(value(environment, "SPARKNET_ROCE_GID_INDEX"), "5");
  EXPECT_EQ(value(environment, "GLOO_SOCKET_IFNAME"), "eth1");
  EXPECT_EQ(configured_gid_index(site.profile, site.nodes.nodes[1]), 5);
  site.nodes.nodes[0].roce_gid_index.reset();
  EXPECT_EQ(configured_gid_index(site.profile, site.nodes.nodes[0]), 3);
  site.profile.environment["SPARKNET_ROCE_GID_INDEX"] = "4";
  EXPECT_EQ(configured_gid_index(site.profile, site.nodes.nodes[0]), 4);
}

TEST(NodeEnvironment, NativeRanksTakeThePortsOfTheirCables) {
  Site site = ring_site();
  site.profile.engine_kind = EngineKind::kNative;
  site.nodes.nodes[2].roce_gid_index.reset();
  auto environment = node_environment(site.profile, site.nodes, *site.nodes.find("node3"));
  EXPECT_EQ(value(environment, "UCX_NET_DEVICES"),
            "roceP2p1s0f0:1,roceP2p1s0f1:1,rocep1s0f0:1,rocep1s0f1:1,enP7s7");
  EXPECT_EQ(environment.at("UCX_NET_DEVICES").origin, "nodes[2].roce_peer_hcas");
  EXPECT_EQ(value(environment, "UCX_IB_ROCE_LOCAL_SUBNET"), "y");
  EXPECT_EQ(value(environment, "UCX_IB_GID_INDEX"), "(absent)");
  EXPECT_EQ(value(environment, "VLLM_HOST_IP"), "(absent)");
  site.nodes.nodes[2].roce_gid_index = 5;
  site.nodes.nodes[2].management_interface = "eth1";
  environment = node_environment(site.profile, site.nodes, *site.nodes.find("node3"));
  EXPECT_EQ(value(environment, "UCX_IB_GID_INDEX"), "5");
  EXPECT_TRUE(value(environment, "UCX_NET_DEVICES").ends_with(",eth1"));

  // Without RDMA: one interface that reaches all.
  site.profile.host.hardware = "generic";
  environment = node_environment(site.profile, site.nodes, *site.nodes.find("node3"));
  EXPECT_EQ(value(environment, "UCX_NET_DEVICES"), "eth1");
  EXPECT_EQ(value(environment, "UCX_IB_ROCE_LOCAL_SUBNET"), "(absent)");
  EXPECT_EQ(value(environment, "UCX_IB_GID_INDEX"), "(absent)");

  site.profile.environment["UCX_NET_DEVICES"] = "all";  // the profile knows better
  EXPECT_EQ(value(node_environment(site.profile, site.nodes, *site.nodes.find("node3")), "UCX_NET_DEVICES"),
            "all");
}

TEST(NodeEnvironment, OtherTransports) {
  Site site = ring_site();
  site.nodes.nodes[0].roce_gid_index.reset();
  site.profile.transport = find_transport("nccl-ring");
  site.profile.environment["B12X_ROCE_PEER_HCAS"] = "{}";
  auto environment = node_environment(site.profile, site.nodes, site.nodes.nodes[0]);
  EXPECT_EQ(value(environment, "B12X_ROCE_PEER_HCAS"), "(absent)");
  EXPECT_EQ(value(environment, "NCCL_IB_HCA"), "=roceP2p1s0f0,roceP2p1s0f1,rocep1s0f0,rocep1s0f1");

  site.profile.transport = find_transport("rocenante-direct");
  environment = node_environment(site.profile, site.nodes, site.nodes.nodes[0]);
  EXPECT_EQ(value(environment, "B12X_ROCE_PEER_HCAS"),
            R"({"3":["rocep1s0f1","roceP2p1s0f1"],"1":["rocep1s0f0","roceP2p1s0f0"]})");
  EXPECT_EQ(value(environment, "NCCL_IB_HCA"), "rocep1s0f0,roceP2p1s0f0,rocep1s0f1,roceP2p1s0f1");
  EXPECT_EQ(value(environment, "B12X_ROCE_TOPOLOGY"), "(absent)");
}

TEST(NodeEnvironment, TheForwardedMeshReachesTheOppositeRank) {
  Site site = ring_site();
  site.profile.transport = find_transport("rocenante-mesh4");
  const auto peers = [&](size_t index) {
    return Json::parse(peer_devices_json(site.profile, site.nodes, site.nodes.nodes[index]));
  };
  // Rank 0 is the lower of 0 and 2: stripe 0 by its next (rank 1), stripe 1 by its previous (rank 3)
  // neighbour.
  EXPECT_EQ(peers(0)["2"], Json::parse(R"(["rocep1s0f0", "roceP2p1s0f1"])"));
  EXPECT_EQ(peers(2)["0"], Json::parse(R"(["rocep1s0f1", "roceP2p1s0f0"])"));
  site.profile.mesh_paths = 4;
  EXPECT_EQ(peers(0)["2"], Json::parse(R"(["rocep1s0f0", "roceP2p1s0f1", "rocep1s0f1", "roceP2p1s0f0"])"));
}

TEST(Arguments, ReadsEveryForm) {
  const ServerArguments arguments({"/models", "--port", "8000", "--enable-prefix-caching", "--host=::1",
                                   "--unknown-switch", "--port", "8001"});
  EXPECT_EQ(arguments.all().front().value, "/models");
  EXPECT_EQ(arguments.value("--port"), "8001");
  EXPECT_EQ(arguments.value("--host"), "::1");
  EXPECT_TRUE(arguments.has("--enable-prefix-caching"));
  EXPECT_EQ(arguments.value("--enable-prefix-caching"), std::nullopt);
  EXPECT_TRUE(arguments.has("--unknown-switch"));
  EXPECT_FALSE(arguments.has("--absent"));
  EXPECT_EQ(arguments.all().back().index, 6u);
}

TEST(ApiKey, TheFilesOfTheHead) {
  ClusterProfile profile;
  profile.serve_args = {"/model", "--api-key-file", "/keys/one"};
  EXPECT_EQ(api_key_file(profile), "") << "no mount shows it";
  profile.container.mounts.push_back({"/etc/spark", "/keys", "ro"});
  EXPECT_EQ(api_key_file(profile), "/etc/spark/one");
  profile.engine_kind = EngineKind::kNative;
  EXPECT_EQ(api_key_file(profile), "/keys/one");
}

TEST(Engine, CaptureLadder) {
  EXPECT_EQ(capture_ladder(48), (std::vector<int64_t>{1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28, 32, 40, 48}));
  EXPECT_EQ(capture_ladder(0), (std::vector<int64_t>{}));
  EXPECT_EQ(capture_ladder(1), (std::vector<int64_t>{1}));
  EXPECT_EQ(capture_ladder(5), (std::vector<int64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(capture_ladder(42).back(), 42);
}

TEST(Series, NamesAndFingerprint) {
  const auto entries = parse_series("# first\n\n  0001-a.patch  \r\nTODO-later.patch\n0002-b.patch");
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].name, "0001-a.patch");
  EXPECT_TRUE(entries[1].placeholder);

  Repository repository(SPARK_SOURCE_DIR);
  const std::string series = "# order matters\n0001-a.patch\nTODO-later.patch\n";
  repository.overlay("patches/x/series", series);
  repository.overlay("patches/x/0001-a.patch", "diff");
  LockedSource source;
  EXPECT_EQ(inspect_series(repository, source).fingerprint, sha256_hex(""));
  source.patch_series = "patches/x/series";
  source.applied_upstream_commits = {"abc"};
  const std::string material = std::string("abc") + '\0' + series + "0001-a.patch" + '\0' + "diff";
  EXPECT_EQ(inspect_series(repository, source).fingerprint, sha256_hex(material));

  repository.overlay("patches/x/series", "0001-a.patch\n./0001-a.patch\n0001-a.patch\n");
  const SeriesState twice = inspect_series(repository, source);
  EXPECT_EQ(twice.repeated, std::vector<std::string>(2, "patches/x/0001-a.patch"));
  EXPECT_EQ(twice.fingerprint, "");
}

TEST(TuningCatalogue, ReadsExactlyItsFields) {
  const std::string recipe =
      R"({"schema_version": 1, "profiles": {"tp4": {"base_config": "config/cluster-tp4.json",
      "base_sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "status": "candidate",
      "node_count": 4, "transport": "rocenante-ring4",
      "rocenante": {"VLLM_ROCE_ALLREDUCE_MAX_SIZE": "2MB", "VLLM_ROCE_ALLGATHER_MAX_SIZE": "2MB",
                    "B12X_ROCE_ALLREDUCE_DISPATCH_MAX_BYTES": "1048576", "B12X_ROCE_SPIN_LIMIT": "5000000"},
      "nccl": {"NCCL_MIN_NCHANNELS": "4", "NCCL_MAX_NCHANNELS": "4", "NCCL_BUFFSIZE": "4194304",
               "NCCL_LL128_BUFFSIZE": "262144", "NCCL_PROTO": "^LL128", "NCCL_SWITCHLESS_BIDIRECTIONAL": "2",
               "NCCL_MIN_TRAFFIC_PER_CHANNEL": null, "NCCL_THREAD_THRESHOLDS": "-2 -2 -2 1 1 1"}}}})";
  Faults faults;
  const TuningCatalogue catalogue = read_tuning_catalogue(Json::parse(recipe), faults);
  EXPECT_TRUE(faults.empty());
  ASSERT_NE(catalogue.find("tp4"), nullptr);
  EXPECT_EQ(catalogue.find("tp4")->nccl[6].value, std::nullopt);

  Json broken = Json::parse(recipe);
  Json& profile = broken["profiles"]["tp4"];
  profile["base_sha256"] = "abc";
  profile["transport"] = "rocenante-ring5";
  profile["nccl"].erase("NCCL_PROTO");
  profile["nccl"]["NCCL_BUFFSIZE"] = "";
  profile["rocenante"]["EXTRA"] = "1";
  read_tuning_catalogue(broken, faults);
  std::vector<std::string> wheres;
  for (const Fault& fault : faults) wheres.push_back(fault.where);
  EXPECT_EQ(wheres, (std::vector<std::string>{
                        "profiles.tp4.base_sha256", "profiles.tp4.transport", "profiles.tp4.rocenante.EXTRA",
                        "profiles.tp4.nccl.NCCL_BUFFSIZE", "profiles.tp4.nccl.NCCL_PROTO"}));
}

TEST(Baseline, ReadsCapacityAndKeepsProse) {
  Faults faults;
  const BaselineManifest manifest = read_baseline_manifest(
      Json::parse(R"({"schema_version": 1, "status": "promoted-baseline", "captured_at": "2026-10-05",
          "container_name": "c", "image_tag": "t", "image_id": "sha256:1",
          "nodes": {"node1": {"image_id": "sha256:1", "role": "api-head-rank-0"}},
          "capacity": {"kv_cache_bytes_per_rank": 3758096384, "kv_cache_tokens": 2845543, "graph_capture_gib": 0.61},
          "runtime_choices": {"backend": "because"}})"),
      faults);
  EXPECT_TRUE(faults.empty());
  EXPECT_EQ(manifest.capacity.kv_cache_tokens, 2845543);
  EXPECT_EQ(manifest.document["runtime_choices"]["backend"], "because");
}

TEST(TextForms, Quoting) {
  EXPECT_EQ(shell_quote("a-b/c:d=e,f.g@h%i+j_k"), "a-b/c:d=e,f.g@h%i+j_k");
  EXPECT_EQ(shell_quote(""), "''");
  EXPECT_EQ(shell_quote("it's"), "'it'\"'\"'s'");
  EXPECT_EQ(shell_quote("^LL128"), "'^LL128'");
  EXPECT_TRUE(is_ipv4("10.12.1.0"));
  EXPECT_FALSE(is_ipv4("10.012.1.0"));
  EXPECT_FALSE(is_ipv4(std::string("10.12.1.0\0x", 11)));
  EXPECT_TRUE(is_ip("fd00::1"));
  EXPECT_FALSE(is_host_name("-node"));
}

}  // namespace
}  // namespace spark::ops
