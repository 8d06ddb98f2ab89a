// ops/remote against a real OpenSSH server on the loopback interface, with keys of its own. Skipped where
// there is no sshd.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "common/child_process.h"
#include "common/file.h"
#include "common/process.h"
#include "ops/remote/remote.h"
#include "unit/remote/lingers.h"
#include "unit/temporary_folder.h"

namespace spark::ops {
namespace {

namespace fs = std::filesystem;

using test::lingers;

class SshdTest : public testing::Test {
 protected:
  void SetUp() override {
    if (::access("/usr/sbin/sshd", X_OK) != 0) GTEST_SKIP() << "no /usr/sbin/sshd: install openssh-server";
    folder_ = temporary_.path();
    for (const char* name : {"host", "user", "other"})
      run_process({"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder_ / name});
    // It stays: the server of another run of this test, or the machine's own, may count on it by then.
    if (::getuid() == 0) fs::create_directory("/run/sshd");
    start_server();
    wait_until_it_listens();
  }
  void TearDown() override {
    if (folder_.empty()) return;
    if (remote_) remote_->close({node()});
  }

  // Whether it has its port: a busy machine may take long to say either.
  bool server_listens() {
    std::string said;
    while (said.find("Server listening") == std::string::npos && !server_->ended()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      server_->read_error(said, 10000);
    }
    return !server_->ended();
  }
  void start_server() {
    fs::copy_file(folder_ / "user.pub", folder_ / "authorized");
    for (port_ = 20000 + static_cast<int>(::getpid() % 9000);; ++port_) {
      write_file_atomic(folder_ / "sshd_config", "Port " + std::to_string(port_) +
                                                     "\nListenAddress 127.0.0.1\nHostKey " +
                                                     (folder_ / "host").string() + "\nAuthorizedKeysFile " +
                                                     (folder_ / "authorized").string() +
                                                     "\nPidFile none\nStrictModes no\nUsePAM no\n");
      server_ = std::make_unique<ChildProcess>(
          std::vector<std::string>{"/usr/sbin/sshd", "-D", "-e", "-f", folder_ / "sshd_config"});
      if (server_listens()) break;
      ASSERT_LT(port_, 30000);
    }
    write_client("host", "user");
  }
  void write_client(const std::string& host_key, const std::string& user_key) {
    write_file_atomic(folder_ / "known", "[127.0.0.1]:" + std::to_string(port_) + " " +
                                             read_file(folder_ / (host_key + ".pub")));
    write_file_atomic(folder_ / "client", "Host lab\n  HostName 127.0.0.1\n  Port " + std::to_string(port_) +
                                              "\n  IdentitiesOnly yes\n  IdentityFile " +
                                              (folder_ / user_key).string() + "\n  UserKnownHostsFile " +
                                              (folder_ / "known").string() +
                                              "\n  GlobalKnownHostsFile /dev/null\n");
    remote_ = std::make_unique<Remote>(
        RemoteOptions{.ssh_config = folder_ / "client", .control_folder = folder_ / "c", .keep_s = 30});
  }
  void wait_until_it_listens() {
    for (int i = 0; i < 50; ++i) {
      if (remote_->run(node(), {.arguments = {"true"}, .timeout_s = 5}).ok()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    std::string said;
    server_->read_error(said, 10000);
    FAIL() << remote_->run(node(), {.arguments = {"true"}}).message << said;
  }
  static RemoteNode node() { return {.name = "lab", .user = "", .host = "lab"}; }
  const test::TemporaryFolder temporary_;
  fs::path folder_;  // empty: no server runs
  int port_ = 0;
  std::unique_ptr<ChildProcess> server_;
  std::unique_ptr<Remote> remote_;
};

TEST_F(SshdTest, RunsOverOneSharedConnection) {
  const RemoteResult result = remote_->run(node(), {.script = "echo $PPID; cat; exit 3", .input = "in"});
  EXPECT_EQ(result.exit_code, 3) << result.describe();
  EXPECT_NE(result.output.find("\nin"), std::string::npos);
  EXPECT_EQ(run_process({"ssh", "-F", folder_ / "client", "-O", "check", "-o",
                         "ControlPath=" + (folder_ / "c").string() + "/%C", "lab"})
                .exit_code,
            0);
  double best = 1;
  for (int i = 0; i < 5; ++i) best = std::min(best, remote_->run(node(), {.arguments = {"true"}}).seconds);
  RecordProperty("shared_call_ms", std::to_string(best * 1e3));
}

TEST_F(SshdTest, DeadlineAndCancellationReachTheNode) {
  const std::string mark = "31.4161" + std::to_string(::getpid());
  EXPECT_EQ(remote_->run(node(), {.script = "sleep " + mark + "; true", .timeout_s = 0.7}).outcome,
            RemoteOutcome::kTimedOut);
  EXPECT_FALSE(lingers(mark));
  std::stop_source stop;
  std::thread later([&stop] {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    stop.request_stop();
  });
  EXPECT_EQ(remote_->run(node(), {.script = "trap '' TERM; sleep " + mark}, stop.get_token()).outcome,
            RemoteOutcome::kCancelled);
  later.join();
  EXPECT_FALSE(lingers(mark));
  EXPECT_TRUE(remote_->run(node(), {.arguments = {"true"}}).ok());
}

TEST_F(SshdTest, KilledCallerLeavesNothingRunning) {
  const std::string mark = "31.4162" + std::to_string(::getpid());
  const pid_t caller = ::fork();
  if (caller == 0) {
    ::setsid();
    remote_->run(node(), {.script = "sleep " + mark});
    ::_exit(0);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  ::kill(caller, SIGKILL);
  ::waitpid(caller, nullptr, 0);
  EXPECT_FALSE(lingers(mark));
}

TEST_F(SshdTest, WrongHostKeyWrongUserKeyAndNoServer) {
  remote_->close({node()});
  write_client("other", "user");
  EXPECT_EQ(remote_->run(node(), {.arguments = {"true"}}).fault, TransportFault::kHostKey);
  write_client("host", "other");
  EXPECT_EQ(remote_->run(node(), {.arguments = {"true"}}).fault, TransportFault::kAuthentication);
  write_client("host", "user");
  server_.reset();
  EXPECT_EQ(remote_->run(node(), {.arguments = {"true"}}).fault, TransportFault::kRefused);
}

TEST_F(SshdTest, LostServerIsTold) {
  // The command kills the server's process of its own session: the parent of `timeout`, its shell's parent.
  const RemoteResult result = remote_->run(
      node(), {.script = "echo part; sleep 0.3; kill -9 $(awk '{print $4}' /proc/$PPID/stat); sleep 20",
               .timeout_s = 15});
  EXPECT_EQ(result.outcome, RemoteOutcome::kLost) << result.describe();
  EXPECT_EQ(result.output, "part\n");
}

}  // namespace
}  // namespace spark::ops
