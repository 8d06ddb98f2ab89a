// spark-engine as several processes: it serves, it stops, and it notices a rank that is lost.
//
// SPARK_FAULT_REPETITIONS: how often each fault is caused (1). Times are printed; a limit of three seconds
// leaves room for a loaded machine, the promise is one.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "common/json.h"
#include "common/process.h"
#include "e2e/ranks/engine_process.h"
#include "engine/checkpoint/synthetic.h"
#include "ops/site/settings.h"
#include "unit/checkpoint/temporary_folder.h"

namespace spark::e2e {
namespace {

constexpr double kLimitS = 3;

const std::string& checkpoint() {
  static const engine::TemporaryFolder folder;
  static const std::string path = [] {
    const std::string at = folder.path() + "/tiny";
    engine::create_synthetic_checkpoint(engine::SyntheticPreset::kTiny, 1, at, true);
    return at;
  }();
  return path;
}

std::vector<std::string> engine_command(const std::vector<std::string>& more) {
  std::vector<std::string> command = {SPARK_ENGINE, checkpoint(), "--port", "0", "--threads", "1"};
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

int repetitions() {
  const char* asked = std::getenv("SPARK_FAULT_REPETITIONS");
  return asked == nullptr ? 1 : std::max(1, std::atoi(asked));
}

// Three ranks as three processes, as on three machines.
class ThreeProcesses {
 public:
  // Rank `through_wire` reaches rank 0 through a wire that can be cut.
  explicit ThreeProcesses(int through_wire = -1, const std::vector<std::string>& more = {}) {
    const uint16_t master = free_port();
    if (through_wire >= 0) wire = std::make_unique<CuttableWire>(master);
    for (int rank = 0; rank < 3; ++rank) {
      const uint16_t reached = rank == through_wire ? wire->port() : master;
      std::vector<std::string> flags = {"--tensor-parallel-size",
                                        "3",
                                        "--nnodes",
                                        "3",
                                        "--node-rank",
                                        std::to_string(rank),
                                        "--master-port",
                                        std::to_string(reached)};
      flags.insert(flags.end(), more.begin(), more.end());
      ranks.push_back(std::make_unique<EngineProcess>(engine_command(flags), folder_.path(),
                                                      "rank" + std::to_string(rank)));
    }
    port = ranks[0]->wait_for_port();
    EXPECT_NE(port, 0) << ranks[0]->messages() << ranks[1]->messages() << ranks[2]->messages();
  }

  std::string all_messages() const {
    std::string text;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      text += "--- rank " + std::to_string(rank) + "\n" + ranks[rank]->messages();
    }
    return text;
  }

 private:
  engine::TemporaryFolder folder_;

 public:
  std::unique_ptr<CuttableWire> wire;
  std::vector<std::unique_ptr<EngineProcess>> ranks;
  uint16_t port = 0;
};

const std::vector<std::string>& prompts() {
  static const std::vector<std::string> list = {"Hello", "The quick brown fox jumps over the lazy dog",
                                                "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16"};
  return list;
}

std::vector<std::string> answers(uint16_t port, int tokens) {
  std::vector<std::string> list;
  for (const std::string& prompt : prompts()) list.push_back(complete(port, prompt, tokens));
  return list;
}

constexpr int kManyTokens = 40;

TEST(RanksE2e, OneTwoThreeAndFourRanksGiveTheSameTextAndStopWithNothingLeft) {
  const engine::TemporaryFolder folder;
  std::vector<std::string> want;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    EngineProcess engine(engine_command({"--tensor-parallel-size", std::to_string(ranks)}), folder.path(),
                         "tp" + std::to_string(ranks));
    const uint16_t port = engine.wait_for_port();
    ASSERT_NE(port, 0) << engine.messages();
    const auto children = engine.children();
    EXPECT_EQ(children.size(), static_cast<size_t>(ranks - 1));
    const auto got = answers(port, kManyTokens);
    if (ranks == 1) want = got;
    EXPECT_EQ(got, want) << ranks << " ranks";
    engine.signal(SIGTERM);
    EXPECT_EQ(engine.wait(20), 0) << engine.messages();
    for (const pid_t child : children) EXPECT_TRUE(is_gone(child));
    EXPECT_EQ(engine.messages().find("error"), std::string::npos) << engine.messages();
  }
}

TEST(RanksE2e, ThreeProcessesServeAndEndTogether) {
  for (const int told : {0, 2}) {  // whichever rank is told to stop
    ThreeProcesses group;
    ASSERT_NE(group.port, 0);
    CompletionStream stream(
        group.port, R"({"prompt":"Hello","max_tokens":60,"temperature":0,"ignore_eos":true,"stream":true})");
    ASSERT_TRUE(stream.wait_for(400, 20));
    group.ranks[static_cast<size_t>(told)]->signal(SIGTERM);
    EXPECT_TRUE(stream.wait_for_end(30));
    EXPECT_NE(stream.text().find("[DONE]"), std::string::npos);
    EXPECT_EQ(stream.text().find("error"), std::string::npos) << stream.text();
    for (const auto& rank : group.ranks) EXPECT_EQ(rank->wait(20), 0) << group.all_messages();
  }
}

constexpr const char* kLoopback = "0100007F";

// UCX by itself listens on every network, where a stranger can end the process.
TEST(RanksE2e, NobodyOutsideReachesTheRanks) {
  const engine::TemporaryFolder folder;
  EngineProcess engine(engine_command({"--tensor-parallel-size", "3"}), folder.path(), "tp3");
  ASSERT_NE(engine.wait_for_port(), 0) << engine.messages();
  EXPECT_EQ(listening_addresses(engine.pid()), std::vector<std::string>{kLoopback});  // the API
  for (const pid_t child : engine.children()) {
    EXPECT_EQ(listening_addresses(child), std::vector<std::string>{});
    EXPECT_EQ(name_of(child), "spark-engine");
  }
  EXPECT_TRUE(engine.output().starts_with("listening on ")) << engine.output();

  ThreeProcesses group;  // rank 0 is reached at 127.0.0.1
  ASSERT_NE(group.port, 0);
  for (const auto& rank : group.ranks) {
    const auto addresses = listening_addresses(rank->pid());
    EXPECT_GE(addresses.size(), 1U);
    for (const std::string& address : addresses) EXPECT_EQ(address, kLoopback);
    EXPECT_EQ(rank->messages().find("UCX"), std::string::npos) << rank->messages();
  }
  EXPECT_TRUE(group.ranks[0]->output().starts_with("listening on ")) << group.ranks[0]->output();
  EXPECT_EQ(group.ranks[1]->output(), "");
}

// As service managers stop a cluster: all at once, so that some are ending already when they are told.
TEST(RanksE2e, RanksThatAreAllToldToStopAllEndWell) {
  for (const int stagger_us : {0, 3000, 10000, 25000}) {
    ThreeProcesses group;
    ASSERT_NE(group.port, 0);
    for (const auto& rank : group.ranks) {
      rank->signal(SIGTERM);
      ::usleep(static_cast<useconds_t>(stagger_us));
    }
    for (const auto& rank : group.ranks) EXPECT_EQ(rank->wait(20), 0) << group.all_messages();
  }
}

// UCX takes SIGHUP for itself in every process that links it.
TEST(RanksE2e, AClosedTerminalStopsTheEngine) {
  for (const char* ranks : {"1", "2"}) {
    const engine::TemporaryFolder folder;
    EngineProcess engine(engine_command({"--tensor-parallel-size", ranks}), folder.path(), "engine");
    ASSERT_NE(engine.wait_for_port(), 0) << engine.messages();
    const auto children = engine.children();
    for (const pid_t child : children) ::kill(child, SIGHUP);
    engine.signal(SIGHUP);
    ::usleep(1000);
    engine.signal(SIGHUP);  // one by the shell, one by the kernel
    EXPECT_EQ(engine.wait(20), 0) << engine.messages();
    for (const pid_t child : children) EXPECT_TRUE(is_gone(child));
  }
  // While it loads there is nothing to put in order.
  const engine::TemporaryFolder folder;
  EngineProcess waiting(engine_command({"--tensor-parallel-size", "2", "--nnodes", "2", "--master-port",
                                        std::to_string(free_port())}),
                        folder.path(), "waiting");
  ASSERT_TRUE(waiting.wait_for_message("boot: reading configuration", 20)) << waiting.messages();
  waiting.signal(SIGHUP);
  EXPECT_EQ(waiting.wait(20), 130) << waiting.messages();

  ::signal(SIGHUP, SIG_IGN);  // as nohup does
  EngineProcess engine(engine_command({}), folder.path(), "nohup");
  ::signal(SIGHUP, SIG_DFL);
  const uint16_t port = engine.wait_for_port();
  ASSERT_NE(port, 0) << engine.messages();
  engine.signal(SIGHUP);
  EXPECT_NE(complete(port, "Hello", 4).find("\"text\":"), std::string::npos);
  EXPECT_FALSE(engine.ended());
}

// Sums rounded to BF16: results depend on the number of ranks. Shared memory or the network, one machine or
// three, alone or beside others: the same bits, so the same text.
TEST(RanksE2e, TheSameNumberOfRanksGivesTheSameTextOverEveryTransport) {
  const engine::TemporaryFolder folder;
  const std::vector<std::string> rounded = {"--collective-dtype", "bf16"};
  EngineProcess local(engine_command({"--tensor-parallel-size", "3", "--collective-dtype", "bf16"}),
                      folder.path(), "local");
  ThreeProcesses network(-1, rounded);
  const uint16_t port = local.wait_for_port();
  ASSERT_NE(port, 0) << local.messages();
  ASSERT_NE(network.port, 0);
  CompletionStream beside(network.port,
                          R"({"prompt":"other","max_tokens":200,"ignore_eos":true,"stream":true})");
  EXPECT_EQ(answers(port, kManyTokens), answers(network.port, kManyTokens));
}

enum class Fault { kKill, kStop, kCut, kSilence };

struct FaultCase {
  Fault fault;
  int rank;
  bool busy;
  const char* name;
};

// So that what is measured is not how long this program waits for a processor. Where that is allowed.
void measure_punctually() {
  const sched_param least{.sched_priority = 1};
  ::sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &least);
}

