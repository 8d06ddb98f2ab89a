// The promoted profiles, written in layers with typed settings, must resolve to exactly the reference
// deployment's profiles (tests/data/site/reference), and those must load unchanged themselves.
#include <gtest/gtest.h>

#include "ops/site/site.h"

namespace spark::ops {
namespace {

struct Pair {
  const char* promoted;
  const char* reference;
  const char* nodes;
};

constexpr Pair kPairs[] = {
    {"config/cluster-4k.json", "tests/data/site/reference/cluster-4k.json", "config/nodes.example.json"},
    {"config/cluster-64k.json", "tests/data/site/reference/cluster-64k.json", "config/nodes.example.json"},
    {"config/cluster.json", "tests/data/site/reference/cluster-64k.json", "config/nodes.example.json"},
    {"config/cluster-tp4.json", "tests/data/site/reference/cluster-tp4.json",
     "config/examples/nodes-ring4.json"},
};

Site load(const std::string& profile, const std::string& nodes, const std::string& site_file) {
  return load_site(Repository(SPARK_SOURCE_DIR),
                   {.profile = profile, .nodes = nodes, .site_file = site_file});
}

std::string all_faults(const Site& site) {
  std::string text;
  for (const FileFault& entry : site.faults) {
    text += entry.file + ": " + entry.fault.where + ": " + entry.fault.what + "\n";
  }
  return text;
}

TEST(Profiles, PromotedResolveToTheReferenceExactly) {
  for (const Pair& pair : kPairs) {
    SCOPED_TRACE(pair.promoted);
    const Site ours = load(pair.promoted, pair.nodes, "config/site.example.json");
    const Site reference = load(pair.reference, pair.nodes, "");
    EXPECT_EQ(all_faults(ours), "");
    EXPECT_EQ(all_faults(reference), "");
    EXPECT_EQ(ours.profile.serve_args, reference.profile.serve_args);
    EXPECT_EQ(ours.profile.environment, reference.profile.environment);
    const auto place = [](const Mount& mount) {
      return mount.source + ":" + mount.destination + ":" + mount.mode;
    };
    ASSERT_EQ(ours.profile.container.mounts.size(), reference.profile.container.mounts.size());
    for (size_t i = 0; i < ours.profile.container.mounts.size(); ++i) {
      EXPECT_EQ(place(ours.profile.container.mounts[i]), place(reference.profile.container.mounts[i]));
    }
    // Everything else, as documents: without what only layers have, and with what the profile left to
    // defaults.
    Json document = ours.resolved;
    for (const char* key : {"engine", "description", "serve_args", "environment"}) document.erase(key);
    document["container"].erase("mounts");
    Json expected = reference.resolved;
    for (const char* key : {"serve_args", "environment"}) expected.erase(key);
    expected["container"].erase("mounts");
    EXPECT_EQ(nlohmann::json(document), nlohmann::json(expected))
        << nlohmann::json::diff(document, expected).dump(1);
  }
}

TEST(Profiles, ReadsTheEngineFacts) {
  const Site site =
      load("config/cluster-tp4.json", "config/examples/nodes-ring4.json", "config/site.example.json");
  EXPECT_EQ(site.engine.port, 8000);
  EXPECT_EQ(site.engine.tensor_parallel_size, 4);
  EXPECT_EQ(site.engine.max_model_len, 1048576);
  EXPECT_EQ(site.engine.kv_cache_memory_bytes, 11274289152);
  EXPECT_EQ(site.engine.max_cudagraph_capture_size, 96);
  EXPECT_EQ(site.engine.draft_tokens, 5);
  EXPECT_EQ(site.engine.draft_tensor_parallel_size, 4);
  EXPECT_EQ(site.engine.model_path, "/models");
}

}  // namespace
}  // namespace spark::ops
