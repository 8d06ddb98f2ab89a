// What scripts rely on: phrases, order, JSON, the generated document; and what is sound must be called sound.
#include "ops/doctor/doctor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "common/file.h"
#include "ops/doctor/rule.h"

namespace spark::ops {
namespace {

TEST(Doctor, PromotedProfilesHaveNoError) {
  const std::pair<const char*, const char*> cases[] = {
      {"config/cluster.json", "config/nodes.example.json"},
      {"config/cluster-4k.json", "config/nodes.example.json"},
      {"config/cluster-64k.json", "config/nodes.example.json"},
      {"config/cluster-tp4.json", "config/examples/nodes-ring4.json"},
      {"config/native-4k.json", "config/nodes.example.json"},
      {"config/native-64k.json", "config/nodes.example.json"},
      {"config/native-tp4.json", "config/examples/nodes-ring4.json"}};
  for (const auto& [profile, nodes] : cases) {
    const Site site =
        load_site(Repository(SPARK_SOURCE_DIR),
                  {.profile = profile, .nodes = nodes, .site_file = "config/site.example.json"});
    const Findings findings = diagnose(site, nullptr);
    EXPECT_FALSE(has_error(findings)) << findings_text(findings);
    EXPECT_NE(findings_text(findings).find("configuration OK"), std::string::npos);
  }
}

TEST(Doctor, ASiteWithAKeyHasNoWarningEither) {
  Repository repository(SPARK_SOURCE_DIR);
  Json site_file = Json::parse(repository.read("config/site.example.json"));
  site_file["engine"]["secret_environment_file"] = "/etc/spark/api.env";
  site_file["deployment"]["repository"] = "ssh://git@host.test/spark.git";
  repository.overlay("config/site-with-key.json", site_file.dump());
  const Site site = load_site(repository, {.profile = "config/cluster.json",
                                           .nodes = "config/nodes.example.json",
                                           .site_file = "config/site-with-key.json"});
  EXPECT_EQ(findings_text(diagnose(site, nullptr)), "configuration OK\n");
}

TEST(Doctor, AnExampleLeftInTheSiteFileIsAWarning) {
  const Findings findings =
      diagnose(load_site(Repository(SPARK_SOURCE_DIR), {.profile = "config/cluster.json",
                                                        .nodes = "config/nodes.example.json",
                                                        .site_file = "config/site.example.json"}),
               nullptr);
  EXPECT_FALSE(has_error(findings));
  EXPECT_TRUE(std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.rule == "cluster.deployment" && finding.where == "deployment.repository";
  })) << findings_text(findings);
}

TEST(Doctor, PhrasesThatScriptsReadOn) {
  const Finding warning = {"a.b", Severity::kWarning, "f.json", "x.y", "is 1", "2", "set it\nto 2"};
  Finding error = warning;
  error.severity = Severity::kError;
  EXPECT_EQ(findings_text({}), "configuration OK\n");
  EXPECT_EQ(findings_text({}, "; live cluster matches"), "configuration OK; live cluster matches\n");
  const std::string line = "f.json: x.y: is 1; expected: 2; to fix: set it to 2 [a.b]\n";
  EXPECT_EQ(findings_text({warning}), "WARN: " + line + "configuration OK with 1 warning\n");
  EXPECT_EQ(findings_text({warning, warning}, "; live cluster matches"),
            "WARN: " + line + "WARN: " + line + "configuration OK; live cluster matches with 2 warnings\n");
  EXPECT_EQ(findings_text({warning, error}), "WARN: " + line + "ERROR: " + line + "1 error, 1 warning\n");
  EXPECT_EQ(findings_text({error, error}), "ERROR: " + line + "ERROR: " + line + "2 errors\n");
}

