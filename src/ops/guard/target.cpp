#include "ops/guard/target.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>

#include <cerrno>
#include <utility>

#include "ops/guard/files.h"

namespace spark::ops {
namespace {

constexpr int64_t kEngineTimeoutMs = 1000;
constexpr int64_t kStrikeAgainMs = 20;

// Whether killing the members of `service` would kill somebody in `own` as well.
bool holds(std::string_view service, std::string_view own) {
  if (service.empty() || service == "/") return true;
  return own == service ||
         (own.starts_with(service) && own.size() > service.size() && own[service.size()] == '/');
}

void trim_end(std::string_view& text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
}

}  // namespace

GuardTarget::GuardTarget(const GuardOptions& options) : options_(options) {
  const std::string_view root = options.root.view();
  const std::string_view mounts = read_path(joined(root, "/proc/self/mounts").c_str());
  v2_mount_ = joined(root, cgroup_v2_mount(mounts));
  if (cgroup_v2_mount(mounts).empty()) v2_mount_.clear();
  // Without v2 the members of a v1 hierarchy are killed one by one.
  for (const char* controller : {"pids", "memory", "freezer"}) {
    const std::string_view mount = cgroup_v1_mount(mounts, controller);
    if (!v1_mount_.empty() || mount.empty()) continue;
    v1_mount_ = joined(root, mount);
    v1_mount_.add("\n").add(controller);  // both in one text: mount points have no newline
  }
  own_cgroup_.add(read_path("/proc/self/cgroup"));
}

TargetSeen GuardTarget::look() {
  if (held()) return look_again();
  for (const auto search : {&GuardTarget::look_for_unit, &GuardTarget::look_for_pid_file}) {
    const TargetSeen seen = (this->*search)();
    if (seen == TargetSeen::kRunning) return seen;
  }
  return look_for_container();
}

// The process that was first may end before the others of its cgroup.
TargetSeen GuardTarget::look_again() {
  if (!process_ended()) return TargetSeen::kRunning;
  if (!members_file_.open()) return TargetSeen::kNotRunning;
  const int64_t next = leading_number(read_again(members_file_.get()));
  if (next <= 0 || next == pid_) return TargetSeen::kNotRunning;
  Descriptor process(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(next), 0)));
  if (!process.open())
    return errno == ESRCH || errno == EINVAL ? TargetSeen::kNotRunning : TargetSeen::kUnknown;
  process_ = std::move(process);
  pid_ = next;
  return process_ended() ? TargetSeen::kNotRunning : TargetSeen::kRunning;
}

// A unit's cgroup exists as long as it has processes.
TargetSeen GuardTarget::look_for_unit() {
  if (v2_mount_.empty()) return TargetSeen::kNotRunning;
  PathText path = joined(v2_mount_.view(), "/system.slice/", options_.service.view());
  path.add(".service/cgroup.procs");
  const int64_t pid = leading_number(read_path(path.c_str()));
  return pid > 0 ? hold(pid, "unit") : TargetSeen::kNotRunning;
}

TargetSeen GuardTarget::look_for_pid_file() {
  if (options_.pid_file.empty()) return TargetSeen::kNotRunning;
  const int64_t pid = leading_number(read_path(options_.pid_file.c_str()));
  // No service is the system's first process: who wrote that wrote no process id, and the guard would kill
  // it.
  return pid > 1 ? hold(pid, "pid-file") : TargetSeen::kNotRunning;
}

TargetSeen GuardTarget::look_for_container() {
  if (options_.docker_socket.empty()) return TargetSeen::kNotRunning;
  FixedText<512> request;
  request.add("GET /containers/").add(options_.service.view()).add("/json HTTP/1.0\r\nHost: docker\r\n\r\n");
  const std::string_view answer = ask_socket(options_.docker_socket.view(), request.view(), kEngineTimeoutMs);
  if (answer.data() == nullptr) return TargetSeen::kUnknown;
  const ContainerState state = container_state(answer);
  if (!state.valid) return TargetSeen::kUnknown;
  return state.running ? hold(state.pid, "container") : TargetSeen::kNotRunning;
}

