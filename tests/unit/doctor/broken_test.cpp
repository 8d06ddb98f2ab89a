// The corpus of broken configurations: tests/data/site/broken/*.test. Each case changes a sound configuration
// and names exactly the findings that this must cause, no more and no fewer.
//
//   case a steady threshold above the startup threshold
//   profile cluster-4k                       reference profile, or typed:cluster-4k for a layered one
//   set profile /host/memguard_gib 9         JSON pointer and value; files: profile nodes site lock manifest
//   policy remove nodes /nodes/1/roce_peer_hcas     or the path of any file in the repository env NCCL_ALGO
//   Tree                       a variable of the profile;  unset NCCL_ALGO removes it arg --port 8001 a
//   server argument;  noarg --port removes it text lock {"schema_version": 1,          the whole file, as it
//   stands on the rest of the line hide docs/watch-list.md                  the file does not exist error
//   cluster.guard host.startup_memguard_gib | is 5, the steady threshold is 9 warning RULE WHERE | part of
//   the evidence
//
// Warnings that the sound configuration has as well are left out. "-" stands for an empty place.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "common/file.h"
#include "ops/doctor/doctor.h"
#include "ops/doctor/rule.h"

namespace spark::ops {
namespace {

struct Expectation {
  std::string severity, rule, where, evidence;
};

struct Case {
  std::string file;
  std::string title;
  std::string profile = "cluster-4k";
  std::vector<std::string> steps;
  std::vector<Expectation> expected;
};

std::string word(std::string& line) {
  const size_t begin = std::min(line.find_first_not_of(' '), line.size());
  const size_t end = std::min(line.find(' ', begin), line.size());
  std::string result = line.substr(begin, end - begin);
  line = line.substr(std::min(line.find_first_not_of(' ', end), line.size()));
  return result;
}

std::vector<Case> read_cases() {
  std::vector<Case> cases;
  std::vector<std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(SPARK_TEST_DATA) + "/site/broken")) {
    if (entry.path().extension() == ".test") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const auto& path : files) {
    std::istringstream text(read_file(path.string()));
    for (std::string line; std::getline(text, line);) {
      if (line.empty() || line[0] == '#') continue;
      std::string rest = line;
      const std::string keyword = word(rest);
      if (keyword == "case") {
        cases.push_back({path.filename().string(), rest, "cluster-4k", {}, {}});
      } else if (keyword == "profile") {
        cases.back().profile = rest;
      } else if (keyword == "error" || keyword == "warning") {
        Expectation expectation{keyword, word(rest), word(rest), {}};
        if (expectation.where == "-") expectation.where.clear();
        if (rest.rfind("| ", 0) == 0) expectation.evidence = rest.substr(2);
        cases.back().expected.push_back(expectation);
      } else {
        cases.back().steps.push_back(line);
      }
    }
  }
  return cases;
}

// The files that a case changes, by their short names.
class Workbench {
 public:
  explicit Workbench(const std::string& profile) : repository_(SPARK_SOURCE_DIR) {
    const bool typed = profile.rfind("typed:", 0) == 0;
    const std::string name = typed ? profile.substr(6) : profile;
    const bool ring = name.find("tp4") != std::string::npos;
    names_["profile"] = typed ? "config/" + name + ".json" : "config/under-test.json";
    names_["nodes"] = "config/nodes-under-test.json";
    names_["site"] = "config/site-under-test.json";
    names_["lock"] = "upstreams.lock.json";
    names_["manifest"] = "manifests/sources/2026-10-05-example-r6.json";
    names_["policy"] = "config/kernel-trial.json";
    if (!typed) put("profile", repository_.read("tests/data/site/reference/" + name + ".json"));
    put("nodes", repository_.read(ring ? "tests/data/site/reference/nodes-ring4.json"
                                       : "tests/data/site/reference/nodes-triangle.json"));
    if (typed) put("site", repository_.read("config/site.example.json"));
    request_ = {
        .profile = names_["profile"], .nodes = names_["nodes"], .site_file = typed ? names_["site"] : ""};
  }

