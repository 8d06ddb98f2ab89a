// Recorded looks at a cluster and the lines that must follow: tests/data/watch/*.test.
//
//   case a rank dies
//   look                              everybody answers; 5 s after the last look unless "look SECONDS"
//   on node2 container state exited 0 137 false 2026   replaces the answer's line that begins like this
//   drop node2 container              the lines that begin so are gone
//   silent node3 4.0                  has given no answer for 4.0 s;   failed node3 WHY;   answers node3
//   tokens 100                        at every look from now on the generation counter is 100 higher
//   say ERROR node2 service.running: ...      the lines of the last look, in any order, without their time
//   set frozen_s 10                   of WatchSettings, before the first look: frozen_s, startup_s, at_once
//
// A look without "say" must be silent.
#include "ops/watch/detector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>

#include "common/file.h"

namespace spark::ops {
namespace {

constexpr const char* kHealthy =
    "boot b-NODE\nup 1000\navailable 20000000\ntotal 125000000\nswapped 0\npressure 0.00\n"
    "container state running 100 0 false start-1\nguard state=watching\nguard phase=steady\n"
    "guard threshold_kib=3145728\nguard interval_ms=2000\nguard minimum_kib=19000000\nguard boot=b-NODE\n"
    "guard pid=100\nguard alive\nprocess 100 5\ngpu values 2411, 38.5, 96, 60\n";
constexpr const char* kHeadOnly =
    "api http 200\napi vllm:num_requests_running{model_name=\"m\"} 0\n"
    "api vllm:num_requests_waiting{model_name=\"m\"} 0\n";

class WatchScenario {
 public:
  WatchScenario() {
    settings_.head = "node1";
    settings_.service = "dsv41";
    settings_.threshold_kib = 3 << 20;
    settings_.startup_s = 600;
    for (const char* name : {"node1", "node2", "node3"}) {
      std::string text = kHealthy;
      for (size_t at; (at = text.find("NODE")) != std::string::npos;) text.replace(at, 4, name);
      std::istringstream lines(text + (std::string(name) == "node1" ? kHeadOnly : ""));
      for (std::string line; std::getline(lines, line);) lines_[name].push_back(line);
    }
  }

  void apply(const std::string& keyword, std::istringstream& rest) {
    std::string node, text;
    if (keyword == "set") {
      double value = 0;
      rest >> text >> value;
      if (text == "frozen_s") settings_.frozen_s = value;
      if (text == "startup_s") settings_.startup_s = value;
      if (text == "at_once") settings_.at_once = value != 0;
    } else if (keyword == "tokens") {
      rest >> per_look_;
    } else if (keyword == "look") {
      double seconds = 5;
      rest >> seconds;
      look(seconds);
    } else {
      rest >> node >> std::ws;
      std::getline(rest, text);
      ASSERT_TRUE(lines_.contains(node)) << node;
      if (keyword == "on") replace(node, text);
      if (keyword == "drop")
        std::erase_if(lines_[node], [&](auto& line) { return line.rfind(text, 0) == 0; });
      if (keyword == "silent") problems_[node] = {WatchAnswer::kPending, text};
      if (keyword == "failed") problems_[node] = {WatchAnswer::kFailed, text};
      if (keyword == "answers") problems_.erase(node);
    }
  }

  std::multiset<std::string> said() const {
    std::multiset<std::string> lines;
    for (const WatchChange& change : said_) {
      const std::string line = watch_line(change);
      lines.insert(line.substr(line.find(' ') + 1));
      EXPECT_EQ(watch_json(change)["check"], change.check);
    }
    return lines;
  }
  size_t standing() const { return detector_ ? detector_->standing().size() : 0; }

 private:
  // The line's key: up to the blank, "=" or "{" after the first word.
  static std::string key_of(const std::string& line) {
    const size_t blank = line.find(' ');
    const bool compound = line.starts_with("guard ") || line.starts_with("api ");
    return compound ? line.substr(0, std::min(line.find_first_of("={ ", blank + 1), line.size()))
                    : line.substr(0, blank);
  }

  void replace(const std::string& node, const std::string& text) {
    for (std::string& line : lines_[node]) {
      if (key_of(line) != key_of(text)) continue;
      line = text;
      return;
    }
    lines_[node].push_back(text);
  }

  void look(double seconds) {
    if (!detector_) detector_.emplace(settings_);
    time_s_ += seconds;
    tokens_ += per_look_;
    WatchSample sample{.time_s = 1764450000 + time_s_, .monotonic_s = time_s_, .nodes = {}};
    for (const auto& [node, lines] : lines_) {
      const auto problem = problems_.find(node);
      if (problem != problems_.end()) {
        NodeSample& absent = sample.nodes.emplace_back(NodeSample{.node = node});
        absent.answer = problem->second.first;
        absent.problem = problem->second.second;
        if (absent.answer == WatchAnswer::kPending) absent.pending_s = std::stod(problem->second.second);
        continue;
      }
      std::string text = "spark-watch 1\n";
      for (const std::string& line : lines) text += line + "\n";
      if (node == "node1") text += "api vllm:generation_tokens_total 1" + std::to_string(tokens_) + "\n";
      sample.nodes.push_back(read_watch_answer(node, text + "end\n"));
      EXPECT_EQ(sample.nodes.back().answer, WatchAnswer::kAnswered);
    }
    said_ = detector_->observe(sample);
  }