// Causes the fault once; the time until all ranks but a stopped one had ended.
void cause(const FaultCase& each, std::vector<double>& times) {
  const bool wire = each.fault == Fault::kCut || each.fault == Fault::kSilence;
  ThreeProcesses group(wire ? each.rank : -1);
  ASSERT_NE(group.port, 0);
  std::unique_ptr<CompletionStream> stream;
  if (each.busy) {
    stream = std::make_unique<CompletionStream>(
        group.port, R"({"prompt":"Hello","max_tokens":8000,"ignore_eos":true,"stream":true})");
    ASSERT_TRUE(stream->wait_for(600, 20)) << group.all_messages();
  }
  EngineProcess& victim = *group.ranks[static_cast<size_t>(each.rank)];
  const double begin = now_s();
  switch (each.fault) {
    case Fault::kKill:
      victim.signal(SIGKILL);
      break;
    case Fault::kStop:
      victim.signal(SIGSTOP);
      break;
    case Fault::kCut:
      group.wire->cut();
      break;
    case Fault::kSilence:
      group.wire->go_silent();
      break;
  }
  const std::string lost = "rank " + std::to_string(each.rank) + " was lost: ";
  for (int rank = 0; rank < 3; ++rank) {
    EngineProcess& process = *group.ranks[static_cast<size_t>(rank)];
    if (rank == each.rank) continue;
    const auto code = process.wait(10);
    ASSERT_TRUE(code.has_value()) << "rank " << rank << " hangs\n" << group.all_messages();
    EXPECT_EQ(*code, 1) << group.all_messages();
    EXPECT_NE(process.messages().find(lost), std::string::npos) << group.all_messages();
  }
  times.push_back(now_s() - begin);
  EXPECT_LT(times.back(), kLimitS) << group.all_messages();
  if (each.fault == Fault::kStop) victim.signal(SIGCONT);
  const auto code = victim.wait(10);
  ASSERT_TRUE(code.has_value()) << "rank " << each.rank << " hangs\n" << group.all_messages();
  EXPECT_EQ(*code, each.fault == Fault::kKill ? 128 + SIGKILL : 1) << group.all_messages();
  if (each.rank == 0 && each.fault == Fault::kStop) {
    EXPECT_NE(victim.messages().find("rank 0 ends: its watching thread had not run for "), std::string::npos)
        << victim.messages();
  }
  if (stream == nullptr) return;
  EXPECT_TRUE(stream->wait_for_end(5));
  if (each.rank == 0 && each.fault == Fault::kKill) return;  // nobody is left to say anything
  EXPECT_NE(stream->text().find(lost), std::string::npos)
      << stream->text().substr(stream->text().size() - std::min<size_t>(400, stream->text().size()));
}

