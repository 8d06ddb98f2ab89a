#include "engine/schedule/random.h"

namespace spark::engine {
namespace {

constexpr int kRounds = 10;
constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;

uint32_t high(uint64_t value) {
  return static_cast<uint32_t>(value >> 32);
}
uint32_t low(uint64_t value) {
  return static_cast<uint32_t>(value);
}

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {high(product1) ^ counter[1] ^ key[0], low(product1), high(product0) ^ counter[3] ^ key[1],
               low(product0)};
    key = {key[0] + kWeyl0, key[1] + kWeyl1};
  }
  return counter;
}

double uniform(uint64_t seed, uint64_t position, uint32_t stream) {
  const auto bits = philox4x32({low(position), high(position), stream, 0}, {low(seed), high(seed)});
  const uint64_t whole = (uint64_t{bits[0]} << 32 | bits[1]) >> 11;
  return static_cast<double>(whole + 1) * 0x1p-53;
}

}  // namespace spark::engine
