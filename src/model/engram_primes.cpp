#include "model/engram_primes.h"

#include <set>

namespace spark::model {
namespace {

uint64_t power_mod(uint64_t base, uint64_t exponent, uint64_t modulus) {
  uint64_t result = 1;
  for (base %= modulus; exponent != 0; exponent >>= 1) {
    if (exponent & 1) result = result * base % modulus;
    base = base * base % modulus;
  }
  return result;
}

}  // namespace

bool is_prime(int64_t n) {
  SPARK_CHECK(n <
              3215031751);  // below it the four Miller-Rabin bases leave no pseudoprime; products fit 64 bits
  if (n < 2) return false;
  for (const int64_t small : {2, 3, 5, 7, 11, 13, 17, 19, 23}) {
    if (n % small == 0) return n == small;
  }
  const auto modulus = static_cast<uint64_t>(n);
  uint64_t odd = modulus - 1;
  int twos = 0;
  for (; (odd & 1) == 0; odd >>= 1) ++twos;
  for (const uint64_t base : {2, 3, 5, 7}) {
    uint64_t x = power_mod(base, odd, modulus);
    if (x == 1 || x == modulus - 1) continue;
    bool composite = true;
    for (int i = 1; i < twos && composite; ++i) {
      x = x * x % modulus;
      composite = x != modulus - 1;
    }
    if (composite) return false;
  }
  return true;
}

EngramPrimes engram_primes(const ModelConfig& config) {
  std::set<int64_t> used;
  EngramPrimes layers;
  for (size_t layer = 0; layer < config.engram_layer_ids.size(); ++layer) {
    auto& orders = layers.emplace_back();
    for (int64_t order = 0; order < config.engram_orders(); ++order) {
      auto& heads = orders.emplace_back();
      int64_t candidate = config.engram_vocab_size;
      for (int64_t head = 0; head < config.engram_n_heads; ++head, ++candidate) {
        while (used.count(candidate) != 0 || !is_prime(candidate)) ++candidate;
        used.insert(candidate);
        heads.push_back(candidate);
      }
    }
  }
  return layers;
}

}  // namespace spark::model
