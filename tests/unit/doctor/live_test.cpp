// The live rules over recorded facts: tests/data/probe/*.test. Each case changes a healthy cluster and names
// exactly the findings that this must cause, no more and no fewer.
//
//   case the cable of node1 and node2 is out
//   profile cluster-tp4                   default: cluster-64k
//   on node1                              edits: see tests/unit/probe_corpus.h
//   alter addresses | ...
//   error fabric.link | cable 1 (node1 port 0 - node2 port 1) | carries nothing
//   warning RULE | WHERE | part of the evidence, or of a detail
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "ops/doctor/doctor.h"
#include "ops/doctor/rule.h"
#include "unit/probe_corpus.h"

namespace spark::ops {
namespace {

using test::ProbeCorpus;

struct LiveExpectation {
  std::string severity, rule, where, evidence;
};

struct LiveCase {
  std::string place, title, profile = "cluster-64k";
  std::vector<std::string> edits;
  std::vector<LiveExpectation> expected;
};

std::vector<std::string> fields(const std::string& line) {
  std::vector<std::string> parts;
  std::string rest = line;
  size_t at;
  while (parts.size() < 2 && (at = rest.find(" | ")) != std::string::npos) {
    parts.push_back(rest.substr(0, at));
    rest = rest.substr(at + 3);
  }
  test::replace_all(rest, "\\n", "\n");
  parts.push_back(rest);
  parts.resize(3);
  return parts;
}

std::vector<LiveCase> read_live_cases() {
  std::vector<LiveCase> cases;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(SPARK_TEST_DATA) + "/probe")) {
    if (entry.path().extension() == ".test") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const auto& path : files) {
    std::istringstream text(read_file(path.string()));
    int number = 0;
    for (std::string line; std::getline(text, line);) {
      ++number;
      if (line.empty() || line[0] == '#') continue;
      const size_t blank = std::min(line.find(' '), line.size());
      const std::string keyword = line.substr(0, blank), rest = line.substr(std::min(blank + 1, line.size()));
      if (keyword == "case") {
        cases.push_back(
            {path.filename().string() + ":" + std::to_string(number), rest, "cluster-64k", {}, {}});
      } else if (keyword == "profile") {
        cases.back().profile = rest;
      } else if (keyword == "error" || keyword == "warning") {
        const auto parts = fields(rest);
        cases.back().expected.push_back({keyword, parts[0], parts[1], parts[2]});
      } else {
        cases.back().edits.push_back(line);
      }
    }
  }
  return cases;
}

std::string live_line_of(const Finding& finding) {
  std::string line = std::string(finding.severity == Severity::kError ? "error " : "warning ") +
                     finding.rule + " | " + finding.where + " | " + finding.evidence;
  for (const std::string& detail : finding.details) line += "\n      " + detail;
  return line;
}

bool matches(const LiveExpectation& expectation, const Finding& finding) {
  if (expectation.severity != (finding.severity == Severity::kError ? "error" : "warning")) return false;
  if (expectation.rule != finding.rule || expectation.where != finding.where) return false;
  return live_line_of(finding).find(expectation.evidence) != std::string::npos;
}

std::string live_listed(const Findings& findings) {
  std::string text;
  for (const Finding& finding : findings) text += "  " + live_line_of(finding) + "\n";
  return text;
}

TEST(Live, EveryCaseNamesExactlyItsFaults) {
  const std::vector<LiveCase> cases = read_live_cases();
  EXPECT_GE(cases.size(), 110u);
  std::set<std::pair<std::string, Severity>> fired;  // of findings that a case named
  for (const LiveCase& each : cases) {
    SCOPED_TRACE(each.place + ": " + each.title);
    ProbeCorpus corpus(each.profile);
    try {
      for (const std::string& edit : each.edits) corpus.apply(edit);
    } catch (const Error& error) {
      ADD_FAILURE() << error.describe();
      continue;
    }
    Findings findings = corpus.diagnose();
    std::string missing;
    for (const LiveExpectation& expectation : each.expected) {
      const auto found = std::find_if(findings.begin(), findings.end(),
                                      [&](const Finding& f) { return matches(expectation, f); });
      if (found == findings.end()) {
        missing += "  " + expectation.severity + " " + expectation.rule + " | " + expectation.where + " | " +
                   expectation.evidence + "\n";
      } else {
        fired.emplace(found->rule, found->severity);
        findings.erase(found);
      }
    }
    EXPECT_EQ(missing, "") << "not reported. Left over:\n" << live_listed(findings);
    if (missing.empty()) {
      EXPECT_EQ(live_listed(findings), "") << "reported, but not expected";
    }
  }
  std::string silent;
  for (const Rule& rule : live_rules()) {
    if (!fired.contains({rule.id, rule.severity})) silent += std::string(" ") + rule.id;
    if (rule.also_warns && !fired.contains({rule.id, Severity::kWarning}))
      silent += std::string(" ") + rule.id + " (as a warning)";
  }
  EXPECT_EQ(silent, "") << "rules that no case makes speak";
  for (const auto& [id, severity] : fired) {
    const Rule* rule = find_rule(id);
    ASSERT_NE(rule, nullptr) << id;
    // Any rule may warn that what it needs cannot be read.
    EXPECT_TRUE(severity == rule->severity || severity == Severity::kWarning)
        << id << " is harder than its row says";
  }
}

