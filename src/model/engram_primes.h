// The hash moduli of the Engram tables.
//
//   const auto primes = engram_primes(config);   // [Engram layer][order - 2][head]
//
// Primes are taken in the order (layer, order, head): each is the smallest prime above its predecessor that
// no earlier place uses, and each (layer, order) starts again at engram_vocab_size. A table has one row per
// residue, so its height is the sum of the layer's primes.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace spark::model {

using EngramPrimes = std::vector<std::vector<std::vector<int64_t>>>;

// Deterministic for n < 3,215,031,751.
bool is_prime(int64_t n);

EngramPrimes engram_primes(const ModelConfig& config);

}  // namespace spark::model
