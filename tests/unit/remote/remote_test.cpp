// ops/remote against a stand-in for the SSH client: the real shell protocol, every way a connection can fail.
#include "ops/remote/remote.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "common/file.h"
#include "common/process.h"
#include "unit/remote/lingers.h"
#include "unit/temporary_folder.h"

namespace spark::ops {
namespace {

namespace fs = std::filesystem;

using test::lingers;

class RemoteTest : public testing::Test {
 protected:
  RemoteTest() { ::setenv("FAKE_SSH_LOG", (folder_ / "log").c_str(), 1); }

  Remote remote(double keep_s = 60) {
    return Remote({.ssh_program = SPARK_SOURCE_DIR "/tests/unit/remote/fake_ssh.sh",
                   .control_folder = folder_ / "c",
                   .keep_s = keep_s});
  }
  static RemoteNode node(const std::string& host) { return {.name = host, .user = "u", .host = host}; }
  RemoteResult run(const std::string& host, const RemoteCommand& command) {
    return remote().run(node(host), command);
  }
  const test::TemporaryFolder temporary_;
  fs::path folder_ = temporary_.path();
};

TEST_F(RemoteTest, RunsArgumentsWithoutAnyShellTouchingThem) {
  const RemoteResult result = run("ok", {.arguments = {"printf", "%s|", "a b", "$HOME", "it's", "", "\n"}});
  EXPECT_TRUE(result.ok()) << result.describe() << result.error;
  EXPECT_EQ(result.output, "a b|$HOME|it's||\n|");
  EXPECT_EQ(result.error, "");
  EXPECT_EQ(result.describe(), "ok");
}

TEST_F(RemoteTest, CommandFailureIsTheCommandsOwnCodeEven255) {
  const RemoteResult result = run("ok", {.script = "echo no >&2; exit 255"});
  EXPECT_EQ(result.outcome, RemoteOutcome::kExited);
  EXPECT_EQ(result.exit_code, 255);
  EXPECT_EQ(result.describe(), "the command failed with exit code 255: no");
  EXPECT_EQ(run("ok", {.arguments = {"/no/such/program"}}).exit_code, 127);
}

TEST_F(RemoteTest, ScriptAndBinaryInput) {
  const std::string bytes("\0line\n\xff", 7);
  const RemoteResult result = run("ok", {.script = "echo begin\nx=1\ncat\n", .input = bytes});
  EXPECT_EQ(result.output, "begin\n" + bytes);
  EXPECT_EQ(run("ok", {.script = "cat; echo end"}).output, "end\n");  // input is empty, not this program's
}

TEST_F(RemoteTest, LargeInputComesThroughWhole) {
  const std::string bytes(600'000, 'x');
  EXPECT_EQ(run("ok", {.script = "wc -c", .input = bytes}).output, "600000\n");
  EXPECT_THROW(run("ok", {.script = "cat", .input = std::string(kMaxRemoteInput + 1, 'x')}), Error);
}

TEST_F(RemoteTest, NoiseOfClientAndLoginIsKeptApart) {
  const RemoteResult result = run("noisy", {.script = "echo out; echo err >&2"});
  EXPECT_EQ(result.output, "out\n");
  EXPECT_EQ(result.error, "err\n");
  EXPECT_EQ(result.message, "Warning: Permanently added\n");
}

TEST_F(RemoteTest, NothingOfACallIsInAnArgumentList) {
  run("ok", {.script = "true secret-1", .input = "secret-2"});
  const std::string log = read_file(folder_ / "log");
  EXPECT_NE(log.find("spark"), std::string::npos);
  EXPECT_EQ(log.find("secret"), std::string::npos);
  EXPECT_EQ(log.find("c2VjcmV0"), std::string::npos);  // nor its base64
}

TEST_F(RemoteTest, TransportFailuresAreNotCommandFailures) {
  const RemoteResult refused = run("refused", {.arguments = {"true"}});
  EXPECT_EQ(refused.outcome, RemoteOutcome::kUnreachable);
  EXPECT_EQ(refused.fault, TransportFault::kRefused);
  EXPECT_FALSE(refused.started);
  EXPECT_EQ(refused.describe(),
            "cannot be reached: ssh: connect to host refused port 22: Connection refused");
  EXPECT_NE(refused.hint().find("ssh.service"), std::string::npos);
  EXPECT_EQ(run("stranger", {.arguments = {"true"}}).fault, TransportFault::kHostKey);
  const RemoteResult sudo = run("nosudo", {.arguments = {"true"}, .as_root = true});
  EXPECT_EQ(sudo.outcome, RemoteOutcome::kNotStarted);
  EXPECT_NE(sudo.hint().find("without a password"), std::string::npos);
}

TEST_F(RemoteTest, LostConnectionSaysThatTheCommandHadBegun) {
  const RemoteResult result = run("cut", {.script = "echo part; exec sleep 30", .timeout_s = 20});
  EXPECT_EQ(result.outcome, RemoteOutcome::kLost);
  EXPECT_TRUE(result.started);
  EXPECT_EQ(result.output, "part\n");
}

TEST_F(RemoteTest, HalfAScriptIsNotBegun) {
  const RemoteResult result = run("halfway", {.script = "echo harm; echo harm; echo harm"});
  EXPECT_FALSE(result.started);
  EXPECT_EQ(result.output, "");
}

TEST_F(RemoteTest, DeadlineKillsEverythingOnBothSides) {
  const std::string mark = "31.4151" + std::to_string(::getpid());
  const RemoteResult result = run(
      "ok", {.script = "sleep " + mark + " & (trap '' TERM; sleep " + mark + "1) & wait", .timeout_s = 0.5});
  EXPECT_EQ(result.outcome, RemoteOutcome::kTimedOut);
  EXPECT_TRUE(result.started);
  EXPECT_NEAR(result.seconds, 0.5, 0.3);
  EXPECT_FALSE(lingers(mark));
}

TEST_F(RemoteTest, FrozenNodeTimesOutBeforeTheBeginAndItsConnectionIsDropped) {
  const RemoteResult result = run("frozen", {.arguments = {"true"}, .timeout_s = 0.3});
  EXPECT_EQ(result.outcome, RemoteOutcome::kTimedOut);
  EXPECT_FALSE(result.started);
  EXPECT_NE(read_file(folder_ / "log").find("frozen exit"), std::string::npos);
}

// A shared connection that goes on in the background needs its ProxyCommand; a call that is given up leaves
// none.
TEST_F(RemoteTest, ProxyOfASharedConnectionOutlivesTheCall) {
  const std::string mark = "31.4154" + std::to_string(::getpid());
  ASSERT_TRUE(run("proxied-" + mark, {.arguments = {"true"}}).ok());
  const pid_t proxy = std::stoi(read_file(folder_ / "proxy"));
  EXPECT_EQ(::kill(proxy, 0), 0);
  ::kill(proxy, SIGKILL);
  const std::string other = "31.4155" + std::to_string(::getpid());
  EXPECT_EQ(run("proxied-" + other + "-frozen", {.arguments = {"true"}, .timeout_s = 0.3}).outcome,
            RemoteOutcome::kTimedOut);
  EXPECT_FALSE(lingers(other));
}

TEST_F(RemoteTest, CancellationEndsTheCallAndTheCommand) {
  const std::string mark = "31.4152" + std::to_string(::getpid());
  std::stop_source stop;
  std::thread later([&stop] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    stop.request_stop();
  });
  const RemoteResult result = remote().run(node("ok"), {.arguments = {"sleep", mark}}, stop.get_token());
  later.join();
  EXPECT_EQ(result.outcome, RemoteOutcome::kCancelled);
  EXPECT_LT(result.seconds, 5);
  EXPECT_FALSE(lingers(mark));
}

TEST_F(RemoteTest, HangUpOfThisSideEndsTheCommand) {
  // As when this program dies: only the closing of standard input reaches the node.
  const std::string mark = "31.4153" + std::to_string(::getpid());
  const pid_t caller = ::fork();
  if (caller == 0) {
    ::setsid();
    remote().run(node("ok"), {.script = "sleep " + mark});
    ::_exit(0);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  ::kill(caller, SIGKILL);
  ::waitpid(caller, nullptr, 0);
  EXPECT_FALSE(lingers(mark));
}

TEST_F(RemoteTest, TooMuchOutputStopsTheCommand) {
  const RemoteResult endless = run("ok", {.arguments = {"cat", "/dev/zero"}, .max_output_bytes = 1000});
  EXPECT_EQ(endless.outcome, RemoteOutcome::kTooMuchOutput);
  const RemoteResult slightly = run("ok", {.script = "head -c 1001 /dev/zero", .max_output_bytes = 1000});
  EXPECT_EQ(slightly.outcome, RemoteOutcome::kTooMuchOutput);
  EXPECT_EQ(slightly.output.size(), 1000u);
  EXPECT_TRUE(run("ok", {.script = "head -c 1000 /dev/zero", .max_output_bytes = 1000}).ok());
}

TEST_F(RemoteTest, AllNodesAtOnceResultsInOrder) {
  std::vector<RemoteCall> calls;
  for (int i = 0; i < 4; ++i)
    calls.push_back({node("ok" + std::to_string(i)), {.script = "sleep 0.5; echo " + std::to_string(i)}});
  calls.push_back({node("refused"), {.script = "true"}});
  std::vector<size_t> order;
  const auto begin = std::chrono::steady_clock::now();
  const auto results =
      remote().run_all(calls, {}, [&](size_t index, const RemoteResult&) { order.push_back(index); });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_GE(seconds, 0.5);
  EXPECT_LT(seconds, 1.9);  // four in turn take two seconds
  ASSERT_EQ(results.size(), 5u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(results[i].output, std::to_string(i) + "\n");
  EXPECT_EQ(results[4].outcome, RemoteOutcome::kUnreachable);
  EXPECT_EQ(order.front(), 4u);
  EXPECT_EQ(order.size(), 5u);
  EXPECT_TRUE(remote().run_all(std::vector<RemoteCall>{}).empty());
}

TEST_F(RemoteTest, MissingClientIsUnreachable) {
  const Remote broken({.ssh_program = "/no/such/ssh", .keep_s = 0});
  const RemoteResult result = broken.run(node("ok"), {.arguments = {"true"}});
  EXPECT_EQ(result.outcome, RemoteOutcome::kUnreachable);
  EXPECT_NE(result.message.find("cannot be started"), std::string::npos);
}

TEST_F(RemoteTest, WriteFileReplacesWhole) {
  const std::string path = folder_ / "it's a file";
  for (const std::string content : {"one\n", "", "two"}) {
    const RemoteResult result = run("ok", write_file_command(path, content, "0640"));
    ASSERT_TRUE(result.ok()) << result.describe();
    EXPECT_EQ(read_file(path), content);
  }
  EXPECT_EQ(fs::status(path).permissions(), fs::perms(0640));
  EXPECT_FALSE(run("ok", write_file_command("/no/such/folder/x", "y")).ok());
}

TEST_F(RemoteTest, ControlFolderMustBeOursAndShort) {
  remote();
  EXPECT_EQ(fs::status(folder_ / "c").permissions(), fs::perms::owner_all);
  fs::permissions(folder_ / "c", fs::perms(0755));
  EXPECT_THROW(remote(), Error);
  fs::remove(folder_ / "c");
  fs::create_directory_symlink(folder_, folder_ / "c");
  EXPECT_THROW(remote(), Error);
  EXPECT_THROW(Remote({.control_folder = "/tmp/" + std::string(60, 'x')}), Error);
}

TEST_F(RemoteTest, HostIsNeverAnOption) {
  const auto words = remote().client_arguments({.name = "x", .user = "", .host = "-oProxyCommand=evil"});
  EXPECT_EQ(words[words.size() - 2], "--");
}

TEST(RemoteResult, ANodesWordsAreShownNotObeyed) {
  RemoteResult result;
  result.outcome = RemoteOutcome::kExited;
  result.exit_code = 1;
  result.error = "first\nlast \x1b[2J\x1b]0;t\x07\rend\n";
  EXPECT_EQ(result.describe(), "the command failed with exit code 1: last  [2J ]0;t end");
}

}  // namespace
}  // namespace spark::ops
