// Scratch memory of the operations, by use.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/kernels/cuda/memory.h"

namespace spark::engine::cuda {

// Scratch memory by use. Kernels on one stream run in order, so a slot is reused by the next call of the same
// kind.
enum class Scratch : uint8_t {
  kMhcPartials,
  kExpertCount,
  kExpertItems,
  kExpertRow,
  kExpertWeight,
  kExpertDestination,
  kExpertCodes,
  kExpertScales,
  kExpertXScales,
  kExpertWords,
  kExpertOutputs,
  kExpertArrivals,
  kSharedGate,
  kSharedUp,
  kSharedCodes,
  kSharedScales,
  kSharedOut,
  kIndexScores,
  kIndexBlocks,
  kArgmax,
  kSelectBest,
  kSelectMasses,
  kSelectTotals,
  kDraftRows,
  kDraftProduct,
  kCount,
};

class ScratchMemory {
 public:
  explicit ScratchMemory(Arena& arena) : arena_(arena) {}

  // Room for `count` elements, at least one. Grows; recorded graphs keep the old memory, so it stays.
  template <class T>
  T* get(Scratch use, int64_t count) {
    Buffer& buffer = buffers_[static_cast<size_t>(use)];
    const size_t bytes = static_cast<size_t>(std::max<int64_t>(count, 1)) * sizeof(T);
    if (bytes > buffer.bytes) buffer = {arena_.allocate(bytes, "scratch memory"), bytes};
    return static_cast<T*>(buffer.memory);
  }

 private:
  struct Buffer {
    void* memory = nullptr;
    size_t bytes = 0;
  };

  Arena& arena_;
  std::array<Buffer, static_cast<size_t>(Scratch::kCount)> buffers_;
};

}  // namespace spark::engine::cuda
