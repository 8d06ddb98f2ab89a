// The launch of every rank against files made from the reference deployment's published profiles and rules by
// an independent program, and what a shell makes of it.
#include "ops/launch/render.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "common/file.h"
#include "common/process.h"
#include "ops/site/settings.h"
#include "unit/temporary_folder.h"

namespace spark::ops {
namespace {

struct Case {
  const char* profile;
  const char* nodes;
};

constexpr Case kVllm[] = {
    {"cluster-4k", "config/nodes.example.json"},
    {"cluster-64k", "config/nodes.example.json"},
    {"cluster-tp4", "config/examples/nodes-ring4.json"},
};

constexpr Case kNative[] = {
    {"native-4k", "config/nodes.example.json"},
    {"native-64k", "config/nodes.example.json"},
    {"native-tp4", "config/examples/nodes-ring4.json"},
};

Site load(const std::string& profile, const std::string& nodes,
          const std::string& site = "config/site.example.json") {
  return load_site(Repository(SPARK_SOURCE_DIR), {.profile = profile, .nodes = nodes, .site_file = site});
}

std::string golden(const std::string& name) {
  return read_file(std::string(SPARK_TEST_DATA) + "/site/golden/" + name);
}

TEST(Render, PromotedProfilesEqualTheDerivedCommand) {
  int compared = 0;
  for (const Case& item : kVllm) {
    const std::string name = item.profile;
    const Site layered = load("config/" + name + ".json", item.nodes);
    const Site reference = load("tests/data/site/reference/" + name + ".json", item.nodes, "");
    for (const Node& node : layered.nodes.nodes) {
      SCOPED_TRACE(name + " " + node.name);
      const std::string expected = golden(name + "." + node.name + ".sh.golden");
      EXPECT_EQ(launch_shell(plan_launch(layered, node)) + "\n", expected);
      EXPECT_EQ(launch_shell(plan_launch(reference, *reference.nodes.find(node.name))) + "\n", expected);
      ++compared;
    }
  }
  EXPECT_EQ(compared, 10);
}

TEST(Render, ServerArgumentsAreTheCommandWithoutTheContainer) {
  const Site site = load("config/cluster-tp4.json", "config/examples/nodes-ring4.json");
  const RankLaunch launch = plan_launch(site, *site.nodes.find("node3"));
  ASSERT_GT(launch.command.size(), launch.server_arguments.size());
  EXPECT_TRUE(
      std::equal(launch.server_arguments.rbegin(), launch.server_arguments.rend(), launch.command.rbegin()));
  EXPECT_EQ(launch.server_arguments.back(), "--headless");
  EXPECT_EQ(launch.environment.at("NCCL_IB_HCA"), "=roceP2p1s0f0,roceP2p1s0f1,rocep1s0f0,rocep1s0f1");
  EXPECT_EQ(launch.environment.at("SPARKNET_ROCE_PEER_HCAS"),
            R"({"1":["rocep1s0f1","roceP2p1s0f1"],"3":["rocep1s0f0","roceP2p1s0f0"]})");
}

// A folder with programs that write their arguments, one per line, to a file.
class FakePath {
 public:
  void add(const std::string& program) const {
    const std::string path = folder_ + "/" + program;
    write_file_atomic(path, "#!/bin/sh\nprintf '%s\\n' \"$0\" \"$@\" > '" + folder_ + "/argv'\n", 0755);
  }
  std::string run(const std::string& line) const {
    const ProcessResult result = run_process({"sh", "-c", "PATH='" + folder_ + "':$PATH\n" + line});
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return read_file(folder_ + "/argv");
  }
  const std::string& folder() const { return folder_; }