TEST(Doctor, WhatNodesHaveInCommonIsSaidOnce) {
  Finding live = {"a.b", Severity::kWarning, {}, "node1", "is 1", "2", "set it to 2", {"detail"}};
  Findings findings = {live};
  live.where = "node3";
  live.details = {"another"};
  findings.push_back(live);
  live.where = "node2";
  live.details = {"detail"};
  findings.push_back(live);
  const std::string rest = ": is 1; expected: 2; to fix: set it to 2 [a.b]\n    ";
  EXPECT_EQ(findings_text(findings), "WARN: node1, node2" + rest + "detail\nWARN: node3" + rest +
                                         "another\nconfiguration OK with 2 warnings\n");
  EXPECT_EQ(findings_json(findings)["warnings"], 3);  // scripts read them node by node
}

TEST(Doctor, AProfileForAnotherNumberOfNodesIsTheFirstError) {
  const Site site = load_site(Repository(SPARK_SOURCE_DIR), {.profile = "config/cluster.json",
                                                             .nodes = "config/examples/nodes-ring4.json",
                                                             .site_file = "config/site.example.json"});
  Findings errors = diagnose(site, nullptr);
  std::erase_if(errors, [](const Finding& finding) { return finding.severity != Severity::kError; });
  ASSERT_FALSE(errors.empty());
  EXPECT_EQ(errors[0].rule, "engine.world-size");
  EXPECT_NE(errors[0].evidence.find("is for 3 nodes"), std::string::npos) << errors[0].evidence;
  EXPECT_NE(errors[0].fix.find("--cluster-config config/cluster-tp4.json"), std::string::npos);
  EXPECT_LE(errors.size(), 2u) << findings_text(errors);  // beside it only the transport's own shape
}

TEST(Doctor, JsonHasTheSameFindings) {
  const Json document = findings_json({{"a.b", Severity::kError, "f", "w", "e", "x", "fix"}});
  EXPECT_EQ(document["ok"], false);
  EXPECT_EQ(document["errors"], 1);
  EXPECT_EQ(document["warnings"], 0);
  EXPECT_EQ(document["findings"][0]["rule"], "a.b");
  EXPECT_EQ(document["findings"][0]["severity"], "error");
}

TEST(Doctor, WarningsStandFirst) {
  Repository repository(SPARK_SOURCE_DIR);
  repository.hide("docs/watch-list.md");
  Json nodes = Json::parse(repository.read("config/nodes.example.json"));
  nodes["nodes"][1]["rank"] = 2;
  repository.overlay("n.json", nodes.dump());
  const Findings findings = diagnose(load_site(repository, {.profile = "config/cluster.json",
                                                            .nodes = "n.json",
                                                            .site_file = "config/site.example.json"}),
                                     nullptr);
  ASSERT_GE(findings.size(), 2u);
  EXPECT_EQ(findings.front().severity, Severity::kWarning);
  EXPECT_EQ(findings.back().severity, Severity::kError);
}

TEST(Doctor, MissingNodeMapSaysWhatToCopy) {
  Repository repository(SPARK_SOURCE_DIR);
  repository.hide("config/nodes.json");
  const Findings findings = diagnose(
      load_site(repository, {.profile = "config/cluster.json", .site_file = "config/site.example.json"}),
      nullptr);
  EXPECT_NE(findings_text(findings).find("cp config/nodes.example.json config/nodes.json"),
            std::string::npos);
}

TEST(Doctor, DocumentIsGenerated) {
  EXPECT_EQ(read_file(std::string(SPARK_SOURCE_DIR) + "/docs/doctor.md"), rules_markdown())
      << "run: spark doctor --rules --markdown > docs/doctor.md";
}

TEST(Doctor, RuleIdsAreUniqueAndComplete) {
  std::set<std::string> ids;
  for (const Rule& rule : rules()) {
    EXPECT_TRUE(ids.insert(rule.id).second) << rule.id;
    for (const char* text : {rule.title, rule.checks, rule.because, rule.fix})
      EXPECT_GT(std::string(text).size(), 3u);
  }
}

}  // namespace
}  // namespace spark::ops
