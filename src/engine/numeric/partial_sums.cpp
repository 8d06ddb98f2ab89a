#include "engine/numeric/partial_sums.h"

#include <algorithm>
#include <array>
#include <bit>

#include "engine/numeric/bf16.h"

namespace spark::engine {
namespace {

// Columns added between two roundings: a fixed number, so that the compiler makes vectors of the loops.
constexpr size_t kColumnsAtATime = 64;

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
// As many versions of a function, of which the processor's is chosen when the program starts.
#define SPARK_FOR_EACH_VECTOR_WIDTH __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SPARK_FOR_EACH_VECTOR_WIDTH
#endif

using Columns = std::array<double, kColumnsAtATime>;

// double_to_bf16() of each column. The bits of a double are rounded to those that a BF16 keeps, and the
// exponent gets the other bias; what is too small or too large for that (or NaN) is left to double_to_bf16().
SPARK_FOR_EACH_VECTOR_WIDTH
void round_columns(const Columns& sum, std::array<uint16_t, kColumnsAtATime>& out) {
  constexpr uint64_t kMagnitude = 0x7FFFFFFFFFFFFFFFu;
  constexpr auto kSmallest = std::bit_cast<uint64_t>(0x1p-126),
                 kLargest = std::bit_cast<uint64_t>(0x1.FEp127);
  constexpr int kDropped = 52 - 7;
  uint64_t other = 0;
  for (size_t i = 0; i < kColumnsAtATime; ++i) {
    const auto bits = std::bit_cast<uint64_t>(sum[i]);
    const uint64_t magnitude = bits & kMagnitude;
    const uint64_t odd = (magnitude >> kDropped) & 1u;
    const uint64_t rounded = (magnitude + ((uint64_t{1} << (kDropped - 1)) - 1) + odd) >> kDropped;
    const uint64_t value = magnitude == 0 ? 0 : rounded - (uint64_t{1023 - 127} << 7);
    out[i] = static_cast<uint16_t>(value | (bits >> 63 << 15));
    // Bit 63 shows that a difference is below zero.
    other |= magnitude == 0 ? 0 : (magnitude - kSmallest) | (kLargest - magnitude);
  }
  if ((other >> 63) == 0) return;
  for (size_t i = 0; i < kColumnsAtATime; ++i) out[i] = double_to_bf16(sum[i]);
}

SPARK_FOR_EACH_VECTOR_WIDTH
void add_columns(const double* part, Columns& sum) {
  for (size_t i = 0; i < kColumnsAtATime; ++i) sum[i] += part[i];
}

// One rounding of some columns of all ranks' parts; `count` of them count.
void add_ranks(std::span<const double* const> x, int64_t at, size_t count,
               std::array<uint16_t, kColumnsAtATime>& out) {
  Columns sum{};
  std::copy_n(x[0] + at, count, sum.begin());
  for (const double* part : x.subspan(1)) {
    if (count == kColumnsAtATime) {
      add_columns(part + at, sum);
    } else {
      for (size_t i = 0; i < count; ++i) sum[i] += part[static_cast<size_t>(at) + i];
    }
  }
  round_columns(sum, out);
}

}  // namespace

void add_partials(std::span<const double* const> x, int64_t rows, int64_t terms, int64_t cols, uint16_t* y) {
  constexpr auto kStep = static_cast<int64_t>(kColumnsAtATime);
  std::array<uint16_t, kColumnsAtATime> rounded;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t begin = 0; begin < cols; begin += kStep) {
      const auto count = static_cast<size_t>(std::min(kStep, cols - begin));
      std::array<float, kColumnsAtATime> total{};
      for (int64_t term = 0; term < terms; ++term) {
        add_ranks(x, (row * terms + term) * cols + begin, count, rounded);
        if (terms == 1) continue;
        for (size_t i = 0; i < kColumnsAtATime; ++i) total[i] += bf16_to_float(rounded[i]);
      }
      if (terms > 1) {
        for (size_t i = 0; i < kColumnsAtATime; ++i) rounded[i] = float_to_bf16(total[i]);
      }
      std::copy_n(rounded.begin(), count, y + row * cols + begin);
    }
  }
}

}  // namespace spark::engine
