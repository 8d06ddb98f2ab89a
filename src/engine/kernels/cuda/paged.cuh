// Addresses in paged caches.
#pragma once

#include "engine/kernels/types.h"

namespace spark::engine::cuda {

// The record, or null when its block does not exist.
__device__ __forceinline__ uint8_t* record_of(const PagedCache& cache, int sequence, int index) {
  const int entry = index / cache.records_per_block;
  if (index < 0 || entry >= cache.table_stride) return nullptr;
  const int block = cache.block_table[static_cast<int64_t>(sequence) * cache.table_stride + entry];
  if (block < 0) return nullptr;
  return cache.base +
         (static_cast<int64_t>(block) * cache.records_per_block + (index - entry * cache.records_per_block)) *
             cache.record_bytes;
}

}  // namespace spark::engine::cuda
