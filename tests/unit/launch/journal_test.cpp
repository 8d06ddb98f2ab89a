// The journal on the disk: torn at every byte, replayed at every record.
#include "ops/launch/journal.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "common/file.h"
#include "ops/launch/planner.h"
#include "ops/launch/run_state.h"
#include "unit/temporary_folder.h"

namespace spark::ops {
namespace {

namespace fs = std::filesystem;

class JournalTest : public testing::Test {
 protected:
  test::TemporaryFolder temporary_;
  std::string folder_ = temporary_.path();
};

ClusterSituation three_nodes(bool running) {
  return {{{"node2", false, running, running, "c"},
           {"node3", false, running, running, "c"},
           {"node1", true, running, running, "c"}}};
}

// The records of a start that succeeds.
std::vector<Json> whole_start(bool replace) {
  RunHeader header;
  header.run = "r1";
  header.command = "start";
  header.service = "svc";
  const Waves waves = plan_start(three_nodes(replace), {replace, "svc-pre-7"});
  std::vector<Json> records = {header_json(header, waves)};
  for (const Wave& wave : waves) {
    Json ids = Json::array();
    for (const Step& step : wave) ids.push_back(step.id());
    records.push_back({{"event", "begin"}, {"steps", ids}});
    for (const Step& step : wave)
      records.push_back(
          {{"event", "done"},
           {"step", step.id()},
           {"values", step.kind == StepKind::kLaunch ? Json{{"id", "id-" + step.node}} : Json::object()}});
  }
  records.push_back({{"event", "end"}, {"outcome", "ready"}});
  return records;
}

TEST_F(JournalTest, EveryLineIsReadAndATornOneIsNot) {
  Journal journal = Journal::create(folder_, "run");
  const std::vector<Json> records = whole_start(true);
  for (const Json& record : records) journal.append(record);
  const std::string whole = read_file(journal.path());
  ASSERT_EQ(read_journal(journal.path()).size(), records.size());
  size_t lines = 0;
  for (size_t bytes = 0; bytes <= whole.size(); ++bytes) {
    if (bytes > 0 && whole[bytes - 1] == '\n') ++lines;
    if (bytes % 61 != 0 && whole[bytes == 0 ? 0 : bytes - 1] != '\n') continue;
    write_file_atomic(journal.path(), whole.substr(0, bytes));
    ASSERT_EQ(read_journal(journal.path()).size(), lines) << bytes;
  }
}

TEST_F(JournalTest, ResumingCutsTheTornLine) {
  {
    Journal journal = Journal::create(folder_, "run");
    journal.append({{"event", "run"}, {"run", "run"}});
  }
  const std::string path = folder_ + "/run.jsonl";
  write_file_atomic(path, read_file(path) + "{\"event\": \"beg");
  Journal::resume(path).append({{"event", "end"}, {"outcome", "x"}});
  const std::vector<Json> records = read_journal(path);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1]["event"], "end");
  EXPECT_THROW(Journal::create(folder_, "run"), Error);
}

TEST_F(JournalTest, ADamagedLineInTheMiddleIsAnError) {
  write_file_atomic(folder_ + "/run.jsonl", "{\"event\":\"run\"}\nrubbish\n{\"event\":\"end\"}\n");
  EXPECT_THROW(read_journal(folder_ + "/run.jsonl"), Error);
  write_file_atomic(folder_ + "/run.jsonl", "{\"event\":\"run\"}\nrubbish\n");
  EXPECT_EQ(read_journal(folder_ + "/run.jsonl").size(), 1u);
}

TEST_F(JournalTest, TheLockIsForOne) {
  std::string holder;
  auto first = lock_launch(folder_, "first", holder);
  ASSERT_TRUE(first);
  EXPECT_FALSE(lock_launch(folder_, "second", holder));
  EXPECT_EQ(holder, "first");
  EXPECT_EQ(launch_at_work(folder_), "first");
  first.reset();
  EXPECT_EQ(launch_at_work(folder_), "");
  EXPECT_TRUE(lock_launch(folder_, "second", holder));
}

