// What changed for the worse or the better in a cluster, from one look to the next. Pure: samples in, changes
// out; collecting samples is collector.h's business.
//
//   WatchDetector detector(settings);
//   for (const WatchChange& change : detector.observe(sample)) std::cout << watch_line(change) << "\n";
//
// A check of a node that does not answer keeps its last state: only `node.answer` speaks for it. Checks,
// their thresholds and what they mean are listed in docs/watch.md.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/json.h"
#include "ops/site/site.h"
#include "ops/watch/condition.h"
#include "ops/watch/sample.h"

namespace spark::ops {

struct WatchSettings {
  std::string head;            // the node whose API is asked; empty: none
  std::string service;         // for messages
  double interval_s = 5;       // between looks
  double frozen_s = 20;        // requests wait that long for any progress: frozen
  double startup_s = 0;        // the longest start; 0: not judged
  int64_t threshold_kib = 0;   // of the steady guard, for nodes where none tells its own
  bool spark_hardware = true;  // a GPU is expected
  bool at_once = false;        // nothing has to be seen twice (`--once`)
};

WatchSettings watch_settings(const Site& site);

enum class WatchSeverity { kNote, kWarning, kError };

struct WatchChange {
  double time_s = 0;
  std::string node;
  std::string check;  // stable: "service.running"
  WatchSeverity severity = WatchSeverity::kError;
  ConditionChange change = ConditionChange::kBegan;  // kBegan for notes
  std::string text;
  double lasted_s = 0;  // of kEnded
};

// "2026-11-29T22:15:04Z ERROR node2 service.running: ended with exit code 137"
std::string watch_line(const WatchChange& change);
Json watch_json(const WatchChange& change);

class WatchDetector {
 public:
  explicit WatchDetector(WatchSettings settings) : settings_(std::move(settings)) {}

  std::vector<WatchChange> observe(const WatchSample& sample);

  // What is wrong now, each as if it had just begun.
  std::vector<WatchChange> standing() const;
  // Requests run and nothing has moved since the last look: one more look would tell.
  bool undecided() const { return undecided_; }

 private:
  struct NodeState {
    std::string boot;
    ServiceSample service;  // the last one that ran
    bool ran = false;
    double startup_since_s = -1;  // the guard's startup phase
    double healthy_since_s = -1;  // the API, of this start
    double progress_s = -1;       // when something last moved
    std::map<std::string, double> progress;
    double swapped_at_s = -1;
    int64_t swapped_pages = 0;
    std::deque<std::pair<double, int64_t>> memory;  // time, available KiB: the last half minute
  };

  void look(const NodeSample& node, const char* check, const Look& seen);
  void note(const NodeSample& node, const char* check, std::string text);
  void observe_node(const NodeSample& node);
  void note_restarts(const NodeSample& node, NodeState& state);
  Look look_at_answer(const NodeSample& node) const;
  Look look_at_service(const NodeSample& node, const NodeState& state) const;
  Look look_at_guard(const NodeSample& node) const;
  Look look_at_phase(const NodeSample& node, NodeState& state);
  Look look_at_memory(const NodeSample& node, NodeState& state) const;
  Look look_at_pressure(const NodeSample& node, NodeState& state) const;
  Look look_at_clock(const NodeSample& node) const;
  Look look_at_heat(const NodeSample& node) const;
  Look look_at_api(const NodeSample& node, NodeState& state) const;
  Look look_at_tokens(const NodeSample& node, NodeState& state);

  WatchSettings settings_;
  double now_s_ = 0;           // monotonic
  double wall_s_ = 0;          // of the same moment: for people
  bool requests_run_ = false;  // at the last look that could tell
  bool undecided_ = false;
  std::map<std::string, NodeState> nodes_;
  std::map<std::pair<std::string, std::string>, Condition> conditions_;  // node, check
  std::vector<WatchChange> changes_;
};

}  // namespace spark::ops
