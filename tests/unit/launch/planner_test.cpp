// Plans as lists and as text; what is made of a look at a node; the small parsers.
#include "ops/launch/planner.h"

#include <gtest/gtest.h>

#include "common/process.h"
#include "ops/doctor/doctor.h"
#include "ops/doctor/live.h"
#include "ops/launch/evidence.h"
#include "ops/launch/head_api.h"
#include "ops/launch/node_look.h"
#include "ops/launch/node_scripts.h"
#include "ops/launch/preflight.h"
#include "ops/launch/remote_actions.h"
#include "ops/launch/status.h"
#include "ops/launch/sync.h"
#include "unit/temporary_folder.h"

namespace spark::ops {
namespace {

Site ring_site() {
  return load_site(Repository(SPARK_SOURCE_DIR), {.profile = "config/cluster-tp4.json",
                                                  .nodes = "config/examples/nodes-ring4.json",
                                                  .site_file = "config/site.example.json"});
}

ClusterSituation cluster_of(bool exists) {
  return {{{"node2", false, exists, exists, "old"},
           {"node3", false, exists, exists, "old"},
           {"node1", true, exists, exists, "old"}}};
}

std::string ids_of(const Waves& waves) {
  std::string text;
  for (const Wave& wave : waves) {
    text += text.empty() ? "" : " / ";
    for (size_t i = 0; i < wave.size(); ++i) text += (i == 0 ? "" : ", ") + wave[i].id();
  }
  return text;
}

TEST(Planner, GuardsBeforeContainersWorkersBeforeTheHead) {
  EXPECT_EQ(ids_of(plan_start(cluster_of(false), {})),
            "claim node1 / arm node2, arm node3, arm node1 / launch node2, launch node3 / launch node1 / "
            "ready node1 / steady node2, steady node3, steady node1 / release node1");
  EXPECT_EQ(ids_of(plan_start(cluster_of(true), {true, "b"})),
            "claim node1 / retire node2, retire node3, retire node1 / arm node2, arm node3, arm node1 / "
            "launch node2, launch node3 / launch node1 / ready node1 / "
            "steady node2, steady node3, steady node1 / discard node2, discard node3, discard node1 / "
            "release node1");
}

TEST(Planner, StopsTheHeadFirst) {
  EXPECT_EQ(ids_of(plan_stop(cluster_of(true), {})),
            "claim node1 / stop node1 / stop node3 / stop node2 / release node1");
  EXPECT_EQ(ids_of(plan_stop(cluster_of(true), {.remove = true, .parallel = true})),
            "claim node1 / stop node1, stop node3, stop node2 / release node1");
}

TEST(Planner, SyncFetchesEverywhereBeforeItMovesAnything) {
  EXPECT_EQ(ids_of(plan_sync(cluster_of(false), "new")),
            "claim node1 / fetch node2, fetch node3, fetch node1 / checkout node2 / checkout node3 / "
            "checkout node1 / release node1");
}

TEST(Planner, TextShowsWhatWillRun) {
  const Site site = ring_site();
  const std::vector<RankLaunch> launches = plan_launches(site);
  ASSERT_EQ(launches.size(), 4u);
  EXPECT_EQ(launches.back().node, "node1");
  const std::string text = start_plan_text(site, launches, false);
  size_t at = 0;
  for (const RankLaunch& launch : launches) {
    const size_t guard =
        text.find("  " + launch.node + ": pre-arm startup memguard (5 GiB, every 0.25 s)", at);
    ASSERT_NE(guard, std::string::npos) << launch.node;
    at = guard;
  }
  for (const RankLaunch& launch : launches) {
    at = text.find("  " + launch.node + ": " + launch_shell(launch) + "\n", at);
    ASSERT_NE(at, std::string::npos) << launch.node;
  }
  EXPECT_TRUE(text.ends_with("plan only; --apply is required\n"));
  EXPECT_EQ(text.find("keep it as"), std::string::npos);
  EXPECT_NE(start_plan_text(site, launches, true).find("keep it as"), std::string::npos);
  EXPECT_NE(stop_plan_text(launches, {.remove = true}).find("docker rm"), std::string::npos);
}

TEST(NodeScripts, AreValidForAShell) {
  const Site site = ring_site();
  NodeScriptContext context;
  context.claim = "{\"run\":\"it's\"}";
  context.node_maps = {{"config/nodes.json", "{\"a\": \"it's\"}\n"}};
  for (const RankLaunch& launch : plan_launches(site)) {
    for (int kind = 0; kind < kStepKinds; ++kind) {
      const std::string script = step_script(launch, {static_cast<StepKind>(kind), launch.node, {}}, context);
      const ProcessResult result = run_process({"sh", "-n"}, {.input = script});
      EXPECT_EQ(result.exit_code, 0) << step_name(static_cast<StepKind>(kind)) << ": " << result.error;
    }
    EXPECT_EQ(run_process({"sh", "-n"}, {.input = look_script(launch)}).exit_code, 0);
  }
}

TEST(NodeScripts, OriginsAreComparedByPlace) {
  EXPECT_EQ(normalised_origin("git@github.com:a/b.git"), "github.com/a/b");
  EXPECT_EQ(normalised_origin("https://user@github.com/a/b/"), "github.com/a/b");
  EXPECT_EQ(normalised_origin("ssh://git@github.com/a/b.git"), "github.com/a/b");
  EXPECT_EQ(normalised_origin("file:///srv/origin.git"), "/srv/origin");
  EXPECT_EQ(normalised_origin("/srv/origin.git"), "/srv/origin");
}

NodeLook watched(const std::string& node) {
  NodeLook look;
  look.node = node;
  look.seen = "running";
  look.guard_alive = true;
  look.guard = {{"state", "watching"}, {"phase", "startup"}, {"threshold_kib", "5242880"}};
  return look;
}

TEST(Status, SaysWhyTheApiWasNotAsked) {
  ClusterStatus status;
  status.service = "svc";
  status.head = "node1";
  NodeLook head;
  head.node = "node1";
  const auto text = [&] {
    status.nodes = {watched("node2"), head};
    return status_text(status);
  };
  head.seen = "absent";
  EXPECT_NE(text().find("API: not asked, nothing runs on node1\n"), std::string::npos) << text();
  head.seen.clear();
  EXPECT_NE(text().find("API: not asked, what runs on node1 is unknown\n"), std::string::npos) << text();
  head.reached = false;
  head.problem = "cannot be reached";
  EXPECT_NE(text().find("API: not asked, node1 does not answer\n"), std::string::npos) << text();
}

TEST(Status, WhatNodesHaveInCommonIsSaidOnce) {
  ClusterStatus status;
  for (const char* node : {"node2", "node3", "node1"}) {
    status.nodes.push_back(watched(node));
    status.nodes.back().guard_alive = node == std::string("node3");
  }
  EXPECT_NE(status_text(status).find("WARN: node2, node1: the service runs WITHOUT a guard; "),
            std::string::npos)
      << status_text(status);
  EXPECT_EQ(status.complaints().size(), 2u);  // scripts read them node by node
}

TEST(Status, AnEndedProcessHasALogToFetch) {
  ClusterStatus status;
  status.container = false;
  status.nodes = {watched("node2")};
  status.nodes[0].seen = "stopped";
  status.nodes[0].guard_alive = false;
  ASSERT_EQ(status.complaints().size(), 1u);
  EXPECT_EQ(status.complaints()[0],
            "node2: the service ended; spark cluster logs brings its log here and names the file");
}

TEST(Readiness, WaitsOnlyForWhatRunsGuarded) {
  EXPECT_TRUE(judge_readiness({watched("a"), watched("b")}).all_there);
  NodeLook away = watched("b");
  away.reached = false;
  away.problem = "cannot be reached";
  const ReadinessVerdict outage = judge_readiness({watched("a"), away});
  EXPECT_FALSE(outage.all_there);
  EXPECT_TRUE(outage.failure.empty());
  EXPECT_EQ(outage.unreachable.size(), 1u);
  NodeLook bare = watched("b");
  bare.guard_alive = false;
  // One look that misses a guard is no proof; three in a row are, and one is of a guard that says it ended.
  const NodeLook between = watched("c");
  for (int before = 0; before + 1 < kUnguardedLooks; ++before) {
    const ReadinessVerdict doubt = judge_readiness({watched("a"), bare, between}, before);
    EXPECT_EQ(doubt.failure, "");
    EXPECT_NE(doubt.unguarded.find("b: the service runs without a guard (gone"), std::string::npos);
    EXPECT_FALSE(doubt.all_there);
  }
  EXPECT_NE(
      judge_readiness({watched("a"), bare, between}, kUnguardedLooks - 1).failure.find("without a guard"),
      std::string::npos);
  NodeLook gave_up = bare;
  gave_up.guard["state"] = "gave-up";
  EXPECT_NE(judge_readiness({watched("a"), gave_up}).failure.find("without a guard"), std::string::npos);
  NodeLook ended = watched("b");
  ended.seen = "stopped";
  ended.exit_code = "137";
  ended.guard_alive = false;
  ended.guard = {{"state", "killed"},
                 {"reason", "low-memory"},
                 {"available_kib", "1048576"},
                 {"threshold_kib", "5242880"}};
  const std::string failure = judge_readiness({bare, ended}).failure;
  EXPECT_NE(failure.find("exit code 137"), std::string::npos);
  EXPECT_NE(failure.find("its memory guard killed it: low-memory, 1.00 GiB available, threshold 5.00 GiB"),
            std::string::npos)
      << failure;
}

TEST(Look, IsReadFromTheNodesWords) {
  RemoteResult result;
  result.outcome = RemoteOutcome::kExited;
  result.output =
      "available_kib=100\ncommit=abc\norigin=x\nfile.spark-hold.json={\"holder\": \"a\"}\nguard_alive=1\n"
      "guard.state=watching\nguard.phase=steady\nseen=running\nid=0123\ncode=0\noom=false\nchange.1= M "
      "file\nnoise\n";
  const NodeLook look = read_look("node1", result);
  EXPECT_TRUE(look.reached && look.answered && look.running() && look.guarded());
  EXPECT_EQ(look.available_kib, 100);
  EXPECT_EQ(look.changes, std::vector<std::string>{" M file"});
  EXPECT_EQ(hold_text({look}), "spark-hold.json on node1: {\"holder\": \"a\"}");
  result.exit_code = 1;
  result.output = "available_kib=100\nguard_alive=0\n";
  result.error = "docker does not answer: no such file\n";
  const NodeLook broken = read_look("node1", result);
  EXPECT_TRUE(broken.reached);
  EXPECT_FALSE(broken.answered);
  EXPECT_EQ(broken.problem, "docker does not answer: no such file");
  EXPECT_TRUE(broken.seen.empty());
  result = {};
  result.message = "Connection refused";
  EXPECT_FALSE(read_look("node1", result).reached);
}

TEST(HeadApi, ReadsAddresses) {
  const auto plain = read_address("http://192.0.2.1:8000/v1/models");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->host, "192.0.2.1");
  EXPECT_EQ(plain->port, 8000);
  EXPECT_EQ(plain->path, "/v1/models");
  EXPECT_EQ(read_address("https://head")->port, 443);
  EXPECT_EQ(read_address("https://head")->path, "/");
  EXPECT_EQ(read_address("http://[::1]:8000/x")->host, "[::1]");
  for (const char* bad :
       {"", "ftp://x", "http://", "http://:80/", "http://x:0/", "http://x:99999/", "http://x:a/"})
    EXPECT_FALSE(read_address(bad)) << bad;
}

TEST(HeadApi, ReadsResponsesAsTheyArrive) {
  const std::string whole = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n\r\nhello";
  for (size_t bytes = 0; bytes < whole.size(); ++bytes)
    EXPECT_FALSE(read_response(whole.substr(0, bytes), false));
  const auto answer = read_response(whole + "more", false);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body, "hello");
  const std::string endless = "HTTP/1.0 503 no\r\n\r\nwait";
  EXPECT_FALSE(read_response(endless, false));
  EXPECT_EQ(read_response(endless, true)->status, 503);
  EXPECT_EQ(read_response("SSH-2.0\r\n\r\n", true)->status, 0);
  EXPECT_EQ(read_response("HTTP/1.1 \r\n\r\n", true)->status, 0);
}