class RankFaults : public testing::TestWithParam<FaultCase> {};

TEST_P(RankFaults, AreNoticedToldAndEndAllRanks) {
  measure_punctually();
  std::vector<double> times;
  for (int i = 0; i < repetitions() && !HasFailure(); ++i) cause(GetParam(), times);
  if (times.empty()) return;
  std::sort(times.begin(), times.end());
  std::printf("  %s: %zu times, ended after %.3f s (median), %.3f s (longest)\n", GetParam().name,
              times.size(), times[times.size() / 2], times.back());
}

INSTANTIATE_TEST_SUITE_P(RanksE2e, RankFaults,
                         testing::Values(FaultCase{Fault::kKill, 0, true, "kill_leader"},
                                         FaultCase{Fault::kKill, 1, true, "kill_rank_1"},
                                         FaultCase{Fault::kKill, 2, false, "kill_rank_2_idle"},
                                         FaultCase{Fault::kStop, 0, true, "stop_leader"},
                                         FaultCase{Fault::kStop, 1, true, "stop_rank_1"},
                                         FaultCase{Fault::kStop, 2, false, "stop_rank_2_idle"},
                                         FaultCase{Fault::kCut, 1, true, "cut_rank_1"},
                                         FaultCase{Fault::kCut, 2, false, "cut_rank_2_idle"},
                                         FaultCase{Fault::kSilence, 2, true, "silent_wire_rank_2"},
                                         FaultCase{Fault::kSilence, 1, false, "silent_wire_rank_1_idle"}),
                         [](const auto& each) { return each.param.name; });

