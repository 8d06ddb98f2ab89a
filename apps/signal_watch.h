// SIGINT and SIGTERM as calls of a function on a thread of its own. One at a time in a process.
//
//   SignalWatch watch([](int count) { ... });     // the first signal: 1
//   SignalWatch watch([](int count) { ... }, SignalWatch::Until::kProcessEnds);
#pragma once

#include <functional>
#include <thread>

namespace spark::app {

class SignalWatch {
 public:
  enum class Until {
    kDestroyed,    // then signals have their standard effect again
    kProcessEnds,  // then signals have none, so that a late one does not spoil the exit code; SIGHUP too,
                   // which counts as the first signal or not at all (a closed terminal sends it twice), and
                   // not where it was ignored from the start (nohup)
  };
  explicit SignalWatch(std::function<void(int count)> on_signal, Until until = Until::kDestroyed);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

 private:
  const Until until_;
  int pipe_[2];
  std::thread thread_;
};

}  // namespace spark::app