TEST(Preflight, ChangesOfWritableMountsAreDeclared) {
  Site site;
  site.profile.deployment.path = "/home/spark/deploy";
  site.profile.container.mounts = {{"/home/spark/deploy/cache", "/cache", "rw"},
                                   {"/home/spark/deploy/patches", "/patches", "ro"}};
  const std::vector<std::string> left =
      undeclared_changes(site, {"?? cache/x", " M patches/p", "?? cache2", " M cache"});
  EXPECT_EQ(left, (std::vector<std::string>{" M patches/p", "?? cache2"}));
}

TEST(Preflight, RefusesWhatOnlyAStartAsks) {
  const Site site = ring_site();
  const LocalState local = {"1111111111111111111111111111111111111111", {}};
  NodeLook look = watched("node2");
  look.commit = "2222222222222222222222222222222222222222";
  look.origin = "https://elsewhere.example/x";
  look.files["spark-hold.json"] = "{}";
  const auto rules = [&](bool replace, bool forced) {
    std::set<std::string> found;
    for (const Finding& finding : judge_preflight({site, local, {}, {look}, replace, forced}))
      found.insert(finding.rule);
    return found;
  };
  for (const char* rule : {"start.commit", "start.origin", "start.exists", "start.hold"})
    EXPECT_TRUE(rules(false, false).contains(rule)) << rule;
  EXPECT_FALSE(rules(true, true).contains("start.exists"));
  EXPECT_FALSE(rules(true, true).contains("start.hold"));
  look.unkeepable = "systemd names no file of it";
  EXPECT_TRUE(rules(true, true).contains("start.restore"));
  EXPECT_FALSE(rules(false, true).contains("start.restore"));
  // The command that start and sync name is the one that helps.
  look.commit.clear();
  for (const Findings& findings :
       {judge_preflight({site, local, {}, {look}, true, true}), judge_sync(site, {look})}) {
    std::string fixes;
    for (const Finding& finding : findings) fixes += finding.fix + "\n";
    EXPECT_NE(fixes.find(clone_command(site.profile.deployment)), std::string::npos) << fixes;
  }
  look.commit = local.revision;
  look.origin = site.profile.deployment.repository;
  look.seen = "absent";
  look.files.clear();
  for (const std::string& rule : rules(false, false)) EXPECT_FALSE(rule.starts_with("start.")) << rule;
}