  void step(std::string line) {
    const std::string verb = word(line);
    if (verb == "set" || verb == "remove") {
      const std::string file = word(line);
      const std::string pointer = word(line);
      Json document = get(file);
      const nlohmann::ordered_json::json_pointer at(pointer);
      if (verb == "set") {
        document[at] = Json::parse(line);
      } else {
        document = document.patch(Json::array({{{"op", "remove"}, {"path", pointer}}}));
      }
      put(file, document.dump());
    } else if (verb == "env" || verb == "unset") {
      const std::string name = word(line);
      Json document = get("profile");
      if (verb == "env") document["environment"][name] = line;
      if (verb == "unset") document["environment"].erase(name);
      put("profile", document.dump());
    } else if (verb == "arg" || verb == "noarg") {
      change_argument(verb == "arg", word(line), line);
    } else if (verb == "text") {
      const std::string file = word(line);
      for (size_t at = 0; (at = line.find("\\n", at)) != std::string::npos; ++at) line.replace(at, 2, "\n");
      put(file, line);
    } else if (verb == "hide") {
      repository_.hide(path_of(word(line)));
    } else {
      ADD_FAILURE() << "unknown step: " << verb;
    }
  }

  Findings diagnose_now() const { return diagnose(load_site(repository_, request_), nullptr); }

 private:
  std::string path_of(const std::string& name) const {
    const auto found = names_.find(name);
    return found == names_.end() ? name : found->second;
  }
  Json get(const std::string& name) const { return Json::parse(repository_.read(path_of(name))); }
  void put(const std::string& name, const std::string& text) { repository_.overlay(path_of(name), text); }

  void change_argument(bool present, const std::string& name, const std::string& value) {
    Json document = get("profile");
    Json& arguments = document["serve_args"];
    const auto at = std::find(arguments.begin(), arguments.end(), Json(name));
    if (present && at != arguments.end()) {
      *(at + 1) = value;
    } else if (present) {
      arguments.push_back(name);
      if (!value.empty()) arguments.push_back(value);
    } else {
      const auto index = static_cast<size_t>(at - arguments.begin());
      const std::string next = index + 1 < arguments.size() ? arguments[index + 1].get<std::string>() : "--";
      arguments.erase(index);
      if (next.rfind("--", 0) != 0) arguments.erase(index);
    }
    put("profile", document.dump());
  }

  Repository repository_;
  SiteRequest request_;
  std::map<std::string, std::string> names_;
};

std::string line_of(const Finding& finding) {
  return (finding.severity == Severity::kError ? "error " : "warning ") + finding.rule + " " +
         (finding.where.empty() ? "-" : finding.where) + " | " + finding.evidence;
}

std::string listed(const Findings& findings) {
  std::string text;
  for (const Finding& finding : findings) text += "  " + line_of(finding) + "\n";
  return text;
}

bool matches(const Expectation& expectation, const Finding& finding) {
  return expectation.severity == (finding.severity == Severity::kError ? "error" : "warning") &&
         expectation.rule == finding.rule && expectation.where == finding.where &&
         finding.evidence.find(expectation.evidence) != std::string::npos;
}

TEST(Broken, EveryCaseNamesExactlyItsFaults) {
  std::map<std::string, Findings> sound;
  std::set<std::string> rules_seen;
  size_t count = 0;
  for (const Case& item : read_cases()) {
    SCOPED_TRACE(item.file + ": " + item.title);
    if (sound.count(item.profile) == 0) {
      sound[item.profile] = Workbench(item.profile).diagnose_now();
      EXPECT_FALSE(has_error(sound[item.profile])) << listed(sound[item.profile]);
    }
    Workbench bench(item.profile);
    for (const std::string& step : item.steps) bench.step(step);
    Findings found = bench.diagnose_now();
    for (const Finding& finding : found) EXPECT_NE(find_rule(finding.rule), nullptr) << finding.rule;
    const Findings& usual = sound[item.profile];
    std::erase_if(found, [&](const Finding& finding) {
      return std::find(usual.begin(), usual.end(), finding) != usual.end();
    });
    ++count;
    EXPECT_FALSE(item.expected.empty()) << "the case expects nothing";
    Findings surplus = found;
    for (const Expectation& expectation : item.expected) {
      const auto match = std::find_if(surplus.begin(), surplus.end(),
                                      [&](const Finding& finding) { return matches(expectation, finding); });
      if (match == surplus.end()) {
        ADD_FAILURE() << "missing: " << expectation.severity << " " << expectation.rule << " "
                      << expectation.where << " | " << expectation.evidence << "\nfound:\n"
                      << listed(found);
        continue;
      }
      rules_seen.insert(match->rule);
      surplus.erase(match);
    }
    EXPECT_TRUE(surplus.empty()) << "not expected:\n" << listed(surplus);
  }
  EXPECT_GE(count, 150u);
  for (const Rule& rule : rules()) {
    if (std::string(rule.id) == "secrets.tracked") continue;  // secrets_test.cpp
    if (rule.is_live()) continue;                             // live_test.cpp
    EXPECT_EQ(rules_seen.count(rule.id), 1u) << "no broken configuration covers " << rule.id;
  }
}

}  // namespace
}  // namespace spark::ops