// Ranks that one process started end with it, whatever ends it.
TEST(RanksE2e, StartedRanksEndWithTheFirst) {
  for (const int number : {SIGKILL, SIGSTOP}) {
    const engine::TemporaryFolder folder;
    EngineProcess engine(engine_command({"--tensor-parallel-size", "3"}), folder.path(), "tp3");
    ASSERT_NE(engine.wait_for_port(), 0) << engine.messages();
    const auto children = engine.children();
    ASSERT_EQ(children.size(), 2U);
    if (number == SIGSTOP) ::kill(children[1], SIGSTOP);  // and the first kills what is stopped
    if (number == SIGKILL) engine.signal(SIGKILL);
    const double end = now_s() + 8;
    const auto all_gone = [&] {
      return engine.ended() && std::all_of(children.begin(), children.end(), is_gone);
    };
    while (!all_gone() && now_s() < end) ::usleep(5000);
    EXPECT_TRUE(all_gone()) << engine.messages();
    EXPECT_EQ(engine.wait(0), number == SIGKILL ? 128 + SIGKILL : 1);
  }
}

TEST(RanksE2e, RanksThatDoNotFitAreToldWhy) {
  const engine::TemporaryFolder folder;
  const std::string port = std::to_string(free_port());
  const std::vector<std::string> common = {
      "--tensor-parallel-size", "2", "--nnodes", "2", "--master-port", port, "--rendezvous-timeout", "3"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), common.begin(), common.end());
    return engine_command(more);
  };
  EngineProcess leader(with({"--node-rank", "0"}), folder.path(), "leader");
  EngineProcess rounding(with({"--node-rank", "1", "--collective-dtype", "bf16"}), folder.path(), "rounding");
  EXPECT_EQ(rounding.wait(20), 1);
  EXPECT_NE(rounding.messages().find("--collective-dtype is bf16, on rank 0 fp64"), std::string::npos)
      << rounding.messages();
  EngineProcess other(with({"--node-rank", "1", "--max-num-seqs", "5"}), folder.path(), "other");
  EXPECT_EQ(other.wait(20), 1);
  EXPECT_NE(other.messages().find("--max-num-seqs is 5, on rank 0 8"), std::string::npos) << other.messages();
  EXPECT_EQ(leader.wait(20), 1);
  EXPECT_NE(leader.messages().find("rank 1 did not join within 3 s"), std::string::npos) << leader.messages();

  for (const auto& [flags, what] : std::map<std::string, std::string>{
           {"--tensor-parallel-size 3 --nnodes 2", "cannot be shared by 2 machines evenly"},
           {"--tensor-parallel-size 2 --nnodes 2 --node-rank 2", "the last machine is 1"},
           {"--headless", "cannot hold for machine 0"},
           {"--tensor-parallel-size 5", "5 ranks"}}) {
    std::vector<std::string> words;
    std::istringstream stream(flags);
    for (std::string word; stream >> word;) words.push_back(word);
    EngineProcess engine(engine_command(words), folder.path(), "wrong");
    const auto code = engine.wait(20);
    EXPECT_EQ(code, flags == "--tensor-parallel-size 5" ? 1 : 2) << flags;
    EXPECT_NE(engine.messages().find(what), std::string::npos) << engine.messages();
  }
}

