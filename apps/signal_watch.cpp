#include "signal_watch.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "common/error.h"

namespace spark::app {
namespace {

// A signal handler can reach nothing but globals.
std::atomic<int> g_signal_fd{-1};

bool is_ignored(int signal) {
  struct sigaction action = {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

void set_handler(void (*handler)(int), bool hangup) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  if (hangup && !is_ignored(SIGHUP)) ::sigaction(SIGHUP, &action, nullptr);
}

void tell(int signal) {
  const int saved = errno;
  const char byte = signal == SIGHUP ? 'h' : 's';
  [[maybe_unused]] const auto written = ::write(g_signal_fd.load(), &byte, 1);
  errno = saved;
}

}  // namespace

SignalWatch::SignalWatch(std::function<void(int)> on_signal, Until until) : until_(until) {
  if (::pipe2(pipe_, O_CLOEXEC) != 0)
    throw Error(std::string("cannot create a pipe: ") + std::strerror(errno));
  g_signal_fd = pipe_[1];
  thread_ = std::thread([fd = pipe_[0], on_signal = std::move(on_signal)] {
    int count = 0;
    char byte = 0;
    for (;;) {
      const ssize_t got = ::read(fd, &byte, 1);
      if (got < 0 && errno == EINTR) continue;
      if (got != 1 || byte == 'e') return;
      if (byte == 'h' && count > 0) continue;
      on_signal(++count);
    }
  });
  set_handler(tell, until_ == Until::kProcessEnds);
}

SignalWatch::~SignalWatch() {
  set_handler(until_ == Until::kProcessEnds ? SIG_IGN : SIG_DFL, until_ == Until::kProcessEnds);
  const char byte = 'e';
  [[maybe_unused]] const auto written = ::write(pipe_[1], &byte, 1);
  thread_.join();
  g_signal_fd = -1;
  ::close(pipe_[0]);
  ::close(pipe_[1]);
}

}  // namespace spark::app
