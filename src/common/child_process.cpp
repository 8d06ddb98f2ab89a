#include "common/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/error.h"

extern char** environ;

namespace spark {
namespace {

struct Pipe {
  Descriptor read_end;
  Descriptor write_end;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      throw Error(std::string("cannot create a pipe: ") + std::strerror(errno));
    read_end.reset(ends[0]);
    write_end.reset(ends[1]);
  }
};

struct Image {
  char* const* argv;
  char* const* envp;
  const char* directory;
  int in;  // -1: empty
  int out;
  int err;
  int report;
};

// Between fork and exec only async-signal-safe calls; the failure's errno goes to `report`.
[[noreturn]] void become(const Image& image) {
  ::setpgid(0, 0);
  // The caller may ignore or block signals; the program must not inherit that.
  struct sigaction standard = {};
  standard.sa_handler = SIG_DFL;
  ::sigaction(SIGPIPE, &standard, nullptr);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int in = image.in >= 0 ? image.in : ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const bool ready = (*image.directory == '\0' || ::chdir(image.directory) == 0) && ::dup2(in, 0) == 0 &&
                     ::dup2(image.out, 1) == 1 && ::dup2(image.err, 2) == 2;
  if (ready) ::execvpe(image.argv[0], image.argv, image.envp);
  const int cause = errno;
  [[maybe_unused]] const auto ignored = ::write(image.report, &cause, sizeof cause);
  ::_exit(127);
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> result;
  result.reserve(words.size() + 1);  // the caller adds the closing null
  for (const std::string& word : words) result.push_back(const_cast<char*>(word.c_str()));
  return result;
}

std::string_view name_of(const char* assignment) {
  const std::string_view text(assignment);
  return text.substr(0, text.find('='));
}

// This process's environment with the given assignments over it.
std::vector<char*> environment_with(const std::vector<std::string>& added) {
  std::vector<char*> result;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    bool replaced = false;
    for (const std::string& assignment : added) replaced |= name_of(assignment.c_str()) == name_of(*entry);
    if (!replaced) result.push_back(*entry);
  }
  for (char* assignment : pointers(added)) result.push_back(assignment);
  result.push_back(nullptr);
  return result;
}

void make_non_blocking(int fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

// write(2) that reports a closed reader as EPIPE without the signal, whatever this thread's mask is.
ssize_t write_quietly(int fd, std::string_view bytes) {
  sigset_t pipe, before, pending;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  sigpending(&pending);
  const bool was_pending = sigismember(&pending, SIGPIPE) == 1;
  ::pthread_sigmask(SIG_BLOCK, &pipe, &before);
  const ssize_t count = ::write(fd, bytes.data(), bytes.size());
  const int cause = errno;
  if (count < 0 && cause == EPIPE && !was_pending) {
    const timespec now = {0, 0};
    while (::sigtimedwait(&pipe, nullptr, &now) < 0 && errno == EINTR) {
    }
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = cause;
  return count;
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& arguments, const ChildOptions& options) {
  SPARK_CHECK(!arguments.empty());
  const std::string& name = arguments.front();
  std::vector<char*> argv = pointers(arguments);
  argv.push_back(nullptr);
  const std::vector<char*> envp = environment_with(options.environment);

  Pipe out, err, report;
  Descriptor in_read;
  if (options.with_input) {
    Pipe in;
    in_read = std::move(in.read_end);
    input_ = std::move(in.write_end);
  }
  pid_ = ::fork();
  if (pid_ < 0) throw Error(std::string("cannot be started: ") + std::strerror(errno), name);
  if (pid_ == 0) {
    become({argv.data(), envp.data(), options.directory.c_str(), in_read.get(), out.write_end.get(),
            err.write_end.get(), report.write_end.get()});
  }
  report.write_end.close();

  int cause = 0;
  ssize_t reported;
  while ((reported = ::read(report.read_end.get(), &cause, sizeof cause)) < 0 && errno == EINTR) {
  }
  if (reported == sizeof cause) {
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    throw Error(std::string("cannot be started: ") + std::strerror(cause), name,
                cause == ENOENT ? "install it, or put it on PATH" : "");
  }
  output_ = std::move(out.read_end);
  error_ = std::move(err.read_end);
  make_non_blocking(output_.get());
  make_non_blocking(error_.get());
  if (input_.open()) make_non_blocking(input_.get());
  pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
}

ChildProcess::~ChildProcess() {
  if (pid_ < 0) return;
  if (!ended_ || !spared_) signal_group(SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void ChildProcess::signal_group(int signal) const {
  ::kill(-pid_, signal);
  ::kill(pid_, signal);  // the group may not exist yet
}

// Looks without reaping: as long as the leader is a zombie, its number and its group's cannot be given to
// somebody else, so the destructor's signal reaches exactly what is left of the group.
bool ChildProcess::ended() {
  if (ended_) return true;
  siginfo_t info = {};
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0) return false;
  if (info.si_pid == 0) return false;
  ended_ = true;
  exit_code_ = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
  return true;
}

size_t ChildProcess::write_input(std::string_view bytes) {
  size_t taken = 0;
  while (taken < bytes.size() && input_.open()) {
    const ssize_t count = write_quietly(input_.get(), bytes.substr(taken));
    if (count >= 0) {
      taken += static_cast<size_t>(count);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      input_.close();
    }
  }
  return taken;
}

bool ChildProcess::drain(Descriptor& from, std::string& into, size_t limit) {
  if (!from.open()) return true;
  char buffer[65536];
  const ssize_t count = ::read(from.get(), buffer, sizeof buffer);
  if (count > 0) {
    const size_t room = limit - std::min(limit, into.size());
    into.append(buffer, std::min(room, static_cast<size_t>(count)));
    return static_cast<size_t>(count) <= room;
  }
  if (count == 0 || (errno != EAGAIN && errno != EINTR)) from.close();
  return true;
}

}  // namespace spark
