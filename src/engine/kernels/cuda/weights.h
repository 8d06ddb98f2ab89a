// Placing weights: from host memory in checkpoint form to tiles in device memory.
#pragma once

#include <deque>
#include <span>

#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/memory.h"

namespace spark::engine::cuda {

class WeightStore {
 public:
  WeightStore(Arena& arena, Staging& staging, const Stream& stream, const DeviceLimits& device,
              int64_t pack_rows_from)
      : arena_(arena), staging_(staging), stream_(stream), device_(device), pack_rows_from_(pack_rows_from) {}

  Weight place(const Weight& host);
  ExpertBank place_experts(std::span<const ExpertWeights> host);
  Weight synthetic(WeightFormat format, int64_t rows, int64_t cols, uint64_t seed);
  ExpertBank synthetic_experts(int experts, int64_t hidden, int64_t width, uint64_t seed);

  static const PreparedWeight& prepared(const Weight& weight);
  static const PreparedExperts& prepared(const ExpertBank& bank);

 private:
  PreparedWeight place_fp8(const Weight& host);
  PreparedWeight place_bf16(const Weight& host);
  PreparedWeight place_plain(const Weight& host, Layout layout);
  bool pack(const Weight& host, PreparedWeight& out);
  void place_fp4(const Weight& host, int matrices, int matrix, uint8_t* stages);
  Weight keep(const Weight& shape, const PreparedWeight& prepared);
  PreparedExperts& new_bank(int experts, int64_t hidden, int64_t width);

  uint8_t* bytes(int64_t count, const char* purpose) {
    return static_cast<uint8_t*>(arena_.allocate(static_cast<size_t>(count), purpose));
  }
  // Uploads `rows` of a matrix piece by piece into the raw buffer and calls prepare(raw, first row, rows).
  template <class Prepare>
  void by_pieces(const void* host, int64_t rows, int64_t row_bytes, const Prepare& prepare);
  Launch launch() const { return {.stream = stream_.get(), .dependent = false, .device = device_}; }

  Arena& arena_;
  Staging& staging_;
  const Stream& stream_;
  DeviceLimits device_;
  int64_t pack_rows_from_;
  uint8_t* raw_ = nullptr;
  uint8_t* raw_scales_ = nullptr;
  std::deque<PreparedWeight> weights_;
  std::deque<PreparedExperts> banks_;
};

}  // namespace spark::engine::cuda
