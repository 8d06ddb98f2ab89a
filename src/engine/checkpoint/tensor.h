// Tensors as a checkpoint names, describes and hands them out.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/dtype.h"

namespace spark::engine {

// What a tensor must be, or will be written as. Row-major; an empty shape is a scalar.
struct TensorSpec {
  std::string name;
  model::Dtype dtype = model::Dtype::kF32;
  std::vector<int64_t> shape;

  bool operator==(const TensorSpec&) const = default;
};

// Bytes of the tensor. Throws Error when a dimension is negative or the size does not fit 63 bits.
uint64_t tensor_bytes(const TensorSpec& spec);

// "[384006168, 256]"
std::string format_shape(std::span<const int64_t> shape);

// A tensor's content, mapped read-only from its shard. Valid as long as the file or checkpoint it came from.
struct TensorView {
  std::string_view name;
  model::Dtype dtype = model::Dtype::kF32;
  std::span<const int64_t> shape;
  std::span<const uint8_t> bytes;
  std::string_view shard_path;

  // The elements as T, whose size must be the dtype's (uint16_t for BF16, float for F32, uint8_t for the
  // 8-bit types, packed FP4 included). Throws Error when the file stores them misaligned; checkpoints do not.
  template <typename T>
  std::span<const T> as() const {
    check_size(sizeof(T));
    check_alignment(alignof(T));
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

  // The same, copied, whatever the alignment.
  template <typename T>
  std::vector<T> copy() const {
    check_size(sizeof(T));
    std::vector<T> elements(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(elements.data(), bytes.data(), bytes.size());
    return elements;
  }

 private:
  void check_size(size_t size) const;
  void check_alignment(size_t alignment) const;
};

}  // namespace spark::engine
