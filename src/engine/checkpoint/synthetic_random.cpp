#include "engine/checkpoint/synthetic_random.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "common/error.h"

namespace spark::engine {

CounterRandom::CounterRandom(uint64_t seed, std::string_view name) : key_(0xCBF29CE484222325u) {
  for (const char c : name) key_ = (key_ ^ static_cast<uint8_t>(c)) * 0x100000001B3u;  // FNV-1a
  key_ = mix(key_ ^ mix(seed));
}

Subspace::Subspace(uint64_t seed, int64_t width) {
  SPARK_CHECK(width >= 4 && std::has_single_bit(static_cast<uint64_t>(width)));
  const CounterRandom random(seed, "subspace");
  const auto count = static_cast<size_t>(width);
  for (size_t i = 0; i < count; ++i) signs_.push_back((random.bits(i) & 1) != 0 ? 1 : -1);
  // Axis 0 is the constant vector, which the signs turn into the shared direction.
  std::vector<std::pair<uint64_t, size_t>> order;
  for (size_t axis = 1; axis < count; ++axis) order.emplace_back(random.bits(count + axis), axis);
  std::sort(order.begin(), order.end());
  for (size_t i = 0; i < count / 2; ++i) axes_.push_back(order[i].second);
  std::sort(axes_.begin(), axes_.end());
  deviation_ = kBellDeviation * std::sqrt(static_cast<float>(axes_.size()));
}

std::vector<int32_t> Subspace::draw(const CounterRandom& random, uint64_t index) const {
  std::vector<int32_t> values(signs_.size(), 0);
  for (const size_t axis : axes_) values[axis] = random.bell(index++);
  for (size_t half = 1; half < values.size(); half *= 2) {
    for (size_t start = 0; start < values.size(); start += 2 * half) {
      for (size_t i = start; i < start + half; ++i) {
        const int32_t a = values[i];
        const int32_t b = values[i + half];
        values[i] = a + b;
        values[i + half] = a - b;
      }
    }
  }
  for (size_t i = 0; i < values.size(); ++i) values[i] *= signs_[i];
  return values;
}

}  // namespace spark::engine