 private:
  const test::TemporaryFolder temporary_;
  std::string folder_ = temporary_.path();
};

std::string lines(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += word + "\n";
  return text;
}

TEST(Render, PastingTheShellFormRunsExactlyTheCommand) {
  const FakePath fake;
  fake.add("docker");
  for (const Case& item : kVllm) {
    const Site site = load(std::string("config/") + item.profile + ".json", item.nodes);
    for (const Node& node : site.nodes.nodes) {
      const RankLaunch launch = plan_launch(site, node);
      const std::string line = launch_shell(launch);
      EXPECT_EQ(run_process({"sh", "-n", "-c", line}).exit_code, 0);
      std::vector<std::string> expected = launch.command;
      expected[0] = fake.folder() + "/docker";
      EXPECT_EQ(fake.run(line), lines(expected));
    }
  }
}

TEST(Render, HostileValuesStayOneWord) {
  Site site = load("config/cluster-4k.json", "config/nodes.example.json");
  site.profile.environment["HOSTILE"] = "a'b \"c\" $(touch /tmp/x) `id` \\ ; & | * ? ~ # ! {home}";
  site.profile.container.docker_run_args.push_back("--label=it's");
  site.profile.serve_args.push_back("");
  const FakePath fake;
  fake.add("docker");
  const RankLaunch launch = plan_launch(site, site.nodes.nodes[0]);
  std::vector<std::string> expected = launch.command;
  expected[0] = fake.folder() + "/docker";
  EXPECT_EQ(fake.run(launch_shell(launch)), lines(expected));
}

TEST(Render, NativeProfilesRunTheEngine) {
  for (const Case& item : kNative) {
    SCOPED_TRACE(item.profile);
    const Site site = load(std::string("config/") + item.profile + ".json", item.nodes);
    const std::string name = item.profile;
    for (const Node& node : site.nodes.nodes) {
      const std::string expected = golden(name + "." + node.name + ".sh.golden");
      EXPECT_EQ(launch_shell(plan_launch(site, node)) + "\n", expected);
    }
    const RankLaunch tiny = plan_launch(site, site.nodes.nodes[1], {.model_dir = "/tmp/tiny model"});
    EXPECT_EQ(tiny.command[1], "/tmp/tiny model");
    EXPECT_NE(launch_shell(tiny).find("spark-engine '/tmp/tiny model' --host"), std::string::npos);
  }
}

TEST(Render, EverySettingOfTheNativeEngine) {
  const std::string profile = "tests/data/site/native-every-setting.json";
  const Site site = load(profile, "config/examples/nodes-ring4.json");
  ASSERT_TRUE(site.faults.empty()) << site.faults.front().fault.where << site.faults.front().fault.what;
  EXPECT_EQ(launch_shell(plan_launch(site, site.nodes.nodes[1])) + "\n",
            golden("native-every-setting.node2.sh.golden"));
  // The profile leaves nothing out, so a new setting has to be added to both.
  const Json engine = site.resolved["engine"];
  for (const Setting& row : native_arguments()) {
    const std::string key = row.key[0] == '@' ? row.key + 1 : row.key;
    EXPECT_TRUE(engine.contains(key)) << key;
  }
  EXPECT_EQ(site.origin_of("serve_args.--no-io-uring").file, profile);
}

TEST(Render, SpeculationIsTurnedOffByAnEmptyObject) {
  Repository tree(SPARK_SOURCE_DIR);
  tree.overlay("config/off.json", R"({"schema_version": 1, "extends": "config/native-4k.json",
                                      "engine": {"speculative": {}, "prefix_caching": true}})");
  const Site site = load_site(tree, {.profile = "config/off.json",
                                     .nodes = "config/nodes.example.json",
                                     .site_file = "config/site.example.json"});
  ASSERT_TRUE(site.faults.empty());
  const auto& words = site.profile.serve_args;
  const auto at = std::find(words.begin(), words.end(), "--speculative-config");
  ASSERT_NE(at, words.end());
  EXPECT_EQ(at[1], "{}");
  EXPECT_EQ(std::count(words.begin(), words.end(), "--enable-prefix-caching"), 1);
}

TEST(Render, SecretsComeFromAFileOnTheNode) {
  const FakePath fake;
  fake.add("spark-engine");
  write_file_atomic(fake.folder() + "/api env", "KEY=from-file\n", 0600);
  Site site = load("config/native-4k.json", "config/nodes.example.json");
  site.profile.native.program = fake.folder() + "/spark-engine";
  site.profile.secret_environment_file = fake.folder() + "/api env";
  const RankLaunch launch = plan_launch(site, site.nodes.nodes[0]);
  EXPECT_EQ(fake.run(launch_shell(launch)), lines(launch.command));

  Site container = load("config/cluster-4k.json", "config/nodes.example.json");
  container.profile.secret_environment_file = "/etc/spark/api.env";
  const std::string line = launch_shell(plan_launch(container, container.nodes.nodes[0]));
  EXPECT_NE(line.find(" --env-file=/etc/spark/api.env --env "), std::string::npos);
}

TEST(Render, JsonAndUnitsAreStable) {
  for (const Case& item : {kVllm[2], kNative[2]}) {
    const Site site = load(std::string("config/") + item.profile + ".json", item.nodes);
    const Site again = load(std::string("config/") + item.profile + ".json", item.nodes);
    const Node& node = site.nodes.nodes[1];
    const std::string name = std::string(item.profile) + "." + node.name;
    EXPECT_EQ(launch_json(plan_launch(site, node)).dump(2),
              launch_json(plan_launch(again, again.nodes.nodes[1])).dump(2));
    EXPECT_EQ(launch_systemd(plan_launch(site, node)), golden(name + ".service.golden"));
    EXPECT_EQ(launch_json(plan_launch(site, node)).dump(2) + "\n", golden(name + ".json.golden"));
  }
}

TEST(Render, UnitFilesQuoteWhatSystemdExpands) {
  EXPECT_EQ(systemd_quote("plain"), "plain");
  EXPECT_EQ(systemd_quote("c 226:* rw"), "\"c 226:* rw\"");
  EXPECT_EQ(systemd_quote("50%"), "50%%");
  EXPECT_EQ(systemd_quote("$HOME"), "$$HOME");
  EXPECT_EQ(systemd_quote(R"({"a":1})"), R"("{\"a\":1}")");
  EXPECT_EQ(systemd_quote(""), "\"\"");
}

TEST(Render, RefusesABrokenSite) {
  const Site site = load("config/cluster-4k.json", "config/nodes-that-do-not-exist.json");
  const Node node;
  EXPECT_THROW(plan_launch(site, node), Error);
}

}  // namespace
}  // namespace spark::ops
