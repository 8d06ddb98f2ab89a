// The scratch memory itself: a buffer a use.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/kernels/cuda/memory.h"
#include "engine/kernels/cuda/plan/scratch_plan.h"

namespace spark::engine::cuda {

class ScratchMemory {
 public:
  explicit ScratchMemory(Arena& arena) : arena_(arena) {}

  // What plan/scratch_plan.h says that `use` takes; null for nothing. Grows; recorded graphs keep the old
  // memory, so it stays.
  template <class T>
  T* get(Scratch use, const ScratchSizes& sizes) {
    Buffer& buffer = buffers_[static_cast<size_t>(use)];
    const int64_t bytes = sizes.of(use);
    if (bytes > buffer.bytes) {
      buffer = {arena_.allocate(static_cast<size_t>(bytes), "scratch memory"), bytes};
      allocated_ += bytes;
    }
    return bytes == 0 ? nullptr : static_cast<T*>(buffer.memory);
  }

  // Of all buffers that there ever were.
  int64_t allocated_bytes() const { return allocated_; }

 private:
  struct Buffer {
    void* memory = nullptr;
    int64_t bytes = 0;
  };

  Arena& arena_;
  std::array<Buffer, kScratchUses> buffers_;
  int64_t allocated_ = 0;
};

}  // namespace spark::engine::cuda
