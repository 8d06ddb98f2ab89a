// Finds a record of a paged cache.
#pragma once

#include <span>

#include "common/error.h"
#include "engine/kernels/types.h"

namespace spark::engine::reference {

inline std::span<uint8_t> record(const PagedCache& cache, int32_t sequence, int32_t j) {
  const int64_t slot = static_cast<int64_t>(sequence) * cache.table_stride + j / cache.records_per_block;
  const int64_t block = cache.block_table[slot];
  SPARK_CHECK(block >= 0);
  const int64_t index = block * cache.records_per_block + j % cache.records_per_block;
  return {cache.base + index * cache.record_bytes, static_cast<size_t>(cache.record_bytes)};
}

}  // namespace spark::engine::reference
