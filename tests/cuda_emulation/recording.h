// Recorded steps: the kernels between the beginning and the end of a capture, with the arguments they were
// launched with, run again in that order. Also lets a test pretend that steps are recorded, leave kernels
// out, and counts the forks that dropped what their stream ran before.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "order.h"

namespace spark::emulation {

struct Graph {
  std::vector<std::function<void()>> kernels;
};

struct Recording {
  bool on = false;
  Graph* graph = nullptr;  // that takes the kernels; null: they run
  uint64_t dropped = 0;
  bool skips = false;  // kernels are not run: for tests that look at memory alone
};
inline Recording& recording() {
  static Recording r;
  return r;
}

inline void run_or_record(std::function<void()> kernel) {
  ++order().issued;
  if (recording().skips) return;
  if (recording().graph == nullptr) return kernel();
  recording().graph->kernels.push_back(std::move(kernel));
}

}  // namespace spark::emulation
