// Which exponents the 12-bit form of a BF16 weight keeps.
#pragma once

#include <cstdint>
#include <span>

namespace spark::engine::cuda {

struct PackChoice {
  bool worthwhile = false;
  int base = 0;               // exponents base + 1 .. base + 15 have codes
  uint16_t unpack_scale = 0;  // BF16 bits of 2^base: the kernel multiplies the re-based value by it
  uint64_t exceptions = 0;
};

// counts[e]: elements with biased exponent e that are no zeros; counts[256]: zeros. Not worthwhile when more
// than one element in 256 would be an exception.
PackChoice choose_exponent_base(std::span<const uint64_t> counts);

}  // namespace spark::engine::cuda
