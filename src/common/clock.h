// Time for measurements: seconds on the monotonic clock.
#pragma once

#include <chrono>

namespace spark {

inline double monotonic_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace spark
