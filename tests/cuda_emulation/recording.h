// Lets a test pretend that steps are recorded, and counts the forks that dropped what their stream ran
// before.
#pragma once

#include <cstdint>

namespace spark::emulation {

struct Recording {
  bool on = false;
  uint64_t dropped = 0;
};
inline Recording& recording() {
  static Recording r;
  return r;
}

}  // namespace spark::emulation