TEST(Live, HealthyClustersAreSilent) {
  for (const char* profile : {"cluster-64k", "cluster-tp4"}) {
    EXPECT_EQ(live_listed(ProbeCorpus(profile).diagnose()), "") << profile;
    ProbeCorpus stopped(profile);
    stopped.apply("stopped");
    EXPECT_EQ(live_listed(stopped.diagnose()), "") << profile << ", stopped";
  }
}

TEST(Live, ThereAreAtLeastSixtyRulesWithStableIds) {
  std::set<std::string> ids;
  for (const Rule& rule : rules()) EXPECT_TRUE(ids.insert(rule.id).second) << rule.id << " stands twice";
  EXPECT_GE(live_rules().size(), 60u);
  for (const Rule& rule : live_rules()) {
    EXPECT_TRUE(rule.is_live()) << rule.id;
    EXPECT_EQ(rule.run, nullptr) << rule.id;
  }
}

TEST(Live, SummaryKeepsTheMachineContract) {
  EXPECT_EQ(findings_text({}, "; live cluster matches"), "configuration OK; live cluster matches\n");
  ProbeCorpus corpus("cluster-64k");
  corpus.apply("on node2");
  corpus.apply("file /proc/sys/vm/watermark_boost_factor | 15000");
  const std::string text = findings_text(corpus.diagnose(), "; live cluster matches");
  EXPECT_NE(text.find("WARN: node2: vm.watermark_boost_factor is 15000"), std::string::npos) << text;
  EXPECT_NE(text.find("WARN: kernel corrections (not executed)"), std::string::npos) << text;
  EXPECT_NE(text.find("\n    ssh node2 sudo"), std::string::npos) << text;
  EXPECT_NE(text.find("configuration OK; live cluster matches with 2 warnings\n"), std::string::npos) << text;
}

TEST(Live, AnErrorSuppressesTheSummary) {
  ProbeCorpus corpus("cluster-64k");
  corpus.apply("on node3");
  corpus.apply("unreachable | Connection timed out");
  const std::string text = findings_text(corpus.diagnose(), "; live cluster matches");
  EXPECT_EQ(text.find("live cluster matches"), std::string::npos) << text;
  EXPECT_TRUE(any_unreachable(corpus.answers()));
}

TEST(Live, FragmentationCommands) {
  ProbeCorpus corpus("cluster-64k");
  corpus.apply("on node1");
  corpus.apply("alter extents | 244/244 => 300/244");
  corpus.apply("on node2");
  corpus.apply("fail extents 127 | ");
  const std::string text = fragmentation_commands(corpus.answers());
  EXPECT_NE(text.find("# node1\nsudo e4defrag -v /home/spark/"), std::string::npos) << text;
  EXPECT_NE(text.find("# node2: not known"), std::string::npos) << text;
  EXPECT_NE(text.find("# node3: nothing to do\n"), std::string::npos) << text;
}

// Whatever a node answers, rules judge it without a crash: lines are dropped, repeated, cut and garbled at
// random.
TEST(Live, DamagedAnswersNeverCrashARule) {
  ProbeCorpus corpus("cluster-64k");
  const std::string whole = format_dump(corpus.dump("node2"));
  uint64_t state = 42;
  const auto random = [&state](uint64_t below) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (state >> 33) % below;
  };
  for (int round = 0; round < 300; ++round) {
    std::string text = whole;
    for (uint64_t change = 1 + random(6); change > 0; --change) {
      const size_t at = random(text.size());
      switch (random(4)) {
        case 0:
          text.erase(at, random(200));
          break;
        case 1:
          text[at] = static_cast<char>(random(256));
          break;
        case 2:
          text.insert(at, text.substr(random(text.size()), random(100)));
          break;
        default:
          text.insert(at, random(2) == 0 ? "99999999999999999999" : "\n@files\n|");
          break;
      }
      if (text.empty()) text = "x";
    }
    auto answers = corpus.answers();
    answers[1] = read_answer("node2", text);
    const Findings findings = diagnose_live(corpus.site(), answers, corpus.options());
    findings_json(findings).dump();
    facts_json(answers[1].facts).dump();
  }
}

