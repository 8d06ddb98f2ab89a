#include "ops/lab/holder.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/clock.h"
#include "common/error.h"

namespace spark::ops {
namespace {

struct Ends {
  Descriptor read_end;
  Descriptor write_end;
  Ends() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      throw Error(std::string("cannot create a pipe: ") + std::strerror(errno));
    read_end.reset(ends[0]);
    write_end.reset(ends[1]);
  }
};

constexpr char kEnd = '\0';
constexpr const char* kReady = "ready";

void say(int fd, const std::string& text) {
  [[maybe_unused]] const auto ignored = ::write(fd, text.data(), text.size());
}

// True for the wanted byte; false when the other side has gone.
bool await_order(int fd, char wanted) {
  char order = 0;
  ssize_t count;
  while ((count = ::read(fd, &order, 1)) < 0 && errno == EINTR) {
  }
  return count == 1 && order == wanted;
}

void redirect_streams(const std::string& log) {
  const int in = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (in < 0 || out < 0) ::_exit(1);
  ::dup2(in, 0);
  ::dup2(out, 1);
  ::dup2(out, 2);
}

void close_all_but(int a, int b) {
  const int low = std::min(a, b);
  const int high = std::max(a, b);
  if (low > 3) ::syscall(SYS_close_range, 3u, static_cast<unsigned>(low - 1), 0u);
  if (high > low + 1)
    ::syscall(SYS_close_range, static_cast<unsigned>(low + 1), static_cast<unsigned>(high - 1), 0u);
  ::syscall(SYS_close_range, static_cast<unsigned>(high + 1), ~0u, 0u);
}

// What the first process of a namespace has to do for ever: adopt and bury.
[[noreturn]] void live(const std::function<void()>& tick, int orders, int reports) {
  while (true) {
    pollfd wait = {orders, POLLIN, 0};
    ::poll(&wait, 1, tick ? 100 : 1000);
    if (wait.revents != 0) {
      if (!await_order(orders, 'k')) ::_exit(0);  // `lab up` died
      ::prctl(PR_SET_PDEATHSIG, 0);
      ::close(reports);  // the caller waits for this before it may end
      ::close(orders);
      orders = -1;
    }
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (tick) tick();
  }
}

[[noreturn]] void be_holder(const std::string& name, const HolderWork& work, int orders, int reports) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::prctl(PR_SET_NAME, ("lab-" + name).c_str());
  close_all_but(orders, reports);
  if (::chdir("/") != 0) ::_exit(1);
  if (!await_order(orders, 'b')) ::_exit(0);
  ::setsid();
  redirect_streams(work.log);
  try {
    if (work.setup) work.setup();
  } catch (const std::exception& error) {
    const auto* ours = dynamic_cast<const Error*>(&error);
    say(reports, (ours != nullptr ? ours->describe() : std::string(error.what())) + std::string(1, kEnd));
    ::_exit(1);
  }
  say(reports, kReady + std::string(1, kEnd));
  live(work.tick, orders, reports);
}

}  // namespace

Holder start_holder(const std::string& name, bool whole_node, const HolderWork& work) {
  Ends orders, reports;
  unsigned long flags = CLONE_NEWNET | CLONE_NEWPID | SIGCHLD;
  if (whole_node) flags |= CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC;
  const long pid = ::syscall(SYS_clone, flags, nullptr, nullptr, nullptr, nullptr);
  if (pid < 0) {
    throw Error(std::string("cannot create namespaces: ") + std::strerror(errno), name,
                "spark lab needs root and a kernel that allows namespaces");
  }
  if (pid == 0) be_holder(name, work, orders.read_end.get(), reports.write_end.get());
  Holder holder;
  holder.name_ = name;
  holder.identity_ = identify_process(static_cast<pid_t>(pid)).value_or(ProcessIdentity{});
  holder.identity_.pid = static_cast<pid_t>(pid);
  holder.orders_ = std::move(orders.write_end);
  holder.reports_ = std::move(reports.read_end);
  return holder;
}

Holder::~Holder() {
  if (released_ || identity_.pid <= 0 || !orders_.open()) return;
  ::kill(identity_.pid, SIGKILL);
  while (::waitpid(identity_.pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Holder::begin() {
  say(orders_.get(), "b");
}

// What the other side reports up to the end mark, or up to its end.
std::string Holder::report(double timeout_s) {
  std::string text;
  for (const double end = monotonic_s() + timeout_s; !text.ends_with(kEnd);) {
    const double left = end - monotonic_s();
    if (left <= 0) throw Error("its first process does not answer", name_);
    pollfd wait = {reports_.get(), POLLIN, 0};
    if (::poll(&wait, 1, static_cast<int>(left * 1000) + 1) <= 0) continue;
    char buffer[4096];
    const ssize_t count = ::read(reports_.get(), buffer, sizeof buffer);
    if (count <= 0) return text;
    text.append(buffer, static_cast<size_t>(count));
  }
  text.pop_back();
  return text;
}

void Holder::wait_ready(double timeout_s) {
  const std::string said = report(timeout_s);
  if (said != kReady) throw Error(said.empty() ? "its first process died during setup" : said, name_);
}

void Holder::release() {
  say(orders_.get(), "k");
  report(5);  // ends once the death signal is off
  released_ = true;
}

}  // namespace spark::ops