TEST(Preflight, CountsTheWarningsThatTheDoctorShows) {
  const Site site = ring_site();
  const Findings files = diagnose(site, nullptr);
  ASSERT_FALSE(has_error(files)) << findings_text(files);
  Finding warning = {"memory.x", Severity::kWarning, {}, "node1", "is 1", "2", "set it to 2"};
  Findings live;
  for (const char* node : {"node1", "node2", "node3"}) {
    warning.where = node;
    live.push_back(warning);
  }
  warning.evidence = "is 3";
  live.push_back(warning);
  Findings all = files;
  all.insert(all.end(), live.begin(), live.end());
  const std::string doctor = findings_text(all), preflight = preflight_warnings(site, live);
  EXPECT_NE(doctor.find("WARN: node1, node2, node3: is 1; "), std::string::npos) << doctor;
  const std::string count = std::to_string(files.size() + 2) + " warnings";
  EXPECT_NE(doctor.find(" with " + count + "\n"), std::string::npos) << doctor;
  EXPECT_TRUE(preflight.starts_with(count)) << preflight;
}

TEST(Sync, NeedsCleanCheckoutsOfTheOrigin) {
  const Site site = ring_site();
  NodeLook good = watched("node2");
  good.commit = "c";
  good.origin = site.profile.deployment.repository;
  EXPECT_TRUE(judge_sync(site, {good}).empty());
  NodeLook absent = good, foreign = good, dirty = good, away = good;
  absent.commit.clear();
  foreign.origin = "https://elsewhere.example/x";
  dirty.changes = {" M config/cluster.json"};
  away.reached = false;
  for (const NodeLook& look : {absent, foreign, dirty, away}) EXPECT_EQ(judge_sync(site, {look}).size(), 1u);
}

