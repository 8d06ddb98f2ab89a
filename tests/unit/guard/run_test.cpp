// The guard's loop against real processes, a recorded /proc, a stand-in for the container engine, and, where
// this machine lets a test make memory cgroups, a real allocator bomb.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/file.h"
#include "ops/guard/files.h"
#include "ops/guard/guard.h"
#include "ops/guard/report.h"
#include "ops/guard/text.h"
#include "unit/temporary_folder.h"

// Every allocation of this program is counted; glibc's own functions do the work.
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* block, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
}
static thread_local long allocations = 0;
extern "C" {
void* malloc(size_t size) {
  ++allocations;
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  ++allocations;
  return __libc_calloc(count, size);
}
void* realloc(void* block, size_t size) {
  ++allocations;
  return __libc_realloc(block, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  ++allocations;
  return __libc_memalign(alignment, size);
}
}

namespace spark::ops {
namespace {

namespace fs = std::filesystem;

void pause_ms(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

// A child process that the guard may kill.
class Victim {
 public:
  explicit Victim(const std::function<void()>& work = [] { ::pause(); }) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::setpgid(0, 0);
    work();
    ::_exit(0);
  }
  ~Victim() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  // Waits up to a second for its end; the signal that ended it, 0 for an ordinary end, -1 when it lives.
  int ended_by(int timeout_ms = 1000) {
    for (int waited = 0; waited <= timeout_ms; waited += 5) {
      int status = 0;
      if (::waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = -1;
        return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      }
      pause_ms(5);
    }
    return -1;
  }

 private:
  pid_t pid_;
};

class GuardRun : public testing::Test {
 protected:
  GuardRun() {
    fs::create_directories(folder_ / "root/proc/self");
    fs::create_directories(folder_ / "run");
    write_file_atomic(folder_ / "root/proc/self/mounts", "");
    available(1'000'000);
    options_.service.add("svc");
    options_.limits = {.threshold_kib = 500'000, .interval_ms = 20, .wait_ms = 300};
    options_.root.add((folder_ / "root").string());
    options_.run_folder.add((folder_ / "run").string());
    options_.pid_file.add((folder_ / "pid").string());
    options_.ready_file.add((folder_ / "ready").string());
    options_.watch_kernel_log = false;
  }
  ~GuardRun() override { end_guard(); }
  void end_guard() {
    if (guard_ <= 0) return;
    ::kill(guard_, SIGKILL);
    ::waitpid(guard_, nullptr, 0);
    guard_ = -1;
  }

  // In place: the guard keeps the file open, as it does with the kernel's.
  void available(int64_t kib) {
    const Descriptor file(::open((folder_ / "root/proc/meminfo").c_str(), O_WRONLY | O_CREAT, 0644));
    char text[64];
    const int size =
        std::snprintf(text, sizeof text, "MemAvailable: %12lld kB\n", static_cast<long long>(kib));
    [[maybe_unused]] const auto written = ::pwrite(file.get(), text, static_cast<size_t>(size), 0);
  }
  void serve(const Victim& victim) {
    write_file_atomic(folder_ / "pid", std::to_string(victim.pid()) + "\n");
  }
  void start() {
    guard_ = ::fork();
    if (guard_ == 0) {
      const int quiet = ::open("/dev/null", O_WRONLY);
      ::dup2(quiet, 2);
      ::_exit(run_guard(options_));
    }
  }
  bool armed() {
    for (int i = 0; i < 200 && !fs::exists(folder_ / "ready"); ++i) pause_ms(5);
    return fs::exists(folder_ / "ready");
  }
  int exit_code(int timeout_ms = 2000) {
    for (int waited = 0; waited <= timeout_ms; waited += 5) {
      int status = 0;
      if (::waitpid(guard_, &status, WNOHANG) == guard_) {
        guard_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
      }
      pause_ms(5);
    }
    return -1000;
  }
  std::string told(const char* key) {
    if (!fs::exists(folder_ / "run/svc.status")) return {};
    const std::string text = read_file(folder_ / "run/svc.status");
    return std::string(value_of(text, key));
  }
  bool reaches(const char* key, const std::string& value) {
    for (int i = 0; i < 200; ++i) {
      if (told(key) == value) return true;
      pause_ms(5);
    }
    return false;
  }

  const test::TemporaryFolder temporary_;
  fs::path folder_ = temporary_.path();
  GuardOptions options_;
  pid_t guard_ = -1;
};

TEST_F(GuardRun, KillsBelowTheThresholdAndSaysWhy) {
  Victim victim;
  serve(victim);
  start();
  ASSERT_TRUE(armed());
  ASSERT_TRUE(reaches("state", "watching"));
  EXPECT_EQ(told("means"), "process");
  pause_ms(100);
  EXPECT_EQ(victim.ended_by(0), -1);
  available(499'999);
  EXPECT_EQ(victim.ended_by(), SIGKILL);
  EXPECT_EQ(exit_code(), 1);
  EXPECT_EQ(told("state"), "killed");
  EXPECT_EQ(told("reason"), "low-memory");
  EXPECT_EQ(told("minimum_kib"), "499999");
}

TEST_F(GuardRun, UnreadableMemoryFailsClosed) {
  Victim victim;
  serve(victim);
  start();
  ASSERT_TRUE(reaches("state", "watching"));
  const Descriptor file(::open((folder_ / "root/proc/meminfo").c_str(), O_WRONLY | O_TRUNC));
  EXPECT_EQ(victim.ended_by(), SIGKILL);
  EXPECT_EQ(exit_code(), 1);
  EXPECT_EQ(told("reason"), "memory-unreadable");
}

TEST_F(GuardRun, EndsWithItsService) {
  Victim victim([] { pause_ms(150); });
  serve(victim);
  start();
  EXPECT_EQ(exit_code(), 0);
  EXPECT_EQ(told("state"), "ended");
}

TEST_F(GuardRun, WaitsForTheServiceButNotForEver) {
  start();
  ASSERT_TRUE(armed());
  EXPECT_EQ(told("state"), "waiting");
  EXPECT_EQ(exit_code(), 1);
  EXPECT_EQ(told("reason"), "service-did-not-appear");
}

TEST_F(GuardRun, TheFirstProcessIsNobodysService) {
  write_file_atomic((folder_ / "pid").string(), "1\n");
  start();
  ASSERT_TRUE(armed());
  EXPECT_EQ(told("state"), "waiting");
  EXPECT_EQ(exit_code(), 1);
  EXPECT_EQ(told("reason"), "service-did-not-appear");
}

TEST_F(GuardRun, LowMemoryBeforeTheServiceRefusesWithoutKilling) {
  available(1);
  start();
  EXPECT_EQ(exit_code(), 1);
  EXPECT_EQ(told("state"), "gave-up");
  EXPECT_FALSE(fs::exists(folder_ / "ready"));
}

TEST_F(GuardRun, ServiceThatAppearsLateIsWatched) {
  start();
  ASSERT_TRUE(armed());
  Victim victim;
  serve(victim);
  EXPECT_TRUE(reaches("state", "watching"));
  pause_ms(400);  // longer than the wait for its appearance
  EXPECT_EQ(told("state"), "watching");
  available(0);
  EXPECT_EQ(victim.ended_by(), SIGKILL);
}

TEST_F(GuardRun, SwitchesPhaseInPlace) {
  Victim victim;
  serve(victim);
  options_.limits.interval_ms = 60'000;
  start();
  ASSERT_TRUE(armed());
  const std::string answer(ask_socket(socket_path(options_).view(), "switch steady 200000 30\n", 1000));
  EXPECT_NE(answer.find("phase=steady\n"), std::string::npos);
  EXPECT_NE(answer.find("threshold_kib=200000\n"), std::string::npos);
  available(300'000);  // below the old threshold, above the new one
  EXPECT_EQ(victim.ended_by(150), -1);
  available(100'000);
  EXPECT_EQ(victim.ended_by(), SIGKILL);  // the new interval counts from the switch
  EXPECT_EQ(exit_code(), 1);
}

TEST_F(GuardRun, SocketAnswersAndBearsNonsense) {
  Victim victim;
  serve(victim);
  start();
  ASSERT_TRUE(armed());
  for (const char* nonsense : {"", "\n", "switch\n", "switch steady 0 0\n", "hello"}) {
    EXPECT_TRUE(ask_socket(socket_path(options_).view(), nonsense, 300).empty()) << nonsense;
  }
  const std::string status(ask_socket(socket_path(options_).view(), "status\n", 1000));
  EXPECT_NE(status.find("service=svc\n"), std::string::npos);
  EXPECT_NE(status.find("threshold_kib=500000\n"), std::string::npos);
  EXPECT_EQ(run_guard(options_), 1);  // one guard per service
  ::kill(guard_, SIGTERM);
  EXPECT_EQ(exit_code(), 0);
  EXPECT_EQ(told("reason"), "asked-to-stop");
  EXPECT_EQ(victim.ended_by(0), -1);
}

// A client that connects and then gets no processor for a while, as on a busy machine.
class Client {
 public:
  explicit Client(const GuardOptions& options) : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    socket_path(options).view().copy(address.sun_path, sizeof address.sun_path - 1);
    if (::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) socket_.close();
  }
  std::string ask(std::string_view request) const {
    ::send(socket_.get(), request.data(), request.size(), MSG_NOSIGNAL);
    pollfd wait = {socket_.get(), POLLIN, 0};
    if (::poll(&wait, 1, 2000) <= 0) return {};
    char text[4096];
    const ssize_t count = ::recv(socket_.get(), text, sizeof text, 0);
    return {text, count > 0 ? static_cast<size_t>(count) : 0};
  }

 private:
  Descriptor socket_;
};

TEST_F(GuardRun, ClientsMayTakeSecondsAndHoldNothingUp) {
  Victim victim;
  serve(victim);
  start();
  ASSERT_TRUE(reaches("state", "watching"));
  std::vector<Client> slow;
  for (size_t i = 0; i < ControlSocket::kPeers; ++i) slow.emplace_back(options_);
  pause_ms(50);
  const std::string before = told("samples");
  pause_ms(400);
  // It samples every 20 ms all the while; fewer than twenty, for what a busy test machine takes.
  EXPECT_GE(std::stoll(told("samples")) - std::stoll(before), 8);
  for (const Client& client : slow)
    EXPECT_NE(client.ask("status\n").find("state=watching\n"), std::string::npos);
  // As many again, and one more: the oldest of them makes room, at once.
  slow.clear();
  for (size_t i = 0; i < ControlSocket::kPeers; ++i) {
    slow.emplace_back(options_);
    pause_ms(20);
  }
  EXPECT_NE(Client(options_).ask("status\n").find("state=watching\n"), std::string::npos);
  EXPECT_EQ(slow.front().ask("status\n"), "");
  EXPECT_NE(slow.back().ask("status\n").find("state=watching\n"), std::string::npos);
  // Silent ones in every place, and the kill comes when it is due.
  slow.clear();
  for (size_t i = 0; i < ControlSocket::kPeers; ++i) slow.emplace_back(options_);
  available(499'999);
  EXPECT_EQ(victim.ended_by(), SIGKILL);
}

TEST_F(GuardRun, RestartedGuardContinuesInItsPhase) {
  Victim victim;
  serve(victim);
  start();
  ASSERT_TRUE(reaches("state", "watching"));
  ask_socket(socket_path(options_).view(), "switch steady 200000 20\n", 1000);
  ::kill(guard_, SIGKILL);
  EXPECT_EQ(exit_code(), -SIGKILL);
  available(300'000);
  start();
  ASSERT_TRUE(reaches("phase", "steady"));
  EXPECT_EQ(victim.ended_by(150), -1);
  available(100'000);
  EXPECT_EQ(victim.ended_by(), SIGKILL);
}

// Answers one question of the guard after the other, as Docker does over HTTP/1.0.
class FakeEngine {
 public:
  explicit FakeEngine(const std::string& path) : listener_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
    ::listen(listener_.get(), 8);
    thread_ = std::jthread([this](std::stop_token stop) { serve(stop); });
  }
  std::atomic<pid_t> running = 0;
  std::atomic<bool> broken = false;

 private:
  void serve(std::stop_token stop) {
    while (!stop.stop_requested()) {
      pollfd wait = {listener_.get(), POLLIN, 0};
      if (::poll(&wait, 1, 20) <= 0) continue;
      const Descriptor peer(::accept(listener_.get(), nullptr, nullptr));
      char request[1024];
      const ssize_t count = ::recv(peer.get(), request, sizeof request, 0);
      const std::string_view text(request, count > 0 ? static_cast<size_t>(count) : 0);
      std::string answer = "HTTP/1.0 404 Not Found\r\n\r\n{}";
      if (broken)
        answer = "HTTP/1.0 500 Oops\r\n\r\n{}";
      else if (running > 0 && text.starts_with("GET /containers/svc/json "))
        answer =
            "HTTP/1.0 200 OK\r\n\r\n{\"State\":{\"Running\":true,\"Pid\":" + std::to_string(running) + "}}";
      ::send(peer.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    }
  }
  Descriptor listener_;
  std::jthread thread_;
};

TEST_F(GuardRun, FindsTheContainerAndNeedsTheEngineNoMore) {
  const std::string socket = folder_ / "docker.sock";
  options_.docker_socket.clear();
  options_.docker_socket.add(socket);
  options_.limits.wait_ms = 5000;
  auto engine = std::make_optional<FakeEngine>(socket);
  engine->broken = true;
  start();
  ASSERT_TRUE(armed());
  pause_ms(60);
  EXPECT_EQ(told("state"), "waiting");
  engine->broken = false;
  Victim victim;
  engine->running = victim.pid();
  ASSERT_TRUE(reaches("state", "watching"));
  EXPECT_EQ(told("kind"), "container");
  engine.reset();  // the daemon stops
  pause_ms(100);
  EXPECT_EQ(told("state"), "watching");
  available(0);
  EXPECT_EQ(victim.ended_by(), SIGKILL);
  EXPECT_EQ(exit_code(), 1);
}

TEST_F(GuardRun, TellsWhatWasReadBackFromSwapSinceItBegan) {
  write_file_atomic(folder_ / "root/proc/vmstat", std::string("nr_free_pages 1\npswpin 1000\n"));
  Victim victim;
  serve(victim);
  start();
  ASSERT_TRUE(armed());
  ASSERT_TRUE(reaches("swapped_in_pages", "0"));
  const Descriptor file(::open((folder_ / "root/proc/vmstat").c_str(), O_WRONLY));
  ASSERT_EQ(::pwrite(file.get(), "nr_free_pages 1\npswpin 1234\n", 28, 0), 28);
  EXPECT_TRUE(reaches("swapped_in_pages", "234"));
}

struct Count {
  long at_arming = -1;
  long later = -1;
  int samples = 0;
};

TEST_F(GuardRun, NoAllocationAfterArming) {
  Victim victim;
  serve(victim);
  options_.limits.interval_ms = 10;
  Count count;
  GuardHooks hooks;
  hooks.context = &count;
  hooks.armed = [](void* context) { static_cast<Count*>(context)->at_arming = allocations; };
  hooks.sampled = [](void* context) {
    auto* seen = static_cast<Count*>(context);
    seen->later = allocations;
    return ++seen->samples < 50;
  };
  std::jthread asker([this] {
    for (int i = 0; i < 10; ++i) {
      pause_ms(20);
      const int peer = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_un address = {};
      address.sun_family = AF_UNIX;
      socket_path(options_).view().copy(address.sun_path, sizeof address.sun_path - 1);
      if (::connect(peer, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0)
        ::send(peer, "switch steady 400000 10", 23, MSG_NOSIGNAL);
      ::close(peer);
    }
  });
  // In this thread: the counter belongs to it.
  EXPECT_EQ(run_guard(options_, hooks), 0);
  EXPECT_EQ(count.samples, 50);
  EXPECT_GE(count.at_arming, 0);
  EXPECT_EQ(count.later, count.at_arming);
  // The counter counts.
  const long before = allocations;
  delete new std::string(100, 'x');
  EXPECT_GT(allocations, before);
}

// The kill itself, and everything that is said about it, needs no memory either.
TEST_F(GuardRun, NoAllocationWhileKilling) {
  Victim victim;
  serve(victim);
  write_file_atomic(folder_ / "root/proc/vmstat", std::string("pswpin 1000\n"));
  options_.limits.interval_ms = 10;
  Count count;
  GuardHooks hooks;
  hooks.context = &count;
  hooks.armed = [](void* context) { static_cast<Count*>(context)->at_arming = allocations; };
  std::jthread shrinks([this] {
    armed();
    pause_ms(50);
    available(1000);
  });
  // The victim is this process's child: a zombie would be waited for as if it lived.
  std::jthread reaper([&victim] { EXPECT_EQ(victim.ended_by(5000), SIGKILL); });
  const int quiet = ::open("/dev/null", O_WRONLY | O_CLOEXEC), stderr_before = ::dup(2);
  ::dup2(quiet, 2);
  const int code = run_guard(options_, hooks);
  const long after = allocations;
  ::dup2(stderr_before, 2);
  ::close(quiet);
  ::close(stderr_before);
  EXPECT_EQ(code, 1);
  EXPECT_EQ(told("state"), "killed");
  EXPECT_GE(count.at_arming, 0);
  EXPECT_EQ(after, count.at_arming);
}

// A parent cgroup with a memory limit stands for the machine, and a writer of "MemAvailable = limit - use"
// for its /proc/meminfo.
class GuardUnderPressure : public GuardRun {
 protected:
  static constexpr int64_t kMachineKib = 192 << 10;

  void SetUp() override {
    const std::string mounts = read_file("/proc/self/mounts");
    v2_ = cgroup_v2_mount(mounts);
    memory_ = cgroup_v1_mount(mounts, "memory");
    v1_memory_ = !memory_.empty();
    if (!v1_memory_) memory_ = v2_;
    name_ = "/spark-guard-test-" + std::to_string(::getpid());
    if (::geteuid() != 0 || memory_.empty() || v2_.empty()) GTEST_SKIP() << "needs root and cgroups";
    std::error_code fault;
    fs::create_directory(v2_ + name_, fault);
    if (fault) GTEST_SKIP() << "cgroups are not writable here: " << fault.message();
    if (!v1_memory_) {
      put(v2_ + "/cgroup.subtree_control", "+memory");
      put(v2_ + name_ + "/cgroup.subtree_control", "+memory");
    } else {
      fs::create_directory(memory_ + name_);
    }
    for (const std::string& group : {v2_ + name_, memory_ + name_})
      for (const char* part : {"/guard", "/svc"}) fs::create_directory(group + part, fault);
    if (!put(memory_ + name_ + (v1_memory_ ? "/memory.limit_in_bytes" : "/memory.max"),
             std::to_string(kMachineKib * 1024)))
      GTEST_SKIP() << "no memory controller is writable here";
    write_file_atomic(folder_ / "root/proc/self/mounts", mounts);
    fs::create_directories(folder_ / "root/sys/fs");
    fs::create_directory_symlink("/sys/fs/cgroup", folder_ / "root/sys/fs/cgroup");
    available(kMachineKib);
    meter_ = std::jthread([this](std::stop_token stop) {
      while (!stop.stop_requested()) {
        last_ = kMachineKib - used_kib();
        available(last_);
        if (last_ <= crossing_kib_ && crossed_s_ == 0) crossed_s_ = monotonic_s();
        pause_ms(2);
      }
    });
  }
  void TearDown() override {
    meter_ = {};
    end_guard();
    for (const std::string& group : {v2_ + name_, memory_ + name_}) {
      for (const char* part : {"/guard", "/svc", ""}) {
        for (int i = 0; i < 100 && ::rmdir((group + part).c_str()) != 0 && errno == EBUSY; ++i) pause_ms(10);
      }
    }
  }
  static bool put(const std::string& path, const std::string& value) {
    const Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    return file.open() &&
           ::write(file.get(), value.data(), value.size()) == static_cast<ssize_t>(value.size());
  }
  int64_t used_kib() const {
    return std::stoll(
               read_file(memory_ + name_ + (v1_memory_ ? "/memory.usage_in_bytes" : "/memory.current"))) /
           1024;
  }
  void enter(const char* part) const {
    for (const std::string& group : {v2_ + name_, memory_ + name_}) put(group + part + "/cgroup.procs", "0");
  }
  void show(const Victim& victim) {
    const std::string pid = std::to_string(victim.pid());
    fs::create_directory_symlink("/proc/" + pid, folder_ / "root/proc" / pid);
    serve(victim);
  }
  void start_inside() {
    guard_ = ::fork();
    if (guard_ == 0) {
      enter("/guard");
      const int quiet = ::open("/dev/null", O_WRONLY);
      ::dup2(quiet, 2);
      ::_exit(run_guard(options_));
    }
  }

  std::string v2_, memory_, name_;
  bool v1_memory_ = false;
  std::atomic<int64_t> last_ = 0;
  std::atomic<int64_t> crossing_kib_ = 0;  // when the machine first has no more than this
  std::atomic<double> crossed_s_ = 0;
  std::jthread meter_;
};

// Takes memory at 1 GB/s until `leave_kib` of the machine are left, in two processes: all of the cgroup must
// go.
void bomb(int64_t kib) {
  constexpr size_t kStep = 1 << 20;
  if (::fork() == 0) {
    while (true) ::pause();
  }
  for (int64_t taken = 0; taken < kib; taken += kStep / 1024) {
    void* block = ::mmap(nullptr, kStep, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    std::memset(block, 1, kStep);
    pause_ms(1);
  }
  while (true) ::pause();
}

TEST_F(GuardUnderPressure, KillsARealBombWithinOneInterval) {
  options_.limits = {.threshold_kib = 64 << 10, .interval_ms = 20, .wait_ms = 5000};
  int go[2];
  ASSERT_EQ(::pipe(go), 0);
  Victim victim([&] {
    enter("/svc");
    char byte;
    if (::read(go[0], &byte, 1) == 1) bomb(1 << 20);
  });
  show(victim);
  start_inside();
  ASSERT_TRUE(reaches("state", "watching"));
  EXPECT_EQ(told("means"), "cgroup");
  crossing_kib_ = options_.limits.threshold_kib;
  ASSERT_EQ(::write(go[1], "x", 1), 1);
  // Seen by the meter: on a busy machine this thread may not run until all is over.
  EXPECT_EQ(victim.ended_by(20'000), SIGKILL);
  const double seconds = monotonic_s() - crossed_s_;
  RecordProperty("kill_ms", std::to_string(seconds * 1e3));
  EXPECT_EQ(exit_code(), 1);
  EXPECT_EQ(told("reason"), "low-memory");
  // Freed memory shows that all of the cgroup is gone, not the first process only.
  EXPECT_EQ(read_file(v2_ + name_ + "/svc/cgroup.procs"), "");
  // Within one interval: at a megabyte per millisecond the bomb took no more than that many megabytes
  // further. (Twice the interval here, for what a busy test machine adds.)
  EXPECT_GT(std::stoll(told("minimum_kib")), options_.limits.threshold_kib - 2 * 20 * 1024);
  ::close(go[0]);
  ::close(go[1]);
}

TEST_F(GuardUnderPressure, SurvivesAndKillsWithFiveMegabytesFree) {
  options_.limits = {.threshold_kib = 16 << 10, .interval_ms = 50, .wait_ms = 5000};
  Victim victim([&] {
    enter("/svc");
    bomb(0);
  });
  show(victim);
  start_inside();
  ASSERT_TRUE(reaches("state", "watching"));
  // A second process of the service takes all but five megabytes at once, faster than the guard can look.
  Victim eater([&] {
    enter("/svc");
    const auto bytes = static_cast<size_t>(kMachineKib - used_kib() - (5 << 10)) << 10;
    void* block = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    std::memset(block, 1, bytes);
    while (true) ::pause();
  });
  EXPECT_EQ(victim.ended_by(3000), SIGKILL);
  EXPECT_EQ(eater.ended_by(3000), SIGKILL);
  EXPECT_EQ(exit_code(), 1);
  EXPECT_EQ(told("state"), "killed");
  EXPECT_EQ(told("reason"), "low-memory");
  RecordProperty("minimum_kib", told("minimum_kib"));
}

}  // namespace
}  // namespace spark::ops
