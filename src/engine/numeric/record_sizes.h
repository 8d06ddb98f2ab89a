// Bytes of the cache records, for head width or index width `width` (a multiple of 32). The formats are those
// of numeric/records.h.
//
//   window_record_bytes(512)     // 528
//   main_record_bytes(512)       // 288
//   index_key_record_bytes(128)  // 68
#pragma once

#include <concepts>

namespace spark::engine {

// E4M3, then a UE8M0 scale for each 32.
template <std::integral T>
constexpr T window_record_bytes(T width) {
  return width + width / 32;
}

// E2M1, then an E4M3 scale for each 16.
template <std::integral T>
constexpr T main_record_bytes(T width) {
  return width / 2 + width / 16;
}

// E2M1, then a UE8M0 scale for each 32.
template <std::integral T>
constexpr T index_key_record_bytes(T width) {
  return width / 2 + width / 32;
}

}  // namespace spark::engine
