// Aligned memory that only grows: scratch that costs nothing once the largest step has been seen.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace spark::engine::cpu {

constexpr size_t kAlignment = 64;

class Buffer {
 public:
  // At least `count` values of T, contents undefined. Invalidates what an earlier call returned.
  template <typename T>
  T* get(size_t count) {
    reserve(count * sizeof(T));
    return reinterpret_cast<T*>(memory_.get());
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(memory_.get());
  }
  size_t bytes() const { return bytes_; }

  void reserve(size_t bytes) {
    if (bytes <= bytes_) return;
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    memory_.reset();
    bytes_ = 0;
    void* memory = std::aligned_alloc(kAlignment, rounded);
    if (memory == nullptr) throw std::bad_alloc();
    memory_.reset(memory);
    bytes_ = rounded;
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  size_t bytes_ = 0;
};

}  // namespace spark::engine::cpu