TEST(Live, AnEmptyAnswerIsOneClearError) {
  ProbeCorpus corpus("cluster-64k");
  auto answers = corpus.answers();
  answers[1] = read_answer("node2", "");
  size_t damaged = 0;
  for (const Finding& finding : diagnose_live(corpus.site(), answers, corpus.options()))
    damaged += finding.rule == "live.answer" && finding.where == "node2" ? 1 : 0;
  EXPECT_EQ(damaged, 1u);
}

TEST(Live, CheckoutsAreComparedWithThisRepository) {
  ProbeCorpus corpus("cluster-64k");
  const auto said = [&](const std::string& revision) {
    corpus.options().revision = revision;
    std::string text;
    for (const Finding& finding : corpus.diagnose()) text += live_line_of(finding) + "; " + finding.fix;
    return text;
  };
  EXPECT_EQ(said("0123456789abcdef0123456789abcdef01234567"), "");
  EXPECT_EQ(
      said("ffffffffffffffffffffffffffffffffffffffff"),
      "warning deployment.commit | all nodes | the checkouts are at 0123456789ab, this repository is at "
      "ffffffffffff; git push, then spark cluster sync --apply");
}

TEST(Live, ANodeThatCannotBeReachedIsSaidToOnce) {
  for (const auto& [edit, evidence] :
       {std::pair("unreachable | cannot be reached: ssh: no route", "cannot be reached: ssh: no route"),
        std::pair("unreachable | there is no folder x", "cannot be reached: there is no folder x"),
        std::pair("failed | reached, but the command could not be started: sudo",
                  "reached, but the command could not be started: sudo"),
        std::pair("failed | no result within 9 s",
                  "can be reached, but the probe failed: no result within 9 s")}) {
    ProbeCorpus corpus("cluster-64k");
    corpus.apply("on node2");
    corpus.apply(edit);
    std::string seen;
    for (const Finding& finding : corpus.diagnose()) {
      if (finding.rule == "live.reachable") seen += finding.evidence;
    }
    EXPECT_EQ(seen, evidence);
  }
}

// A start refuses what is there already, stopped or not.
TEST(Live, AStoppedServiceIsReplaced) {
  ProbeCorpus corpus("cluster-64k");
  corpus.apply("on node2");
  corpus.apply("alter container | \"Running\":true => \"Running\":false");
  std::string fix;
  for (const Finding& finding : corpus.diagnose()) {
    if (finding.rule == "service.running") fix += finding.fix;
  }
  EXPECT_TRUE(fix.ends_with("; then spark cluster start --replace --apply")) << fix;
}

// The lab's process profile: neither Docker nor systemd knows the ranks.
TEST(Live, ARankThatIsAProcessIsTheService) {
  ProbeCorpus corpus("cluster-64k");
  Site site = corpus.site();
  site.profile.engine_kind = EngineKind::kNative;
  site.profile.native.service = "dsv41";
  site.profile.container = {};
  site.profile.host.supervisor = "process";
  site.profile.host.hardware = "generic";
  const auto said = [&](const std::string& process, const std::string& guard, const std::string& rule) {
    for (const char* node : {"node1", "node2", "node3"}) {
      corpus.dump(node).commands["service-process"] = {0, process, {}};
      corpus.dump(node).commands["guard"] = {0, guard, {}};
    }
    std::string text;
    for (const Finding& finding : diagnose_live(site, corpus.answers(), {})) {
      if (finding.rule == rule && finding.where == "node1") text += finding.evidence;
    }
    return text;
  };
  const std::string watching = "state=watching\nphase=steady\nalive=1";
  EXPECT_EQ(said("running 4711", watching, "service.running"), "");
  EXPECT_EQ(said("running 4711", watching, "service.guard"), "");
  EXPECT_EQ(said("running 4711", watching, "service.ports"), "") << "the ports in use are its own";
  EXPECT_EQ(said("running 4711", watching, "memory.events"), "");
  EXPECT_EQ(said("running 4711", "", "service.guard"),
            "the service runs, but its memory guard dsv41-memguard is not there");
  EXPECT_EQ(said("running 4711", "state=watching\nalive=0", "service.guard"),
            "the service runs, but its memory guard dsv41-memguard is gone; its last state was watching");
  EXPECT_EQ(said("ended 4711", watching, "service.running"), "the rank's process 4711 has ended");
  EXPECT_EQ(said("absent", "", "service.running"), "the rank's process is not there");
  EXPECT_EQ(said("absent", "", "service.guard"), "");
  EXPECT_NE(said("absent", "", "service.ports"), "") << "somebody holds the port, and it is not the service";
}

}  // namespace
}  // namespace spark::ops
