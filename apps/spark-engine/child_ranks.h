// The ranks that the first process of a machine starts: copies of this program that end with it.
//
//   ChildRanks children;
//   children.start({"--local-rank", "1", "--master-port", "29501"}, 1);
//   children.ended();             // "rank 1 ended with exit code 1"; empty while all run
//   children.wait(5);             // kills what has not ended by then
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace spark::app {

class ChildRanks {
 public:
  // `arguments` are this process's, without the program's name.
  explicit ChildRanks(std::vector<std::string> arguments) : arguments_(std::move(arguments)) {}
  // Kills what still runs.
  ~ChildRanks();
  ChildRanks(const ChildRanks&) = delete;
  ChildRanks& operator=(const ChildRanks&) = delete;

  // With this process's arguments, then these. Throws Error.
  void start(int32_t rank, const std::vector<std::string>& more);
  // Which has ended, and how; empty: none.
  std::string ended();
  // Until all have ended, at most so long; true when all ended by themselves with 0.
  bool wait(double timeout_s);
  void kill_all();

 private:
  struct Child {
    int32_t rank = 0;
    pid_t pid = 0;
    bool ended = false;
    int status = 0;
  };
  void look();

  const std::vector<std::string> arguments_;
  std::mutex mutex_;
  std::vector<Child> children_;
};

}  // namespace spark::app
