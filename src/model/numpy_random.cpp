#include "model/numpy_random.h"

#include <array>

#include "common/error.h"

namespace spark::model {
namespace {

constexpr size_t kPool = 4;

uint32_t fold(uint32_t value) {
  return value ^ (value >> 16);
}

// A multiplicative hash whose constant advances with every use.
struct AdvancingHash {
  uint32_t constant;
  uint32_t multiplier;

  uint32_t operator()(uint32_t value) {
    value ^= constant;
    constant *= multiplier;
    return fold(value * constant);
  }
};

// The eight 32-bit words that SeedSequence(seed) hands to PCG64.
std::array<uint32_t, 2 * kPool> seed_words(uint32_t seed) {
  AdvancingHash absorb{0x43b0d7e5u, 0x931e8875u};
  std::array<uint32_t, kPool> pool{};
  for (size_t i = 0; i < kPool; ++i) pool[i] = absorb(i == 0 ? seed : 0);
  for (size_t from = 0; from < kPool; ++from) {
    for (size_t to = 0; to < kPool; ++to) {
      if (from != to) pool[to] = fold(0xca01f9ddu * pool[to] - 0x4973f715u * absorb(pool[from]));
    }
  }
  AdvancingHash squeeze{0x8b51f9ddu, 0x58f38dedu};
  std::array<uint32_t, 2 * kPool> words{};
  for (size_t i = 0; i < words.size(); ++i) words[i] = squeeze(pool[i % kPool]);
  return words;
}

}  // namespace

NumpyGenerator::NumpyGenerator(uint32_t seed) {
  const auto words = seed_words(seed);
  // Pairs of words form little-endian 64-bit values; the first of two such values is the high half.
  const auto wide = [&](size_t at) {
    const uint64_t high = (uint64_t{words[at + 1]} << 32) | words[at];
    const uint64_t low = (uint64_t{words[at + 3]} << 32) | words[at + 2];
    return (static_cast<Wide>(high) << 64) | low;
  };
  increment_ = (wide(4) << 1) | 1;
  step();
  state_ += wide(0);
  step();
}

void NumpyGenerator::step() {
  constexpr Wide kMultiplier = (static_cast<Wide>(0x2360ed051fc65da4u) << 64) | 0x4385df649fccf645u;
  state_ = state_ * kMultiplier + increment_;
}

uint64_t NumpyGenerator::next() {
  step();
  const auto folded = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
  const auto turn = static_cast<unsigned>(state_ >> 122);
  return (folded >> turn) | (folded << ((64 - turn) & 63));
}

uint64_t NumpyGenerator::below(uint64_t bound) {
  SPARK_CHECK(bound > (uint64_t{1} << 32));
  const uint64_t threshold = (~uint64_t{0} - (bound - 1)) % bound;
  for (;;) {
    const Wide product = static_cast<Wide>(next()) * bound;
    if (static_cast<uint64_t>(product) >= threshold) return static_cast<uint64_t>(product >> 64);
  }
}

}  // namespace spark::model
