#include "child_ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/clock.h"
#include "common/error.h"

namespace spark::app {
namespace {

constexpr const char* kThisProgram = "/proc/self/exe";
constexpr useconds_t kLookUs = 10000;

// Between fork and exec only async-signal-safe calls.
[[noreturn]] void become(char* const* argv, pid_t parent) {
  // A stopped child wakes when its parent ends, finds the group gone and ends too.
  ::prctl(PR_SET_PDEATHSIG, SIGCONT);
  if (::getppid() != parent) ::_exit(1);
  struct sigaction standard = {};
  standard.sa_handler = SIG_DFL;
  ::sigaction(SIGPIPE, &standard, nullptr);
  const int empty = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::dup2(empty, 0);
  ::close_range(3, ~0U, 0);  // the server's sockets are not the child's
  ::execv(kThisProgram, argv);
  ::_exit(127);
}

std::string how(int status) {
  if (WIFSIGNALED(status)) return "was ended by signal " + std::to_string(WTERMSIG(status));
  return "ended with exit code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

ChildRanks::~ChildRanks() {
  kill_all();
  wait(1);
}

void ChildRanks::start(int32_t rank, const std::vector<std::string>& more) {
  std::vector<std::string> words = {"spark-engine"};
  words.insert(words.end(), arguments_.begin(), arguments_.end());
  words.insert(words.end(), more.begin(), more.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    throw Error(std::string("cannot be started: ") + std::strerror(errno), "rank " + std::to_string(rank));
  }
  if (pid == 0) become(argv.data(), parent);
  const std::lock_guard lock(mutex_);
  children_.push_back({.rank = rank, .pid = pid});
}

// Under the lock.
void ChildRanks::look() {
  for (Child& child : children_) {
    if (!child.ended && ::waitpid(child.pid, &child.status, WNOHANG) == child.pid) child.ended = true;
  }
}

std::string ChildRanks::ended() {
  const std::lock_guard lock(mutex_);
  look();
  for (const Child& child : children_) {
    if (child.ended) return "rank " + std::to_string(child.rank) + " " + how(child.status);
  }
  return {};
}

bool ChildRanks::wait(double timeout_s) {
  const double until = monotonic_s() + timeout_s;
  const std::lock_guard lock(mutex_);
  const auto all_ended = [&] {
    look();
    return std::all_of(children_.begin(), children_.end(), [](const Child& child) { return child.ended; });
  };
  while (!all_ended() && monotonic_s() < until) ::usleep(kLookUs);
  for (const Child& child : children_) {
    if (!child.ended) ::kill(child.pid, SIGKILL);
  }
  while (!all_ended()) ::usleep(kLookUs);
  return std::all_of(children_.begin(), children_.end(), [](const Child& child) {
    return WIFEXITED(child.status) && WEXITSTATUS(child.status) == 0;
  });
}

void ChildRanks::kill_all() {
  const std::lock_guard lock(mutex_);
  look();
  for (const Child& child : children_) {
    if (!child.ended) ::kill(child.pid, SIGKILL);
  }
}

}  // namespace spark::app
