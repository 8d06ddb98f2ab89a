// What streams wait for. The emulator runs everything in the order in which it is issued, so a wait that is
// missing changes no result; a test can see it here: an event knows what had been issued when it was
// recorded.
#pragma once

#include <algorithm>
#include <cstdint>

namespace spark::emulation {

struct Order {
  uint64_t issued = 0;  // kernels and transfers
  // Of the events that streams were told to wait for, the one that was recorded first: what had been issued.
  uint64_t earliest_wait = UINT64_MAX;

  void waits_for(uint64_t event) { earliest_wait = std::min(earliest_wait, event); }
};
inline Order& order() {
  static Order o;
  return o;
}

}  // namespace spark::emulation
