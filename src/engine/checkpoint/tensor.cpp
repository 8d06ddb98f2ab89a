#include "engine/checkpoint/tensor.h"

#include "common/error.h"
#include "engine/checkpoint/fault_list.h"

namespace spark::engine {

uint64_t tensor_bytes(const TensorSpec& spec) {
  int64_t bytes = static_cast<int64_t>(model::dtype_bytes(spec.dtype));
  for (const int64_t extent : spec.shape) {
    if (extent < 0)
      throw Error("tensor " + quote_name(spec.name) + " has a negative extent: " + format_shape(spec.shape));
    if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      throw Error("tensor " + quote_name(spec.name) + " of shape " + format_shape(spec.shape) +
                  " overflows 63 bits");
    }
  }
  return static_cast<uint64_t>(bytes);
}

std::string format_shape(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

void TensorView::check_size(size_t size) const {
  SPARK_CHECK(size == model::dtype_bytes(dtype));
}

void TensorView::check_alignment(size_t alignment) const {
  if (reinterpret_cast<uintptr_t>(bytes.data()) % alignment == 0) return;
  throw Error("tensor " + quote_name(std::string(name)) + " is not aligned to its " +
                  std::to_string(alignment) + "-byte elements",
              std::string(shard_path), "write the file again with a current safetensors library");
}

}  // namespace spark::engine