TargetSeen GuardTarget::hold(int64_t pid, const char* kind) {
  process_.reset(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)));
  if (!process_.open())
    return errno == ESRCH || errno == EINVAL ? TargetSeen::kNotRunning : TargetSeen::kUnknown;
  pid_ = pid;
  kind_ = kind;
  may_signal_ = ::syscall(SYS_pidfd_send_signal, process_.get(), 0, nullptr, 0) == 0;
  open_cgroup(pid);
  means_ = kill_file_.open()                     ? "cgroup"
           : members_file_.open() && may_signal_ ? "members"
           : may_signal_                         ? "process"
                                                 : "engine";
  return process_ended() ? TargetSeen::kNotRunning : TargetSeen::kRunning;
}

void GuardTarget::open_cgroup(int64_t pid) {
  PathText name = joined(options_.root.view(), "/proc/");
  name.add_number(pid).add("/cgroup");
  const FixedText<4096> membership(read_path(name.c_str()));
  const std::string_view v2 = cgroup_v2_path(membership.view());
  if (!v2_mount_.empty() && !holds(v2, cgroup_v2_path(own_cgroup_.view()))) {
    kill_file_ = open_path(joined(v2_mount_.view(), v2, "/cgroup.kill").c_str(), O_WRONLY);
    members_file_ = open_path(joined(v2_mount_.view(), v2, "/cgroup.procs").c_str(), O_RDONLY);
    return;
  }
  const size_t end = v1_mount_.view().find('\n');
  if (end == std::string_view::npos) return;
  const std::string_view controller = v1_mount_.view().substr(end + 1);
  const std::string_view v1 = cgroup_v1_path(membership.view(), controller);
  if (holds(v1, cgroup_v1_path(own_cgroup_.view(), controller))) return;
  members_file_ = open_path(joined(v1_mount_.view().substr(0, end), v1, "/cgroup.procs").c_str(), O_RDONLY);
}

bool GuardTarget::process_ended() const {
  pollfd wait = {process_.get(), POLLIN, 0};
  return ::poll(&wait, 1, 0) > 0 && (wait.revents & POLLIN) != 0;
}

bool GuardTarget::members_gone() {
  if (!members_file_.open()) return true;
  std::string_view members = read_again(members_file_.get());
  trim_end(members);
  return members.empty();  // also when the cgroup was removed
}

void GuardTarget::strike() {
  if (kill_file_.open()) {
    [[maybe_unused]] const auto written = ::pwrite(kill_file_.get(), "1", 1, 0);
  }
  if (may_signal_) ::syscall(SYS_pidfd_send_signal, process_.get(), SIGKILL, nullptr, 0);
  if (kill_file_.open() || !members_file_.open() || !may_signal_) return;
  // Each member is looked up and killed at once; who was born meanwhile is met by the next strike.
  std::string_view members = read_again(members_file_.get());
  while (!members.empty()) {
    const int64_t pid = leading_number(members);
    if (pid > 1) ::kill(static_cast<pid_t>(pid), SIGKILL);
    const size_t end = members.find('\n');
    members = end == std::string_view::npos ? std::string_view() : members.substr(end + 1);
  }
}

bool GuardTarget::kill(int64_t patience_ms) {
  if (!held()) return true;
  const int64_t deadline = now_ms() + patience_ms;
  bool asked = false;
  do {
    strike();
    pollfd wait = {process_.get(), POLLIN, 0};
    ::poll(&wait, 1, static_cast<int>(kStrikeAgainMs));
    if (process_ended() && members_gone()) return true;
    if (may_signal_ || kill_file_.open() || asked || options_.docker_socket.empty()) continue;
    // The last resort: this user may do nothing but ask.
    asked = true;
    FixedText<512> request;
    request.add("POST /containers/").add(options_.service.view());
    request.add("/kill?signal=KILL HTTP/1.0\r\nHost: docker\r\nContent-Length: 0\r\n\r\n");
    ask_socket(options_.docker_socket.view(), request.view(), kEngineTimeoutMs);
  } while (now_ms() < deadline);
  return process_ended() && members_gone();
}

}  // namespace spark::ops
