// A spark-engine as a process, what it prints, and a client of it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace spark::e2e {

double now_s();
uint16_t free_port();

class EngineProcess {
 public:
  // Starts the program at once; its output goes to files below `folder`.
  EngineProcess(const std::vector<std::string>& command, const std::string& folder, const std::string& name);
  // Kills what is left.
  ~EngineProcess();
  EngineProcess(const EngineProcess&) = delete;
  EngineProcess& operator=(const EngineProcess&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  std::vector<pid_t> children() const;

  // Waits for the line "listening on http://HOST:PORT"; 0 when the process ends or the time is up.
  uint16_t wait_for_port(double timeout_s = 60);
  bool wait_for_message(const std::string& text, double timeout_s = 60);
  // The exit code (128 + number for a signal), or nullopt when it still runs then.
  std::optional<int> wait(double timeout_s);
  bool ended();

  std::string output() const;
  std::string messages() const;  // standard error

 private:
  const std::string out_path_;
  const std::string err_path_;
  pid_t pid_ = -1;
  std::optional<int> exit_code_;
};

// Where a process listens for TCP connections: "0100007F" is 127.0.0.1, as in /proc/net/tcp.
std::vector<std::string> listening_addresses(pid_t pid);
// What `ps -e` calls it.
std::string name_of(pid_t pid);

// True when no process has that id, or only one that has ended.
bool is_gone(pid_t pid);

// POST /v1/completions; streamed answers are read on a thread.
class CompletionStream {
 public:
  CompletionStream(uint16_t port, const std::string& body);
  ~CompletionStream();
  // Until so many bytes came, or the end.
  bool wait_for(size_t bytes, double timeout_s);
  bool wait_for_end(double timeout_s);
  std::string text() const;
  double ended_at() const { return ended_at_; }

 private:
  int socket_ = -1;
  mutable std::mutex mutex_;
  std::string text_;
  std::atomic<bool> ended_{false};
  std::atomic<double> ended_at_{0};
  std::thread thread_;
};

// The "text" members of a whole answer, or the answer itself when it has none.
std::string complete(uint16_t port, const std::string& prompt, int tokens);

// Forwards connections to a port; can cut them, or stop forwarding without a sign.
class CuttableWire {
 public:
  explicit CuttableWire(uint16_t to);
  ~CuttableWire();
  uint16_t port() const { return port_; }
  void cut();
  void go_silent() { silent_ = true; }

 private:
  void run();
  const uint16_t to_;
  uint16_t port_ = 0;
  int listener_ = -1;
  std::atomic<bool> ending_{false};
  std::atomic<bool> cut_{false};
  std::atomic<bool> silent_{false};
  std::thread thread_;
};

}  // namespace spark::e2e