TEST_F(JournalTest, OnlyRunsThatEndedArePruned) {
  for (int i = 0; i < 6; ++i) {
    Journal journal = Journal::create(folder_, "run" + std::to_string(i));
    journal.append({{"event", "run"}});
    if (i != 1) journal.append({{"event", "end"}, {"outcome", "ready"}});
  }
  prune_journals(folder_, 2);
  std::string left;
  for (const std::string& path : journals_in(folder_)) left += fs::path(path).stem().string() + " ";
  EXPECT_EQ(left, "run1 run4 run5 ");
}

// At every prefix: whatever was begun is taken back, and nothing else; after the token it is finished
// instead.
TEST(Replay, EveryPrefixHasItsRecovery) {
  for (const bool replace : {false, true}) {
    const std::vector<Json> records = whole_start(replace);
    for (size_t count = 1; count < records.size(); ++count) {
      SCOPED_TRACE(std::string(replace ? "replace, " : "") + std::to_string(count) + " records");
      const RunState run = replay({records.begin(), records.begin() + static_cast<std::ptrdiff_t>(count)});
      ASSERT_FALSE(run.ended);
      EXPECT_NE(explain(run).find("start r1"), std::string::npos);
      const Recovery recovery = plan_recovery(run, RecoveryAim::kRestoreService);
      std::set<std::string> ids;
      for (const Wave& wave : recovery.waves) {
        for (const Step& step : wave) ids.insert(step.id());
      }
      EXPECT_EQ(recovery.forward, run.all_done(StepKind::kReady));
      if (recovery.forward) {
        for (const Wave& wave : run.waves) {
          for (const Step& step : wave)
            EXPECT_EQ(ids.contains(step.id()), run.state(step) != StepState::kDone) << step.id();
        }
        continue;
      }
      for (const Wave& wave : run.waves) {
        for (const Step& step : wave) {
          const bool touched = run.touched(step);
          if (step.kind == StepKind::kLaunch) {
            EXPECT_EQ(ids.contains("remove " + step.node), touched);
            EXPECT_EQ(ids.contains("evidence " + step.node), touched);
          }
          if (step.kind == StepKind::kArm) {
            EXPECT_EQ(ids.contains("disarm " + step.node), touched);
          }
          if (step.kind == StepKind::kRetire) {
            EXPECT_EQ(ids.contains("restore " + step.node), touched);
          }
          if (step.kind == StepKind::kClaim) {
            EXPECT_EQ(ids.contains("release " + step.node), touched);
          }
        }
      }
    }
    EXPECT_TRUE(replay(records).ended);
    EXPECT_EQ(replay(records).outcome, "ready");
  }
}

TEST(Replay, ARemovalNamesTheContainerThatWasLaunched) {
  const std::vector<Json> records = whole_start(true);
  size_t launched = 0;
  while (records[launched].value("step", Json()) != Json("launch node2")) ++launched;
  const RunState run = replay({records.begin(), records.begin() + static_cast<std::ptrdiff_t>(launched) + 1});
  for (const Wave& wave : plan_undo(run, RecoveryAim::kRestoreNames)) {
    for (const Step& step : wave) {
      if (step.kind != StepKind::kRemove) continue;
      EXPECT_EQ(step.parameter("id"), step.node == "node2" ? "id-node2" : "");
      EXPECT_EQ(step.parameter("backup"), "svc-pre-7");
    }
  }
}

TEST(Replay, OddRecordsDoNoHarm) {
  const RunState run =
      replay({Json{{"event", "done"}, {"step", 3}}, Json{{"event", "begin"}, {"steps", {1, 2}}},
              Json{{"event", "run"}, {"waves", "no"}}, Json{{"event", 7}}});
  EXPECT_FALSE(run.ended);
  EXPECT_FALSE(explain(run).empty());
  EXPECT_TRUE(plan_recovery(run, RecoveryAim::kRestoreService).waves.empty());
}

TEST(Steps, WavesSurviveTheJournal) {
  const Waves waves = plan_start(three_nodes(true), {true, "svc-pre-7"});
  Faults faults;
  const Json document = waves_json(waves);
  EXPECT_EQ(read_waves(JsonReader(document, "", faults)), waves);
  EXPECT_TRUE(faults.empty());
}

}  // namespace
}  // namespace spark::ops
