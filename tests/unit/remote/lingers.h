// Whether something that a call started is still there.
#pragma once

#include <chrono>
#include <string>
#include <thread>

#include "common/process.h"

namespace spark::test {

// Whether a process with this unmistakable argument is still there after at most five seconds.
inline bool lingers(const std::string& argument) {
  // The pattern does not match itself in the arguments of the search.
  const std::string pattern = "[" + argument.substr(0, 1) + "]" + argument.substr(1);
  for (int i = 0; i < 100; ++i) {
    const ProcessResult found = run_process(
        {"sh", "-c", "grep -lza -- \"$0\" /proc/[0-9]*/cmdline 2>/dev/null | grep -v \"/$$/\"", pattern});
    if (found.output.empty()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return true;
}

}  // namespace spark::test
