#include "ops/lab/enter.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/child_process.h"
#include "common/process.h"
#include "ops/lab/cgroups.h"

namespace spark::ops {
namespace {

// "0" is the writer itself. A hierarchy that refuses is not worth failing for.
constexpr const char* kEnterGroups =
    "n=$1; shift; while [ $n -gt 0 ]; do echo 0 >\"$1\" 2>/dev/null; shift; n=$((n-1)); done; exec \"$@\"";

std::vector<std::string> in_cgroups(const std::string& group, const std::vector<std::string>& command) {
  const std::vector<std::string> files = Cgroups::find().process_files(group);
  std::vector<std::string> words = {"sh", "-c", kEnterGroups, "sh", std::to_string(files.size())};
  words.insert(words.end(), files.begin(), files.end());
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

Descriptor connect_to(const std::string& address, uint16_t port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in target = {};
  target.sin_family = AF_INET;
  target.sin_port = htons(port);
  ::inet_pton(AF_INET, address.c_str(), &target.sin_addr);
  if (!socket.open() || ::connect(socket.get(), reinterpret_cast<sockaddr*>(&target), sizeof target) != 0)
    throw Error(std::string("connect to port 22: ") + std::strerror(errno), address);
  return socket;
}

bool write_all(int fd, const char* bytes, ssize_t count) {
  while (count > 0) {
    const ssize_t taken = ::write(fd, bytes, static_cast<size_t>(count));
    if (taken < 0 && errno == EINTR) continue;
    if (taken <= 0) return false;
    bytes += taken;
    count -= taken;
  }
  return true;
}

}  // namespace

std::vector<std::string> node_command(const LabState& state, const std::string& node,
                                      const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {
      "nsenter",    "--target",  std::to_string(living_node(state, node).pid),
      "--mount",    "--uts",     "--ipc",
      "--net",      "--pid",     "--wd",
      "env",        "-i",        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
      "HOME=/root", "USER=root", "LC_ALL=C"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return in_cgroups(state.plan.cgroup() + "/" + node + "/host", words);
}

std::vector<std::string> operator_command(const LabState& state, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {"nsenter", "--target", std::to_string(state.network.pid), "--net"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

std::string run_in_node(const LabState& state, const std::string& node, const std::string& script,
                        double timeout_s) {
  const std::vector<std::string> words = node_command(state, node, {"sh", "-s"});
  ProcessResult result;
  try {
    result = run_process(words, {.input = script + "\n", .timeout_s = timeout_s});
  } catch (const Error& error) {
    throw Error(std::string("a command in the node ") + error.what(), node, error.hint());
  }
  if (result.exit_code != 0) {
    throw Error("a command in the node failed: " + (result.error.empty() ? result.output : result.error),
                node);
  }
  return result.output;
}

void join_operator(const LabState& state) {
  Cgroups::find().enter(state.plan.cgroup() + "/network/host", ::getpid());
  const std::string path = "/proc/" + std::to_string(state.network.pid) + "/ns/net";
  const Descriptor network(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!network.open() || ::setns(network.get(), CLONE_NEWNET) != 0)
    throw Error(std::string("cannot enter the lab's network: ") + std::strerror(errno), path, "become root");
}

void connect_node(const LabState& state, const std::string& node) {
  living_node(state, node);
  const std::string address = state.plan.node(node).management_ip;
  join_operator(state);
  const Descriptor socket = connect_to(address, 22);
  bool input_open = true;
  char buffer[65536];
  while (true) {
    pollfd waits[2] = {{socket.get(), POLLIN, 0}, {input_open ? 0 : -1, POLLIN, 0}};
    if (::poll(waits, 2, -1) < 0 && errno != EINTR) return;
    if (waits[0].revents != 0) {
      const ssize_t count = ::read(socket.get(), buffer, sizeof buffer);
      if (count <= 0 || !write_all(1, buffer, count)) return;
    }
    if (waits[1].revents != 0) {
      const ssize_t count = ::read(0, buffer, sizeof buffer);
      if (count > 0) {
        if (!write_all(socket.get(), buffer, count)) return;
      } else {
        input_open = false;
        ::shutdown(socket.get(), SHUT_WR);
      }
    }
  }
}

}  // namespace spark::ops
