// SIGINT and SIGTERM as calls of a function on a thread of its own. One at a time in a process.
//
//   SignalWatch watch([](int count) { ... });     // the first signal: 1
#pragma once

#include <functional>
#include <thread>

namespace spark::app {

class SignalWatch {
 public:
  explicit SignalWatch(std::function<void(int count)> on_signal);
  // Signals have their standard effect again.
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

 private:
  int pipe_[2];
  std::thread thread_;
};

}  // namespace spark::app
