#include "common/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "common/error.h"

namespace spark {
namespace {

using Clock = std::chrono::steady_clock;

class PipeEnd {
 public:
  explicit PipeEnd(int fd = -1) : fd_(fd) {}
  PipeEnd(const PipeEnd&) = delete;
  PipeEnd& operator=(const PipeEnd&) = delete;
  ~PipeEnd() { close(); }
  int get() const { return fd_; }
  void reset(int fd) {
    close();
    fd_ = fd;
  }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

struct Pipe {
  PipeEnd read_end;
  PipeEnd write_end;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      throw Error(std::string("cannot create a pipe: ") + std::strerror(errno));
    read_end.reset(ends[0]);
    write_end.reset(ends[1]);
  }
};

// Between fork and exec only async-signal-safe calls; the failure's errno goes to `report`.
[[noreturn]] void become(char* const* argv, const char* directory, int out, int err, int report) {
  ::setpgid(0, 0);
  // The caller may ignore SIGPIPE; the program must not inherit that.
  struct sigaction standard = {};
  standard.sa_handler = SIG_DFL;
  ::sigaction(SIGPIPE, &standard, nullptr);
  const int empty = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const bool ready = (*directory == '\0' || ::chdir(directory) == 0) && ::dup2(empty, 0) == 0 &&
                     ::dup2(out, 1) == 1 && ::dup2(err, 2) == 2;
  if (ready) ::execvp(argv[0], argv);
  const int cause = errno;
  [[maybe_unused]] const auto ignored = ::write(report, &cause, sizeof cause);
  ::_exit(127);
}

class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ < 0) return;
    kill_group();
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  void kill_group() const {
    ::kill(-pid_, SIGKILL);
    ::kill(pid_, SIGKILL);  // the group may not exist yet
  }
  // True once it has ended; `status` is then waitpid's.
  bool ended(int* status) {
    const pid_t result = ::waitpid(pid_, status, WNOHANG);
    if (result == pid_) pid_ = -1;
    return result != 0 && !(result < 0 && errno == EINTR);
  }

 private:
  pid_t pid_;
};

// Appends what can be read now; closes the descriptor at its end.
void drain(PipeEnd& from, std::string& into, size_t limit, const std::string& name) {
  char buffer[65536];
  const ssize_t count = ::read(from.get(), buffer, sizeof buffer);
  if (count > 0) {
    into.append(buffer, static_cast<size_t>(count));
    if (into.size() > limit)
      throw Error("wrote more than " + std::to_string(limit) + " bytes and was stopped", name);
  } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
    from.close();
  }
}

}  // namespace

ProcessResult run_process(const std::vector<std::string>& arguments, const ProcessOptions& options) {
  SPARK_CHECK(!arguments.empty());
  const std::string& name = arguments.front();
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);

  Pipe out, err, report;
  const pid_t pid = ::fork();
  if (pid < 0) throw Error(std::string("cannot be started: ") + std::strerror(errno), name);
  if (pid == 0) {
    become(argv.data(), options.directory.c_str(), out.write_end.get(), err.write_end.get(),
           report.write_end.get());
  }
  Child child(pid);
  out.write_end.close();
  err.write_end.close();
  report.write_end.close();

  int cause = 0;
  ssize_t reported;
  while ((reported = ::read(report.read_end.get(), &cause, sizeof cause)) < 0 && errno == EINTR) {
  }
  if (reported == sizeof cause) {
    throw Error(std::string("cannot be started: ") + std::strerror(cause), name,
                cause == ENOENT ? "install it, or put it on PATH" : "");
  }

  const auto deadline = Clock::now() + std::chrono::duration<double>(options.timeout_s);
  ProcessResult result;
  int status = 0;
  bool ended = false;
  while (!ended || out.read_end.get() >= 0 || err.read_end.get() >= 0) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) {
      throw Error("did not end within " + std::to_string(options.timeout_s) + " s and was stopped", name);
    }
    pollfd waits[2] = {{out.read_end.get(), POLLIN, 0}, {err.read_end.get(), POLLIN, 0}};
    const bool silent = out.read_end.get() < 0 && err.read_end.get() < 0;
    ::poll(waits, 2, static_cast<int>(std::min<long long>(left, silent ? 5 : 100)));
    if (waits[0].revents != 0) drain(out.read_end, result.output, options.max_output_bytes, name);
    if (waits[1].revents != 0) drain(err.read_end, result.error, options.max_output_bytes, name);
    if (!ended) ended = child.ended(&status);
  }
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace spark
