// Numbers for synthetic weights: a pure function of (seed, name, index), the same on every machine. Only
// integer arithmetic and single IEEE operations are used, nothing from <random> or the maths library.
//
//   const CounterRandom random(seed, "layers.0.attn.wq_a");
//   int32_t z = random.bell(17);      // approximately normal, standard deviation kBellDeviation
//   float u = random.uniform(18);     // [-1, 1)
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace spark::engine {

inline constexpr float kBellDeviation = 209.02f;

class CounterRandom {
 public:
  CounterRandom(uint64_t seed, std::string_view name);

  uint64_t bits(uint64_t index) const { return mix(key_ + index * 0x9E3779B97F4A7C15u); }

  // The sum of eight bytes, centred: -1020 .. 1020.
  int32_t bell(uint64_t index) const {
    // Pairs of bytes, then of their sums, added side by side in one word.
    uint64_t sums = bits(index);
    sums = (sums & 0x00FF00FF00FF00FFu) + ((sums >> 8) & 0x00FF00FF00FF00FFu);
    sums = (sums & 0x0000FFFF0000FFFFu) + ((sums >> 16) & 0x0000FFFF0000FFFFu);
    return static_cast<int32_t>((sums & 0xFFFFFFFFu) + (sums >> 32)) - 1020;
  }

  float uniform(uint64_t index) const {
    return static_cast<float>(static_cast<int32_t>(bits(index) >> 40) - (1 << 23)) * (1.0f / (1 << 23));
  }

 private:
  static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }

  uint64_t key_;
};

// Half of the hidden space, as trained weights use only a part of it: vectors whose coefficients are zero on
// the other half of a sign-scrambled Walsh-Hadamard basis. One more basis vector is the direction that all
// embeddings share.
class Subspace {
 public:
  Subspace(uint64_t seed, int64_t width);  // width: a power of two

  int64_t width() const { return static_cast<int64_t>(signs_.size()); }
  // sqrt(width) times a unit vector: every component is +1 or -1.
  const std::vector<int32_t>& shared_direction() const { return signs_; }

  // A random vector inside, drawn from `random` at index, index + 1, ...; components have the standard
  // deviation deviation().
  std::vector<int32_t> draw(const CounterRandom& random, uint64_t index) const;
  float deviation() const { return deviation_; }

 private:
  std::vector<int32_t> signs_;
  std::vector<size_t> axes_;
  float deviation_ = 0;
};

}  // namespace spark::engine
