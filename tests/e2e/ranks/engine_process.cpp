#include "e2e/ranks/engine_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>

namespace spark::e2e {
namespace {

using namespace std::chrono_literals;

bool until(double timeout_s, const std::function<bool()>& condition) {
  const double end = now_s() + timeout_s;
  while (!condition()) {
    if (now_s() > end) return condition();
    std::this_thread::sleep_for(5ms);
  }
  return true;
}

std::string content(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int connect_to(uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
  ::close(fd);
  return -1;
}

// -1 when somebody has the port.
int listen_at(uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 && ::listen(fd, 16) == 0)
    return fd;
  ::close(fd);
  return -1;
}

int listen_anywhere(uint16_t& port) {
  const int fd = listen_at(0);
  sockaddr_in address = {};
  socklen_t length = sizeof address;
  if (fd < 0 || ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    throw std::runtime_error("cannot listen");
  port = ntohs(address.sin_port);
  return fd;
}

}  // namespace

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Not one that the system gives to outgoing connections: before it is used, somebody's might get it.
uint16_t free_port() {
  static std::mt19937 random(std::random_device{}());
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const auto port = static_cast<uint16_t>(std::uniform_int_distribution<>(12000, 32000)(random));
    const int fd = listen_at(port);
    if (fd < 0) continue;
    ::close(fd);
    return port;
  }
  throw std::runtime_error("no port is free");
}

EngineProcess::EngineProcess(const std::vector<std::string>& command, const std::string& folder,
                             const std::string& name)
    : out_path_(folder + "/" + name + ".out"), err_path_(folder + "/" + name + ".err") {
  const int out = ::open(out_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const int err = ::open(err_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (out < 0 || err < 0) throw std::runtime_error("cannot write " + err_path_ + ": " + std::strerror(errno));
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(out, 1);
    ::dup2(err, 2);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(out);
  ::close(err);
  if (pid_ < 0) throw std::runtime_error("cannot fork");
}

EngineProcess::~EngineProcess() {
  if (ended()) return;
  const auto left = children();
  signal(SIGKILL);
  wait(10);
  for (const pid_t child : left) ::kill(child, SIGKILL);
}

void EngineProcess::signal(int number) const {
  ::kill(pid_, number);
}

std::vector<pid_t> EngineProcess::children() const {
  const std::string process = std::to_string(pid_);
  std::istringstream list(content("/proc/" + process + "/task/" + process + "/children"));
  std::vector<pid_t> pids;
  for (pid_t pid = 0; list >> pid;) pids.push_back(pid);
  return pids;
}

bool EngineProcess::ended() {
  int status = 0;
  if (!exit_code_ && ::waitpid(pid_, &status, WNOHANG) == pid_) {
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return exit_code_.has_value();
}

std::optional<int> EngineProcess::wait(double timeout_s) {
  until(timeout_s, [this] { return ended(); });
  return exit_code_;
}

uint16_t EngineProcess::wait_for_port(double timeout_s) {
  const std::string mark = "listening on http://";
  uint16_t port = 0;
  until(timeout_s, [&] {
    const std::string text = output();
    const size_t at = text.find(mark);
    if (at != std::string::npos && text.find('\n', at) != std::string::npos) {
      port = static_cast<uint16_t>(std::stoi(text.substr(text.find(':', at + mark.size()) + 1)));
    }
    return port != 0 || ended();
  });
  return port;
}

bool EngineProcess::wait_for_message(const std::string& text, double timeout_s) {
  return until(timeout_s, [&] { return messages().find(text) != std::string::npos; });
}

std::string EngineProcess::output() const {
  return content(out_path_);
}
std::string EngineProcess::messages() const {
  return content(err_path_);
}

std::vector<std::string> listening_addresses(pid_t pid) {
  const std::string process = "/proc/" + std::to_string(pid);
  std::set<std::string> sockets;  // "socket:[4026]"
  std::error_code none;
  for (const auto& fd : std::filesystem::directory_iterator(process + "/fd", none)) {
    sockets.insert(std::filesystem::read_symlink(fd.path(), none).string());
  }
  std::vector<std::string> addresses;
  for (const char* table : {"/net/tcp", "/net/tcp6"}) {
    std::istringstream lines(content(process + table));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string number, local, remote, state, skipped, inode;
      words >> number >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) words >> skipped;
      words >> inode;
      if (state == "0A" && sockets.contains("socket:[" + inode + "]")) {
        addresses.push_back(local.substr(0, local.find(':')));
      }
    }
  }
  return addresses;
}

std::string name_of(pid_t pid) {
  const std::string name = content("/proc/" + std::to_string(pid) + "/comm");
  return name.substr(0, name.find('\n'));
}

bool is_gone(pid_t pid) {
  if (::kill(pid, 0) != 0) return true;
  const std::string status = content("/proc/" + std::to_string(pid) + "/stat");
  const size_t state = status.rfind(") ");
  return status.empty() || (state != std::string::npos && status[state + 2] == 'Z');
}

CompletionStream::CompletionStream(uint16_t port, const std::string& body) : socket_(connect_to(port)) {
  const std::string request =
      "POST /v1/completions HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Type: application/json\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body;
  if (socket_ >= 0) {
    [[maybe_unused]] const auto sent = ::send(socket_, request.data(), request.size(), MSG_NOSIGNAL);
  }
  thread_ = std::thread([this] {
    char buffer[4096];
    ssize_t got = 0;
    while (socket_ >= 0 && (got = ::recv(socket_, buffer, sizeof buffer, 0)) > 0) {
      const std::lock_guard lock(mutex_);
      text_.append(buffer, static_cast<size_t>(got));
    }
    ended_at_ = now_s();
    ended_ = true;
  });
}

CompletionStream::~CompletionStream() {
  if (socket_ >= 0) ::shutdown(socket_, SHUT_RDWR);
  thread_.join();
  if (socket_ >= 0) ::close(socket_);
}

bool CompletionStream::wait_for(size_t bytes, double timeout_s) {
  return until(timeout_s, [&] { return text().size() >= bytes || ended_; });
}

bool CompletionStream::wait_for_end(double timeout_s) {
  return until(timeout_s, [&] { return ended_.load(); });
}

std::string CompletionStream::text() const {
  const std::lock_guard lock(mutex_);
  return text_;
}

std::string complete(uint16_t port, const std::string& prompt, int tokens) {
  CompletionStream stream(port, R"({"prompt":")" + prompt + R"(","max_tokens":)" + std::to_string(tokens) +
                                    R"(,"temperature":0,"ignore_eos":true})");
  if (!stream.wait_for_end(60)) return "no answer";
  const std::string answer = stream.text();
  const size_t begin = answer.find("\"text\":");
  const size_t end = answer.find("\"logprobs\"");
  return begin == std::string::npos || end == std::string::npos ? answer : answer.substr(begin, end - begin);
}

CuttableWire::CuttableWire(uint16_t to) : to_(to), listener_(listen_anywhere(port_)) {
  thread_ = std::thread([this] {
    // A cable needs no processor: on a loaded machine this thread must not look like a broken one.
    const sched_param least{.sched_priority = 1};
    ::sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &least);
    run();
  });
}

CuttableWire::~CuttableWire() {
  ending_ = true;
  thread_.join();
  ::close(listener_);
}

void CuttableWire::cut() {
  cut_ = true;
}

void CuttableWire::run() {
  struct Pair {
    int ends[2];
  };
  std::vector<Pair> pairs;
  const auto drop = [](const Pair& pair) {
    for (const int end : pair.ends) {
      const linger hard{1, 0};  // a reset, as when a cable's switch forgets the connection
      ::setsockopt(end, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
      ::close(end);
    }
  };
  char buffer[65536];
  while (!ending_) {
    if (cut_) {
      for (const Pair& pair : pairs) drop(pair);
      pairs.clear();
    }
    std::vector<pollfd> waits = {{listener_, POLLIN, 0}};
    for (const Pair& pair : pairs) {
      for (const int end : pair.ends) waits.push_back({end, POLLIN, 0});
    }
    ::poll(waits.data(), silent_ ? 0 : waits.size(), 10);
    if (silent_ || cut_) continue;
    std::vector<size_t> ended;
    for (size_t i = 0; i < pairs.size(); ++i) {
      for (size_t side = 0; side < 2; ++side) {
        if (waits[1 + 2 * i + side].revents == 0) continue;
        const ssize_t got = ::recv(pairs[i].ends[side], buffer, sizeof buffer, MSG_DONTWAIT);
        if (got > 0) {
          [[maybe_unused]] const auto sent =
              ::send(pairs[i].ends[1 - side], buffer, static_cast<size_t>(got), MSG_NOSIGNAL);
        } else if (ended.empty() || ended.back() != i) {
          ended.push_back(i);
        }
      }
    }
    for (auto i = ended.rbegin(); i != ended.rend(); ++i) {
      drop(pairs[*i]);
      pairs.erase(pairs.begin() + static_cast<std::ptrdiff_t>(*i));
    }
    if (waits[0].revents != 0) {
      const int from = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      const int to = from < 0 ? -1 : connect_to(to_);
      if (to >= 0) {
        pairs.push_back({{from, to}});
      } else if (from >= 0) {
        ::close(from);
      }
    }
  }
  for (const Pair& pair : pairs) drop(pair);
}

}  // namespace spark::e2e
