// Small reads that lie near each other become one.
//
//   std::vector<Extent> extents = plan_extents(wanted);    // sorted by offset
//   // extents[i] covers wanted[first .. first + count) in one read; wanted[k] begins at
//   // wanted[k].offset - extents[i].offset in it
//
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace spark::engine {

struct WantedBytes {
  uint64_t offset = 0;
  size_t bytes = 0;
};

struct Extent {
  uint64_t offset = 0;
  size_t bytes = 0;
  size_t first = 0;  // of the wanted
  size_t count = 0;
};

// Bytes between two wanted ranges that are read along rather than left out: a page costs the disk as much as
// a part of it.
inline constexpr size_t kExtentGap = 4096;
inline constexpr size_t kMaxExtentBytes = size_t{64} << 10;

// `wanted` ascends by offset and does not overlap.
std::vector<Extent> plan_extents(std::span<const WantedBytes> wanted);

}  // namespace spark::engine