  WatchSettings settings_;
  std::optional<WatchDetector> detector_;
  std::map<std::string, std::vector<std::string>> lines_;
  std::map<std::string, std::pair<WatchAnswer, std::string>> problems_;
  double time_s_ = 4000;
  int tokens_ = 1000, per_look_ = 0;
  std::vector<WatchChange> said_;
};

std::string joined(const std::multiset<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST(WatchDetector, EveryRecordedCase) {
  std::set<std::string> told;
  size_t cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(SPARK_TEST_DATA) + "/watch")) {
    std::istringstream text(read_file(entry.path().string()));
    std::optional<WatchScenario> scenario;
    std::multiset<std::string> expected;
    std::string title, place;
    const auto settle = [&] {
      if (scenario && !place.empty()) {
        EXPECT_EQ(joined(scenario->said()), joined(expected)) << title << ", " << place;
      }
      expected.clear();
      place.clear();
    };
    int number = 0;
    for (std::string line; std::getline(text, line);) {
      ++number;
      if (line.empty() || line[0] == '#') continue;
      std::istringstream words(line);
      std::string keyword;
      words >> keyword >> std::ws;
      if (keyword == "say") {
        std::string wanted;
        std::getline(words, wanted);
        expected.insert(wanted);
        const size_t check = wanted.find(' ', wanted.find(' ') + 1) + 1;
        told.insert(wanted.substr(check, wanted.find(':', check) - check));
        continue;
      }
      if (keyword == "look" || keyword == "case") settle();
      if (keyword == "case") {
        ++cases;
        title = line;
        scenario.emplace();
        continue;
      }
      ASSERT_TRUE(scenario) << entry.path();
      if (keyword == "look") place = entry.path().filename().string() + ":" + std::to_string(number);
      scenario->apply(keyword, words);
    }
    settle();
  }
  EXPECT_GE(cases, 25u);
  for (const char* check :
       {"node.answer", "container.engine", "service.running", "guard.armed", "guard.phase", "memory.margin",
        "memory.pressure", "gpu.answer", "gpu.clock", "gpu.heat", "api.answer", "tokens.moving", "hold",
        "node.rebooted", "service.restarted"})
    EXPECT_TRUE(told.contains(check)) << "no case makes it speak: " << check;
}

TEST(WatchDetector, AClockThatIsSetChangesNoSpan) {
  for (const double set_s : {-3600.0, 300.0}) {
    WatchSettings settings;
    settings.head = "node1";
    settings.frozen_s = 8;
    WatchDetector detector(settings);
    NodeSample node{.node = "node1", .answer = WatchAnswer::kAnswered};
    node.service.state = ServiceState::kRunning;
    node.api = ApiSample{.running = 1, .waiting = 0, .progress = {{"tokens", 5}}};
    const auto frozen = [&](double time_s, double wall_s) {
      bool told = false;
      for (const WatchChange& change :
           detector.observe({.time_s = wall_s, .monotonic_s = time_s, .nodes = {node}})) {
        told |= change.check == "tokens.moving";
        EXPECT_EQ(change.time_s, wall_s);
      }
      return told;
    };
    EXPECT_FALSE(frozen(100, 1764450000));
    EXPECT_FALSE(frozen(105, 1764450005 + set_s)) << "nothing has stood for " << set_s << " s";
    EXPECT_TRUE(frozen(110, 1764450010 + set_s)) << "frozen for 10 s";
  }
}

TEST(WatchDetector, UndecidedWhileRequestsRunWithoutAToken) {
  WatchSettings settings;
  settings.head = "node1";
  settings.frozen_s = 8;
  WatchDetector detector(settings);
  NodeSample node{.node = "node1", .answer = WatchAnswer::kAnswered};
  node.service.state = ServiceState::kRunning;
  node.api = ApiSample{.running = 1, .waiting = 0, .progress = {{"tokens", 5}}};
  detector.observe({.monotonic_s = 100, .nodes = {node}});
  EXPECT_TRUE(detector.undecided());
  detector.observe({.monotonic_s = 105, .nodes = {node}});
  EXPECT_TRUE(detector.undecided());
  detector.observe({.monotonic_s = 110, .nodes = {node}});
  EXPECT_FALSE(detector.undecided());
  bool frozen = false;
  for (const WatchChange& change : detector.standing()) frozen |= change.check == "tokens.moving";
  EXPECT_TRUE(frozen);
  node.api->progress["tokens"] = 6;
  detector.observe({.monotonic_s = 115, .nodes = {node}});
  EXPECT_FALSE(detector.undecided());
}

TEST(WatchLine, ANodesWordsAreShownNotObeyed) {
  WatchChange change;
  change.node = "node1";
  change.check = "service.running";
  change.text = "it says \x1b[2J\x1b]0;t\x07\r\nok node1 all: in order";
  const std::string line = watch_line(change);
  EXPECT_NE(line.find("it says  [2J ]0;t   ok node1"), std::string::npos) << line;
  EXPECT_EQ(line.find_first_of("\x1b\x07\r\n"), std::string::npos) << line;
}

}  // namespace
}  // namespace spark::ops
