// What `spark bench` records of a profile is what cluster.reference asks of a report.
#include <gtest/gtest.h>

#include <algorithm>

#include "bench/report/report.h"
#include "ops/doctor/doctor.h"
#include "ops/site/deployment_identity.h"

namespace spark::ops {
namespace {

constexpr const char* kReport = "manifests/benchmarks/mine.json";

Findings about_reference(const SiteRequest& request, const std::string& extended, const Json& report) {
  Repository repository(SPARK_SOURCE_DIR);
  const Json profile = {{"schema_version", 1}, {"extends", extended}, {"benchmark_reference", kReport}};
  repository.overlay("config/mine.json", profile.dump());
  repository.overlay(kReport, report.dump());
  SiteRequest mine = request;
  mine.profile = "config/mine.json";
  Findings findings = diagnose(load_site(repository, mine), nullptr);
  std::erase_if(findings, [](const Finding& finding) { return finding.rule != "cluster.reference"; });
  return findings;
}

TEST(Reference, AReportOfARunForAProfileIsOneOfItsShape) {
  const std::pair<const char*, const char*> cases[] = {
      {"config/cluster-4k.json", "config/nodes.example.json"},
      {"config/cluster-tp4.json", "config/examples/nodes-ring4.json"},
      {"config/native-64k.json", "config/nodes.example.json"},
      {"config/native-tp4.json", "config/examples/nodes-ring4.json"}};
  for (const auto& [profile, nodes] : cases) {
    SCOPED_TRACE(profile);
    const SiteRequest request = {.profile = profile, .nodes = nodes, .site_file = "config/site.example.json"};
    bench::Report run;
    run.model = "m";
    const Findings without = about_reference(request, profile, bench::report_json(run));
    ASSERT_EQ(without.size(), 1u);
    EXPECT_EQ(without[0].severity, Severity::kWarning);
    // The advice is to run this, and then the rule is content.
    EXPECT_NE(without[0].fix.find("--cluster-config config/mine.json bench"), std::string::npos)
        << without[0].fix;
    run.deployment = deployment_identity(load_site(Repository(SPARK_SOURCE_DIR), request));
    const Json report = bench::report_json(run);
    EXPECT_TRUE(about_reference(request, profile, report).empty()) << report["identity"].dump(2);
    EXPECT_EQ(report["identity"]["model"], "m");
    for (const char* member : {"profile_sha256", "engine", "tensor_parallel_size"})
      EXPECT_TRUE(report["identity"].contains(member)) << member;
  }
}

TEST(Reference, AReportOfAnotherShapeIsAnError) {
  const Repository repository(SPARK_SOURCE_DIR);
  bench::Report run;
  run.deployment = deployment_identity(load_site(repository, {.profile = "config/native-4k.json",
                                                              .nodes = "config/nodes.example.json",
                                                              .site_file = "config/site.example.json"}));
  const Findings findings = about_reference(
      {.profile = {}, .nodes = "config/examples/nodes-ring4.json", .site_file = "config/site.example.json"},
      "config/native-tp4.json", bench::report_json(run));
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].severity, Severity::kError);
}

TEST(Reference, TheHashIsOfWhatTheProfileResolvesTo) {
  Repository repository(SPARK_SOURCE_DIR);
  const SiteRequest request = {.profile = "config/mine.json",
                               .nodes = "config/nodes.example.json",
                               .site_file = "config/site.example.json"};
  const auto hash = [&](const std::string& profile) {
    repository.overlay("config/mine.json", profile);
    return deployment_identity(load_site(repository, request))["profile_sha256"].get<std::string>();
  };
  const std::string base = hash(R"({"schema_version": 1, "extends": "config/native-4k.json"})");
  EXPECT_EQ(base.size(), 64u);
  EXPECT_EQ(hash(R"({"extends": "config/native-4k.json", "schema_version": 1})"), base);
  EXPECT_NE(hash(R"({"schema_version": 1, "extends": "config/native-4k.json", "host": {"memguard_gib": 6}})"),
            base);
}

}  // namespace
}  // namespace spark::ops