// Every native profile, as rendered for each of its nodes, with the tiny checkpoint, loopback addresses and
// the CPU in place of what this machine has not.
class NativeProfiles : public testing::TestWithParam<std::string> {};

Json rendered_launches(const std::string& profile, bool ring) {
  const ProcessResult rendered =
      run_process({SPARK_CLI, "--repository", SPARK_SOURCE_DIR, "--site-config", "config/site.example.json",
                   "--cluster-config", profile, "--nodes-config",
                   ring ? "config/examples/nodes-ring4.json" : "config/nodes.example.json", "render", "--all",
                   "--format", "json", "--model-dir", checkpoint()});
  EXPECT_EQ(rendered.exit_code, 0) << rendered.error;
  return rendered.exit_code == 0 ? Json::parse(rendered.output) : Json::array();
}

std::vector<std::string> adapted(const Json& command, const std::string& master_port) {
  std::vector<std::string> words = command.get<std::vector<std::string>>();
  words[0] = SPARK_ENGINE;
  const std::map<std::string, std::string> instead = {{"--master-addr", "127.0.0.1"},
                                                      {"--master-port", master_port},
                                                      {"--host", "127.0.0.1"},
                                                      {"--port", "0"},
                                                      {"--backend", "cpu"}};
  for (size_t i = 1; i + 1 < words.size(); ++i) {
    const auto found = instead.find(words[i]);
    if (found != instead.end()) words[i + 1] = found->second;
    // The checkpoint's context ends earlier than the real one's.
    if (words[i] == "--max-model-len") words[i + 1] = "4096";
  }
  return words;
}