TEST(Sync, OriginsAreNamedWithoutTheirTokens) {
  Site site = ring_site();
  site.profile.deployment.repository = "https://me:site-token@git.site.example/a.git";
  NodeLook foreign = watched("node2"), absent = foreign;
  foreign.commit = "c";
  foreign.origin = "https://me:node-token@elsewhere.example/a.git";
  absent.commit.clear();
  const LocalState local = {"c", {}};
  std::string text;
  for (const NodeLook& look : {foreign, absent}) {
    for (const Findings& findings :
         {judge_sync(site, {look}), judge_preflight({site, local, {}, {look}, true, true})}) {
      for (const Finding& finding : findings)
        text += finding.evidence + "\n" + finding.expected + "\n" + finding.fix + "\n";
    }
  }
  EXPECT_NE(text.find("origin is https://...@elsewhere.example/a.git"), std::string::npos) << text;
  EXPECT_NE(text.find("git remote set-url origin https://...@git.site.example/a.git"), std::string::npos)
      << text;
  EXPECT_NE(text.find("git clone https://...@git.site.example/a.git"), std::string::npos) << text;
  EXPECT_EQ(text.find("token"), std::string::npos) << text;
  // Nor does what a tool on the node said of it.
  RemoteResult result;
  result.outcome = RemoteOutcome::kExited;
  result.exit_code = 1;
  result.error = "git fetch: fatal: unable to access 'https://me:node-token@elsewhere.example/a.git/'\n";
  EXPECT_EQ(read_look("node2", result).problem,
            "git fetch: fatal: unable to access 'https://...@elsewhere.example/a.git/'");
}

