// A cluster in memory that does what the node scripts do, in the same small parts, and that can die between
// any two of them. After every part it checks what must never be broken: nothing runs without a guard.
#pragma once

#include <map>
#include <optional>
#include <stdexcept>
#include <string>

#include "ops/launch/executor.h"
#include "ops/launch/planner.h"

namespace spark::ops::simulated {

struct Crash : std::runtime_error {
  Crash() : std::runtime_error("killed") {}
};

struct Container {
  int id = 0;
  bool running = false;
  bool operator==(const Container&) const = default;
};

struct SimNode {
  std::map<std::string, Container> containers;
  enum class GuardState { kNone, kWaiting, kWatching } guard = GuardState::kNone;
  bool steady = false;
  bool operator==(const SimNode&) const = default;
};

class World : public StepActions {
 public:
  World(size_t nodes, bool service_there, bool service_runs) {
    for (size_t i = 0; i < nodes; ++i) {
      SimNode& node = nodes_["node" + std::to_string(i + 1)];
      if (!service_there) continue;
      node.containers["svc"] = {++last_id_, service_runs};
      if (service_runs) node.guard = SimNode::GuardState::kWatching, node.steady = true;
    }
  }

  // Dies after this many parts, once.
  std::optional<int> lives;
  int parts = 0;
  std::string failing_step;  // id of a step that fails when it is performed
  std::string failing_text = "told to fail";
  bool claimed = false;
  bool keeps = false;      // the ranks are processes or units
  int watched_faults = 0;  // moments at which something ran unguarded

  const std::map<std::string, SimNode>& nodes() const { return nodes_; }
  std::map<std::string, SimNode>& nodes() { return nodes_; }

  ClusterSituation situation() const {
    ClusterSituation cluster;
    for (auto it = nodes_.rbegin(); it != nodes_.rend(); ++it) {
      const auto found = it->second.containers.find("svc");
      const bool there = found != it->second.containers.end();
      cluster.nodes.push_back(
          {it->first, it->first == "node1", there, there && found->second.running, "old", keeps});
    }
    return cluster;
  }

  JournalSink journal(std::vector<Json>& disk) {
    return [this, &disk](Json record) {
      part();  // killed before the line is on the disk
      disk.push_back(std::move(record));
      part();  // or right after
    };
  }

  std::vector<StepResult> perform(const Wave& wave, std::stop_token) override {
    std::vector<StepResult> results;
    for (const Step& step : wave) {
      StepResult result;
      try {
        perform_one(step, nodes_.at(step.node), result);
      } catch (const std::logic_error& problem) {
        result.ok = false;
        result.problem = problem.what();
      }
      results.push_back(std::move(result));
    }
    return results;
  }

  void part() {
    ++parts;
    for (auto& [name, node] : nodes_) {
      for (const auto& [container, state] : node.containers) {
        if (state.running && node.guard == SimNode::GuardState::kNone) ++watched_faults;
      }
    }
    if (lives && --*lives < 0) {
      lives.reset();
      throw Crash();
    }
  }

 private:
  [[noreturn]] static void refuse(const std::string& why) { throw std::logic_error(why); }

  static bool runs(const SimNode& node, const std::string& name) {
    const auto found = node.containers.find(name);
    return found != node.containers.end() && found->second.running;
  }
  void end_service(SimNode& node, const std::string& name) {
    node.containers[name].running = false;
    if (node.guard == SimNode::GuardState::kWatching) node.guard = SimNode::GuardState::kNone;
    part();
  }
  void arm(SimNode& node) {
    node.guard = SimNode::GuardState::kNone;
    part();
    node.guard = SimNode::GuardState::kWaiting, node.steady = false;
    part();
  }
  void run_service(SimNode& node) {
    if (node.guard != SimNode::GuardState::kWaiting) refuse("no armed guard");
    node.containers["svc"].running = true;
    part();
    node.guard = SimNode::GuardState::kWatching;
    part();
  }

  void perform_one(const Step& step, SimNode& node, StepResult& result) {
    if (step.id() == failing_step) refuse(failing_text);
    const std::string backup = step.parameter("backup");
    switch (step.kind) {
      case StepKind::kClaim:
        claimed = true;
        return part();
      case StepKind::kRelease:
        claimed = false;
        return part();
      case StepKind::kRetire:
        if (!node.containers.contains("svc")) return;
        if (runs(node, "svc")) end_service(node, "svc");
        node.containers[backup] = node.containers["svc"];
        node.containers.erase("svc");
        return part();
      case StepKind::kArm:
        if (runs(node, "svc")) refuse("runs already");
        return arm(node);
      case StepKind::kLaunch:
        if (node.guard != SimNode::GuardState::kWaiting) refuse("no armed guard");
        if (node.containers.contains("svc")) refuse("name is taken");
        node.containers["svc"] = {++last_id_, false};
        part();
        run_service(node);
        result.values["id"] = std::to_string(node.containers["svc"].id);
        return;
      case StepKind::kReady:
        for (const auto& [name, other] : nodes_) {
          if (!runs(other, "svc")) refuse(name + " does not run");
        }
        return part();
      case StepKind::kSteady:
        if (node.guard != SimNode::GuardState::kWatching) refuse("no guard");
        node.steady = true;
        return part();
      case StepKind::kDiscard:
        node.containers.erase(backup);
        return part();
      case StepKind::kStop:
        if (runs(node, "svc")) end_service(node, "svc");
        node.guard = SimNode::GuardState::kNone;
        part();
        if (step.parameter("remove") == "1") node.containers.erase("svc");
        return part();
      case StepKind::kEvidence:
        return part();
      case StepKind::kRemove: {
        if (!node.containers.contains("svc")) return;
        const std::string id = step.parameter("id");
        if (!id.empty() ? std::to_string(node.containers["svc"].id) != id
                        : !backup.empty() && !node.containers.contains(backup))
          return;
        if (runs(node, "svc")) end_service(node, "svc");
        node.containers.erase("svc");
        return part();
      }
      case StepKind::kDisarm:
        if (runs(node, "svc")) return;
        node.guard = SimNode::GuardState::kNone;
        return part();
      case StepKind::kRestore:
        if (node.containers.contains(backup)) {
          if (node.containers.contains("svc")) refuse("both are there");
          node.containers["svc"] = node.containers[backup];
          node.containers.erase(backup);
          part();
        }
        if (step.parameter("start") != "1" || !node.containers.contains("svc") || runs(node, "svc")) return;
        arm(node);
        return run_service(node);
      case StepKind::kFetch:
      case StepKind::kCheckout:
      case StepKind::kPrune:
      case StepKind::kKeep:
        return part();
    }
  }

  std::map<std::string, SimNode> nodes_;
  int last_id_ = 0;
};

}  // namespace spark::ops::simulated
