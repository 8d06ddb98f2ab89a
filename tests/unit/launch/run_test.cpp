// Runs that die at every possible moment, and what the next command makes of them.
#include "ops/launch/run.h"

#include <gtest/gtest.h>

#include "simulated_cluster.h"

namespace spark::ops {
namespace {

using simulated::Crash;
using simulated::SimNode;
using simulated::World;

struct Before {
  const char* name;
  bool there;
  bool running;
  bool replace;
  bool keeps = false;
};

constexpr Before kBefore[] = {{"nothing there", false, false, false},
                              {"replace, nothing there", false, false, true},
                              {"replace a stopped service", true, false, true},
                              {"replace a running service", true, true, true},
                              {"replace running processes", true, true, true, true}};

RunHeader header_of(const std::string& command) {
  RunHeader header;
  header.run = "20261129T220000Z-" + command + "-1a2b";
  header.command = command;
  header.service = "svc";
  header.profile = "config/lab.json";
  header.by = "me@here";
  return header;
}

// Carries the plan out; whether it lived to the end.
bool attempt(World& world, const std::string& command, const Waves& waves, std::vector<Json>& disk) {
  try {
    RunLog log(header_of(command), waves, world.journal(disk));
    carry_out(log, outcome_of(command), world, {});
    return true;
  } catch (const Crash&) {
    return false;
  }
}

// The next command's first act. Nothing to do when the journal has no record.
RunResult next_command(World& world, RecoveryAim aim, std::vector<Json>& disk) {
  if (disk.empty() || replay(disk).ended) return {};
  RunLog log(disk, world.journal(disk));
  return recover(log, aim, "me@here", world, {});
}

void expect_settled(const World& world, const std::map<std::string, SimNode>& before, const RunState& run,
                    RecoveryAim aim) {
  EXPECT_FALSE(world.claimed);
  EXPECT_EQ(world.watched_faults, 0);
  const bool ready = run.outcome == "ready";
  for (const auto& [name, node] : world.nodes()) {
    SCOPED_TRACE(name);
    EXPECT_LE(node.containers.size(), 1u);
    if (ready) {
      ASSERT_TRUE(node.containers.contains("svc"));
      EXPECT_TRUE(node.containers.at("svc").running);
      EXPECT_TRUE(node.steady);
      continue;
    }
    const SimNode& old = before.at(name);
    ASSERT_EQ(node.containers.size(), old.containers.size());
    if (old.containers.empty()) {
      EXPECT_EQ(node.guard, SimNode::GuardState::kNone);
      continue;
    }
    ASSERT_TRUE(node.containers.contains("svc"));
    EXPECT_EQ(node.containers.at("svc").id, old.containers.at("svc").id);
    if (aim == RecoveryAim::kRestoreService && !run.header.run.empty()) {
      EXPECT_EQ(node.containers.at("svc").running, old.containers.at("svc").running);
    }
  }
}

TEST(Run, AStartThatDiesAnywhereIsTakenBackOrFinished) {
  for (const Before& before : kBefore) {
    for (const RecoveryAim aim : {RecoveryAim::kRestoreService, RecoveryAim::kRestoreNames}) {
      int crashes = 0;
      for (int lives = 0;; ++lives) {
        SCOPED_TRACE(std::string(before.name) + ", dies after " + std::to_string(lives));
        World world(3, before.there, before.running);
        world.keeps = before.keeps;
        const auto initial = world.nodes();
        const Waves plan = plan_start(world.situation(), {before.replace, "svc-pre-1"});
        std::vector<Json> disk;
        world.lives = lives;
        if (attempt(world, "start", plan, disk)) break;
        ++crashes;
        world.lives.reset();
        if (!disk.empty() && !replay(disk).ended) {
          EXPECT_NE(explain(replay(disk)).find("did not end"), std::string::npos);
        }
        ASSERT_TRUE(next_command(world, aim, disk).ok);
        const RunState run = disk.empty() ? RunState() : replay(disk);
        EXPECT_TRUE(disk.empty() || run.ended);
        expect_settled(world, initial, run, aim);
        // And a start from there succeeds.
        std::vector<Json> fresh;
        ASSERT_TRUE(attempt(world, "start", plan_start(world.situation(), {true, "svc-pre-2"}), fresh));
        EXPECT_EQ(replay(fresh).outcome, "ready");
        EXPECT_EQ(world.watched_faults, 0);
      }
      EXPECT_GT(crashes, 40);
    }
  }
}

TEST(Run, ARecoveryThatDiesAnywhereIsRecoveredToo) {
  int crashes = 0;
  for (int first = 0;; first += 3) {
    World probe(3, true, true);
    std::vector<Json> nothing;
    probe.lives = first;
    const Waves plan = plan_start(probe.situation(), {true, "svc-pre-1"});
    if (attempt(probe, "start", plan, nothing)) break;
    for (const RecoveryAim second_aim : {RecoveryAim::kRestoreService, RecoveryAim::kRestoreNames}) {
      for (int second = 0;; ++second) {
        SCOPED_TRACE("dies after " + std::to_string(first) + ", its recovery after " +
                     std::to_string(second));
        World world(3, true, true);
        const auto initial = world.nodes();
        std::vector<Json> disk;
        world.lives = first;
        ASSERT_FALSE(attempt(world, "start", plan, disk));
        world.lives = second;
        bool died = false;
        try {
          next_command(world, RecoveryAim::kRestoreService, disk);
        } catch (const Crash&) {
          died = true;
        }
        world.lives.reset();
        ASSERT_TRUE(next_command(world, second_aim, disk).ok);
        const RunState run = disk.empty() ? RunState() : replay(disk);
        expect_settled(world, initial, run, second_aim);
        if (!died) break;
        ++crashes;
      }
    }
  }
  EXPECT_GT(crashes, 300);
}

TEST(Run, AStopThatDiesAnywhereIsFinished) {
  for (const bool parallel : {false, true}) {
    for (int lives = 0;; ++lives) {
      SCOPED_TRACE(lives);
      World world(3, true, true);
      std::vector<Json> disk;
      world.lives = lives;
      const Waves plan = plan_stop(world.situation(), {.remove = true, .parallel = parallel});
      if (attempt(world, "stop", plan, disk)) break;
      world.lives.reset();
      EXPECT_EQ(world.watched_faults, 0);
      ASSERT_TRUE(next_command(world, RecoveryAim::kRestoreNames, disk).ok);
      if (disk.empty()) continue;
      EXPECT_EQ(replay(disk).outcome, "stopped");
      for (const auto& [name, node] : world.nodes()) EXPECT_TRUE(node.containers.empty()) << name;
      EXPECT_FALSE(world.claimed);
    }
  }
}

// Every step of a start fails once; everything is as before, and evidence comes before removal.
TEST(Run, AFailureAtAnyStepRestoresWhatWasThere) {
  for (const Before& before : kBefore) {
    World pattern(4, before.there, before.running);
    pattern.keeps = before.keeps;
    const Waves plan = plan_start(pattern.situation(), {before.replace, "svc-pre-1"});
    for (const Wave& wave : plan) {
      for (const Step& step : wave) {
        if (may_fail(step.kind)) continue;
        SCOPED_TRACE(std::string(before.name) + ": " + step.id());
        World world(4, before.there, before.running);
        const auto initial = world.nodes();
        std::vector<Json> disk;
        world.failing_step = step.id();
        RunLog log(header_of("start"), plan, world.journal(disk));
        const RunResult result = carry_out(log, "ready", world, {});
        EXPECT_FALSE(result.ok);
        EXPECT_EQ(result.problem, step.id() + ": told to fail");
        EXPECT_EQ(world.watched_faults, 0);
        // A restored service keeps a startup guard when the very same step fails again.
        const bool undone_by_the_same = before.running && step.kind == StepKind::kRetire;
        if (!undone_by_the_same) {
          EXPECT_TRUE(result.taken_back);
          EXPECT_EQ(result.restored, before.running && step.kind != StepKind::kClaim &&
                                         step.kind != StepKind::kKeep && step.kind != StepKind::kReady)
              << "what generates no token does not serve";
        }
        for (const auto& [name, node] : world.nodes())
          EXPECT_EQ(node.containers, initial.at(name).containers) << name;
      }
    }
  }
}

TEST(Run, AFailureToDiscardOnlyWarns) {
  World world(3, true, true);
  std::vector<Json> disk;
  world.failing_step = "discard node2";
  RunLog log(header_of("start"), plan_start(world.situation(), {true, "svc-pre-1"}), world.journal(disk));
  std::string told;
  RunHooks hooks;
  hooks.step = [&told](const Step& step, const StepResult& result) {
    if (!result.ok) told = step.id();
  };
  EXPECT_TRUE(carry_out(log, "ready", world, hooks).ok);
  EXPECT_EQ(told, "discard node2");
  EXPECT_EQ(log.state().outcome, "ready");
}

TEST(Run, LinesOfALogAreToldOnce) {
  World world(3, false, false);
  std::vector<Json> disk;
  world.failing_step = "ready node1";
  world.failing_text = "it ended\nits last lines:\nno such file";
  RunLog log(header_of("start"), plan_start(world.situation(), {}), world.journal(disk));
  std::string told;
  RunHooks hooks;
  hooks.say = [&told](const std::string& line) { told += line + "\n"; };
  const RunResult result = carry_out(log, "ready", world, hooks);
  EXPECT_FALSE(result.ok);
  EXPECT_EQ(told, "failed: ready node1: it ended; taking back what was done\n");
  EXPECT_NE(result.problem.find("its last lines:\nno such file"), std::string::npos) << result.problem;
}

TEST(Run, OneNodeThatCannotBeStoppedDoesNotKeepTheOthersUp) {
  World world(3, true, true);
  std::vector<Json> disk;
  world.failing_step = "stop node2";
  RunLog log(header_of("stop"), plan_stop(world.situation(), {}), world.journal(disk));
  const RunResult result = carry_out(log, "stopped", world, {});
  EXPECT_FALSE(result.ok);
  EXPECT_FALSE(world.nodes().at("node1").containers.at("svc").running);
  EXPECT_TRUE(world.nodes().at("node2").containers.at("svc").running);
  EXPECT_FALSE(world.nodes().at("node3").containers.at("svc").running);
  EXPECT_TRUE(log.state().ended);
  EXPECT_FALSE(world.claimed);
}

TEST(Run, AnInterruptTakesBack) {
  World world(3, false, false);
  std::vector<Json> disk;
  std::stop_source stop;
  RunHooks hooks;
  hooks.stop = stop.get_token();
  hooks.step = [&stop](const Step& step, const StepResult&) {
    if (step.id() == "launch node2") stop.request_stop();
  };
  RunLog log(header_of("start"), plan_start(world.situation(), {}), world.journal(disk));
  const RunResult result = carry_out(log, "ready", world, hooks);
  EXPECT_FALSE(result.ok);
  EXPECT_TRUE(result.interrupted);
  EXPECT_TRUE(result.taken_back);
  for (const auto& [name, node] : world.nodes()) EXPECT_TRUE(node.containers.empty()) << name;
}

}  // namespace
}  // namespace spark::ops
