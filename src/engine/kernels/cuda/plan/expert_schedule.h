// Which part of the routed experts' work each block of the streaming kernel does.
//
// The work comes in units of about equal bytes: 32 columns of an item's gate and up, or a set of channel
// groups of its down projection, one a warp. All units form one list, gate and up of all items before down of
// all items, and the list is dealt to the blocks in turn. So early items are complete early, and each block's
// last units are those of the last items.
//
//   const ExpertSchedule s = {.items = 35, .ups = 18, .downs = 8};
//   for (int place = block; place < s.size(); place += blocks) s.at(place);
#pragma once

#include <cstdint>

#include "engine/numeric/host_device.h"

namespace spark::engine::cuda {

// Division of numbers below 2^16 by one of them: the product with the rounded-up inverse is exact to the last
// unit.
struct SmallDivisor {
  uint32_t divisor = 1;
  uint32_t inverse = 0;  // ceil(2^32 / divisor), 0 for 1

  static constexpr SmallDivisor of(uint32_t divisor) {
    return {divisor,
            divisor == 1 ? 0U : static_cast<uint32_t>(((uint64_t{1} << 32) + divisor - 1) / divisor)};
  }
  SPARK_HOST_DEVICE constexpr uint32_t quotient(uint32_t n) const {
    return inverse == 0 ? n : static_cast<uint32_t>(uint64_t{n} * inverse >> 32);
  }
};

struct ExpertUnit {
  bool down = false;
  uint32_t item = 0;
  uint32_t part = 0;
};

struct ExpertSchedule {
  uint32_t items = 0;
  SmallDivisor ups;    // units of gate and up of an item
  SmallDivisor downs;  // units of down of an item

  SPARK_HOST_DEVICE constexpr uint32_t up_count() const { return items * ups.divisor; }
  SPARK_HOST_DEVICE constexpr uint32_t size() const { return items * (ups.divisor + downs.divisor); }

  SPARK_HOST_DEVICE constexpr ExpertUnit at(uint32_t place) const {
    const bool down = place >= up_count();
    const SmallDivisor& parts = down ? downs : ups;
    const uint32_t unit = down ? place - up_count() : place;
    const uint32_t item = parts.quotient(unit);
    return {down, item, unit - item * parts.divisor};
  }
};

}  // namespace spark::engine::cuda
