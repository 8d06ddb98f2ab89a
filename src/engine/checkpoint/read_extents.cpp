#include "engine/checkpoint/read_extents.h"

#include "common/error.h"

namespace spark::engine {

std::vector<Extent> plan_extents(std::span<const WantedBytes> wanted) {
  std::vector<Extent> extents;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const WantedBytes& next = wanted[i];
    if (!extents.empty()) {
      Extent& last = extents.back();
      const uint64_t end = last.offset + last.bytes;
      SPARK_CHECK(next.offset >= end);
      const uint64_t joined = next.offset + next.bytes - last.offset;
      if (next.offset - end <= kExtentGap && joined <= kMaxExtentBytes) {
        last.bytes = static_cast<size_t>(joined);
        ++last.count;
        continue;
      }
    }
    extents.push_back({.offset = next.offset, .bytes = next.bytes, .first = i, .count = 1});
  }
  return extents;
}

}  // namespace spark::engine
