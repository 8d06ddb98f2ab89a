// The fast CPU backend: SIMD chosen at run time, `threads` worker threads (0 = one per core). A row's result
// does not depend on the number of threads, and agrees with the reference up to the order of FP32 sums.
#pragma once

#include <memory>

#include "engine/kernels/backend.h"

namespace spark::engine {

std::unique_ptr<Backend> make_cpu_backend(int threads);

struct CpuOptions {
  int threads = 0;
  // Work estimated below this runs on the calling thread alone. 0 forks always (tests).
  double fork_ns = 4000;
};
std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options);

}  // namespace spark::engine
