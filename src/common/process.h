// Runs one local program and waits for it: no shell, a time limit, bounded output. What the program leaves in
// its process group is killed when it ends.
//
//   ProcessResult result = run_process({"git", "ls-files", "-z"}, {.directory = root, .timeout_s = 20});
//   if (result.exit_code != 0) throw Error("git failed: " + result.error, root);
//
// A program that cannot be started, outlives its limit (it is killed) or writes too much is an Error that
// names it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace spark {

struct ProcessOptions {
  std::string directory = {};                  // working directory; empty: this process's
  std::string input = {};                      // its standard input
  std::vector<std::string> environment = {};   // "NAME=value", over this process's
  double timeout_s = 30;                       // killed (with its process group) after that
  size_t max_output_bytes = size_t{64} << 20;  // per stream
};

struct ProcessResult {
  int exit_code = 0;  // 128 + signal number when a signal ended it
  std::string output;
  std::string error;
};

ProcessResult run_process(const std::vector<std::string>& arguments, const ProcessOptions& options = {});

}  // namespace spark
