#include "engine/collective/communicator.h"

#include <algorithm>
#include <array>

#include "engine/numeric/bf16.h"

namespace spark::engine {
namespace {

// Columns added between two roundings: few enough that the sums stay in the nearest cache.
constexpr int64_t kColumnsAtATime = 512;

}  // namespace

void add_partials(std::span<const double* const> x, int64_t rows, int64_t terms, int64_t cols, uint16_t* y) {
  std::array<double, kColumnsAtATime> sum;
  std::array<float, kColumnsAtATime> total;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t begin = 0; begin < cols; begin += kColumnsAtATime) {
      const auto count = static_cast<size_t>(std::min(kColumnsAtATime, cols - begin));
      uint16_t* out = y + row * cols + begin;
      for (int64_t term = 0; term < terms; ++term) {
        const int64_t at = (row * terms + term) * cols + begin;
        std::copy_n(x[0] + at, count, sum.begin());
        for (const double* part : x.subspan(1)) {
          for (size_t i = 0; i < count; ++i) sum[i] += part[static_cast<size_t>(at) + i];
        }
        for (size_t i = 0; i < count; ++i) out[i] = double_to_bf16(sum[i]);
        if (terms == 1) continue;
        for (size_t i = 0; i < count; ++i) total[i] = (term == 0 ? 0.0F : total[i]) + bf16_to_float(out[i]);
      }
      for (size_t i = 0; terms > 1 && i < count; ++i) out[i] = float_to_bf16(total[i]);
    }
  }
}

}  // namespace spark::engine