TEST_P(NativeProfiles, StartAnEngineThatAnswers) {
  const std::string profile = GetParam();
  const bool ring = profile.find("tp4") != std::string::npos;
  const Json launches = rendered_launches(profile, ring);
  ASSERT_EQ(launches.size(), ring ? 4U : 3U);
  const engine::TemporaryFolder folder;
  const std::string master_port = std::to_string(free_port());
  std::vector<std::unique_ptr<EngineProcess>> ranks;
  EngineProcess* head = nullptr;
  for (const Json& launch : launches) {
    ranks.push_back(std::make_unique<EngineProcess>(adapted(launch["command"], master_port), folder.path(),
                                                    launch["node"].get<std::string>()));
    if (launch["head"].get<bool>()) head = ranks.back().get();
  }
  ASSERT_NE(head, nullptr);
  const uint16_t port = head->wait_for_port(120);
  std::string messages;
  for (const auto& rank : ranks) messages += rank->messages();
  ASSERT_NE(port, 0) << messages;
  EXPECT_NE(complete(port, "Hello", 4).find("\"text\":"), std::string::npos);
  head->signal(SIGTERM);
  for (const auto& rank : ranks) EXPECT_EQ(rank->wait(30), 0) << rank->messages();
}

// All flags at once, as rendered; what they name on a node is replaced.
TEST(ProfileFlags, AreTakenByTheProgram) {
  const Json launches = rendered_launches("tests/data/site/native-every-setting.json", true);
  ASSERT_EQ(launches.size(), 4u);
  const engine::TemporaryFolder folder;
  const std::string key = folder.path() + "/key", more = folder.path() + "/more.yaml";
  std::ofstream(key) << "k3y\n";
  std::ofstream(more) << "max-num-seqs: 3\n";
  for (const Json& launch : launches) {
    std::vector<std::string> words = adapted(launch["command"], "29501");
    const std::map<std::string, std::string> instead = {
        {"--api-key-file", key}, {"--config", more}, {"--kv-cache-memory-bytes", "268435456"}};
    for (size_t i = 1; i + 1 < words.size(); ++i) {
      if (const auto found = instead.find(words[i]); found != instead.end()) words[i + 1] = found->second;
    }
    words.push_back("--check");
    const ProcessResult result = run_process(words);
    EXPECT_EQ(result.exit_code, 0) << result.error;
    EXPECT_NE(result.output.find("ready to start"), std::string::npos) << result.output;
  }
}

// Every flag of the program is a typed setting of a profile, or has a reason not to be.
TEST(ProfileFlags, AreAllTheProgramHas) {
  const std::set<std::string> elsewhere = {"--help",      "--version",     "--check",
                                           "--config",   // a profile is the file with the flags
                                           "--api-key",  // shows in the process list
                                           "--uds",      // a profile's API has a port
                                           "--node-rank", "--master-addr", "--master-port",
                                           "--headless"};  // added for every rank
  std::set<std::string> settings;
  for (const ops::Setting& row : ops::native_arguments()) {
    settings.insert(row.name);
    if (row.kind == ops::SettingKind::kSwitchPair) settings.insert(ops::negative_name(row.name));
  }
  settings.erase("");
  const ProcessResult help = run_process({SPARK_ENGINE, "--help"});
  ASSERT_EQ(help.exit_code, 0);
  std::set<std::string> flags;
  std::istringstream lines(help.output);
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(' ') == std::string::npos || line[line.find_first_not_of(' ')] != '-')
      continue;
    std::string names = line.substr(line.find_first_not_of(' '));
    names = names.substr(0, names.find_first_of(" ={"));
    std::istringstream parts(names);
    for (std::string name; std::getline(parts, name, ',');) {
      if (name.starts_with("--")) flags.insert(name);
    }
  }
  EXPECT_GT(flags.size(), 30u) << help.output;
  for (const std::string& flag : flags) {
    EXPECT_EQ(settings.count(flag) + elsewhere.count(flag), 1u)
        << flag << ": add a row to native_arguments(), or a reason here";
  }
  for (const std::string& setting : settings) EXPECT_EQ(flags.count(setting), 1u) << setting;
}

INSTANTIATE_TEST_SUITE_P(RanksE2e, NativeProfiles,
                         testing::Values("config/native-4k.json", "config/native-64k.json",
                                         "config/native-tp4.json"));

}  // namespace
}  // namespace spark::e2e