TEST(Evidence, TheLastOnesStay) {
  const test::TemporaryFolder folder;
  for (const char* name : {"20260101T000000Z-svc", "20260102T000000Z-svc", "20260103T000000Z-svc",
                           "20260101T000000Z-a-svc", "notes"})
    std::filesystem::create_directories(folder / name);
  const std::string newest = folder / "now-svc";
  const std::vector<std::string> old = {folder / "20260101T000000Z-svc", folder / "20260102T000000Z-svc"};
  EXPECT_EQ(old_evidence(newest, "svc", 1), old);
  EXPECT_EQ(old_evidence(newest, "svc", 7), std::vector<std::string>{});
  EXPECT_EQ(old_evidence(folder / "absent/now-svc", "svc", 0), std::vector<std::string>{});
}

TEST(Evidence, LiesBesideTheExperiment) {
  EXPECT_EQ(evidence_folder("config/cluster.json", "svc", "T"), "results/private/failed-starts/T-svc");
  EXPECT_EQ(evidence_folder("experiments/2026-a/candidate.json", "svc", "T"),
            "experiments/2026-a/runs/failed-starts/T-svc");
  EXPECT_EQ(evidence_folder("experiments/2026-a/b/c.json", "svc", "T"),
            "results/private/failed-starts/T-svc");
}

}  // namespace
}  // namespace spark::ops
