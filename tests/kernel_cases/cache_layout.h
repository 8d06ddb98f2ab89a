// Paged caches for cases: a pool of blocks and a shuffled block table.
#pragma once

#include <utility>

#include "kernel_cases/random.h"

namespace spark::engine::cases {

struct CacheTensors {
  int base = -1;
  int table = -1;
  int32_t table_stride = 0;
  int32_t records_per_block = 0;
  int32_t record_bytes = 0;

  PagedCache view(const Call& call) const {
    return {call.data<uint8_t>(base), call.data<int32_t>(table), table_stride, records_per_block,
            record_bytes};
  }
};

// Room for `tokens` positions of each sequence at the given ratio; every block somewhere else.
struct CacheShape {
  int32_t sequences = 1;
  int32_t tokens = 256;
  int32_t ratio = 1;
  int32_t record_bytes = 0;

  int32_t per_block() const { return kCacheBlockTokens / ratio; }
  int32_t stride() const {
    return (tokens + kCacheBlockTokens - 1) / kCacheBlockTokens + 1;
  }  // last: no block
  int32_t blocks() const { return sequences * (stride() - 1) + 1; }
  size_t bytes() const {
    return static_cast<size_t>(blocks()) * static_cast<size_t>(per_block()) *
           static_cast<size_t>(record_bytes);
  }
};

inline std::vector<int32_t> shuffled_table(Random& random, const CacheShape& shape) {
  std::vector<int32_t> order(static_cast<size_t>(shape.blocks()));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  for (size_t i = order.size() - 1; i > 0; --i)
    std::swap(order[i], order[static_cast<size_t>(random.below(static_cast<int32_t>(i) + 1))]);
  std::vector<int32_t> table;
  size_t next = 0;
  for (int32_t s = 0; s < shape.sequences; ++s) {
    for (int32_t b = 0; b < shape.stride(); ++b) table.push_back(b + 1 < shape.stride() ? order[next++] : -1);
  }
  return table;
}

// Adds the cache with the given contents; state with a check when the operation writes it.
inline CacheTensors add_cache(Problem& p, Random& random, const std::string& name, const CacheShape& shape,
                              std::vector<uint8_t> contents, bool written) {
  CacheTensors cache{-1, -1, shape.stride(), shape.per_block(), shape.record_bytes};
  contents.resize(shape.bytes());
  cache.base =
      written ? p.state(name, Kind::kBytes, contents, kExact) : p.input(name, Kind::kBytes, contents);
  cache.table = p.input(name + " table", Kind::kInt32, shuffled_table(random, shape));
  return cache;
}

// Contents: every record encodes a random vector.
template <typename Encode>
std::vector<uint8_t> encoded_records(Random& random, const CacheShape& shape, size_t width, double sigma,
                                     const Encode& encode) {
  std::vector<uint8_t> bytes(shape.bytes());
  const auto size = static_cast<size_t>(shape.record_bytes);
  for (size_t at = 0; at + size <= bytes.size(); at += size)
    encode(bf16_values(random, width, sigma), std::span<uint8_t>(&bytes[at], size));
  return bytes;
}

// cos, sin of random angles, [rows][pairs][2].
inline std::vector<float> random_angles(Random& random, int32_t rows, int32_t pairs) {
  std::vector<float> out;
  for (int32_t i = 0; i < rows * pairs; ++i) {
    const double angle = random.uniform() * 6.283;
    out.push_back(static_cast<float>(std::cos(angle)));
    out.push_back(static_cast<float>(std::sin(angle)));
  }
  return out;
}

}  // namespace spark::engine::cases
