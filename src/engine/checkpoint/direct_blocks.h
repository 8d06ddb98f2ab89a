// What a direct read (O_DIRECT) must be a multiple of: its place in the file, its length, its place in
// memory. 4096 bytes suit every device we know.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spark::engine {

inline constexpr size_t kDirectBlock = 4096;

constexpr uint64_t align_down(uint64_t n) {
  return n / kDirectBlock * kDirectBlock;
}
constexpr uint64_t align_up(uint64_t n) {
  return align_down(n + kDirectBlock - 1);
}

}  // namespace spark::engine
