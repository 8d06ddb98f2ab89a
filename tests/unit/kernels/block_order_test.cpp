// The order in which the CPU backend adds the products of a block of 32 inputs (tile_product.h): every path
// (the tile unit, each vector width, one row and many) gives the bits of a plain loop in that order.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "engine/kernels/cpu/cpu_backend.h"
#include "engine/kernels/cpu/simd_targets.h"
#include "engine/kernels/cpu/tile_unit.h"
#include "kernel_cases/random.h"

namespace spark::engine {
namespace {

using cases::HostExpert;
using cases::HostWeight;
using cases::QuantisedHost;
using cases::Random;

struct Product {
  HostWeight weight;
  QuantisedHost x;
  int32_t rows = 0;
};

float code_value(uint8_t code) {
  return (code & 0x7F) == 0x7F ? std::copysign(480.0F, (code & 0x80) != 0 ? -1.0F : 1.0F) : kE4m3Values[code];
}
float weight_value(const HostWeight& w, int64_t n, int64_t k) {
  const int64_t at = n * w.cols + k;
  if (w.format == WeightFormat::kFp8) return kE4m3Values[w.data[static_cast<size_t>(at)]];
  constexpr float kMagnitudes[8] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  const int code = w.data[static_cast<size_t>(at / 2)] >> (at % 2 * 4) & 15;
  return (code & 8) != 0 ? -kMagnitudes[code & 7] : kMagnitudes[code & 7];
}
float weight_scale(const HostWeight& w, int64_t n, int64_t block) {
  const int64_t row = w.format == WeightFormat::kFp8 ? n / 32 : n;
  return ue8m0_to_float(w.scales[static_cast<size_t>(row * ((w.cols + 31) / 32) + block)]);
}

// The definition, written down once more.
float block_sum(const Product& p, int64_t m, int64_t n, int64_t block) {
  float first = 0, other = 0;
  for (int64_t k = block * 32; k < block * 32 + 32; ++k) {
    const float x = code_value(p.x.codes[static_cast<size_t>(m * p.weight.cols + k)]);
    float& sum = k % 8 < 4 ? first : other;
    sum = std::fma(x, weight_value(p.weight, n, k), sum);
  }
  return first + other;
}
std::vector<float> in_plain_order(const Product& p) {
  std::vector<float> y;
  const int64_t blocks = p.weight.cols / 32;
  for (int64_t m = 0; m < p.rows; ++m) {
    for (int64_t n = 0; n < p.weight.rows; ++n) {
      float total = 0;
      for (int64_t b = 0; b < blocks; ++b) {
        const float scale = ue8m0_to_float(p.x.scales[static_cast<size_t>(m * blocks + b)]);
        total = std::fma(block_sum(p, m, n, b) * scale, weight_scale(p.weight, n, b), total);
      }
      y.push_back(total);
    }
  }
  return y;
}

template <typename T>
std::vector<T> run(Backend& backend, const Product& p) {
  const Weight placed = backend.place(p.weight.view());
  std::vector<T> y(static_cast<size_t>(p.rows * p.weight.rows), T(-1));
  LinearArgs args{.rows = p.rows,
                  .x_q = {const_cast<uint8_t*>(p.x.codes.data()), const_cast<uint8_t*>(p.x.scales.data())},
                  .weight = &placed,
                  .y_stride = p.weight.rows};
  if constexpr (std::is_same_v<T, float>) args.y_f32 = y.data();
  if constexpr (std::is_same_v<T, double>) args.y_f64 = y.data();
  if constexpr (std::is_same_v<T, uint16_t>) args.y = y.data();
  backend.linear(args);
  return y;
}

// Equal bits, but any NaN is as good as another.
template <typename T>
int64_t differing(const std::vector<T>& a, const std::vector<T>& b) {
  int64_t count = a.size() == b.size() ? 0 : 1 << 20;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(T)) == 0) continue;
    if constexpr (!std::is_same_v<T, uint16_t>) {
      if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    }
    ++count;
  }
  return count;
}

// Cancels between inputs, between the two parts, and leaves a rest that shows how it was added.
void make_cancel(Random& random, Product& p) {
  for (size_t i = 0; i + 8 <= p.x.codes.size(); i += 8) {
    for (size_t k = 0; k < 4; ++k) {
      const auto big =
          static_cast<uint8_t>(random.below(2) == 0 ? 0x70 + random.below(15) : random.below(16));
      p.x.codes[i + k] = big;
      p.x.codes[i + k + 4] = random.below(4) == 0 ? static_cast<uint8_t>(random.below(127)) : big ^ 0x80;
    }
  }
}

Product random_product(uint64_t seed, WeightFormat format, int32_t rows, int64_t cols, int64_t outputs) {
  Random random(seed);
  Product p{random_weight(random, format, outputs, cols), {}, rows};
  const auto n = static_cast<size_t>(rows * cols);
  for (size_t i = 0; i < n; ++i) p.x.codes.push_back(static_cast<uint8_t>(random.bits()));
  for (size_t i = 0; i < n / 32; ++i) p.x.scales.push_back(static_cast<uint8_t>(100 + random.below(50)));
  switch (seed % 4) {
    case 0:
      break;
    case 1:
      make_cancel(random, p);
      break;
    case 2:
      cases::add_edges(random, p.x.codes, p.x.scales);
      break;
    default:  // zeros of both signs
      for (uint8_t& code : p.x.codes) code = random.below(3) != 0 ? code & 0x80 : code;
      break;
  }
  return p;
}

struct Restore {
  ~Restore() { cpu::limit_simd_targets(0); }
};

std::vector<Product> products() {
  std::vector<Product> list;
  uint64_t seed = 0;
  for (const WeightFormat format : {WeightFormat::kFp8, WeightFormat::kFp4}) {
    for (int32_t rows = 1; rows <= 48; ++rows) {
      Random random(seed + 77);
      const int64_t cols = 32 * (1 + random.below(9));
      list.push_back(random_product(seed++, format, rows, cols, 1 + random.below(100)));
    }
    list.push_back(random_product(seed++, format, 67, 96, 40));  // more than one task takes
    list.push_back(random_product(seed++, format, 129, 64, 33));
  }
  return list;
}

TEST(BlockOrder, EveryPathIsThePlainLoop) {
  const Restore restore;
  const auto backend = make_cpu_backend(CpuOptions{.threads = 2, .fork_ns = 0});
  for (const Product& p : products()) {
    const auto expected = in_plain_order(p);
    const std::string what = std::to_string(p.rows) + " rows, " + std::to_string(p.weight.cols) +
                             " inputs, " + std::to_string(p.weight.rows) + " outputs, format " +
                             std::to_string(static_cast<int>(p.weight.format));
    cpu::limit_simd_targets(0);
    ASSERT_EQ(differing(run<float>(*backend, p), expected), 0) << backend->name() << ", " << what;
    for (int64_t left = cpu::usable_simd_targets(); left != 0; left &= left - 1) {
      cpu::limit_simd_targets(left & -left);
      if ((left & (left - 1)) == 0 && left != cpu::usable_simd_targets()) continue;
      ASSERT_EQ(differing(run<float>(*backend, p), expected), 0) << backend->name() << ", " << what;
    }
  }
}

TEST(BlockOrder, TheOrderShows) {
  // The data can tell: one input after the other gives other bits.
  int64_t different = 0;
  for (const Product& p : products()) {
    if (p.weight.format != WeightFormat::kFp8) continue;
    for (int64_t n = 0; n < p.weight.rows; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < 32; ++k)
        sum = std::fma(code_value(p.x.codes[static_cast<size_t>(k)]), weight_value(p.weight, n, k), sum);
      different += sum != block_sum(p, 0, n, 0) ? 1 : 0;
    }
  }
  EXPECT_GT(different, 100);
}

TEST(BlockOrder, SumsInDoubleAndRoundedOnesToo) {
  const Restore restore;
  const auto backend = make_cpu_backend(1);
  for (const Product& p : products()) {
    const auto wide = run<double>(*backend, p);
    const auto narrow = run<uint16_t>(*backend, p);
    cpu::limit_simd_targets(cpu::usable_simd_targets());  // without the tile unit
    EXPECT_EQ(differing(wide, run<double>(*backend, p)), 0) << p.rows;
    EXPECT_EQ(differing(narrow, run<uint16_t>(*backend, p)), 0) << p.rows;
    cpu::limit_simd_targets(0);
  }
}

// Plain values: ordinary, tiny (where the unit would take subnormal numbers for zero), so large that sums
// overflow.
TEST(BlockOrder, GroupedProductsToo) {
  const Restore restore;
  const auto backend = make_cpu_backend(CpuOptions{.threads = 2, .fork_ns = 0});
  Random random(9);
  for (int round = 0; round < 60; ++round) {
    const int32_t rows = 1 + random.below(40), groups = 1 + random.below(4);
    const int64_t cols = 8 * (1 + random.below(20)), outputs = groups * (1 + random.below(50));
    const HostWeight weight = random_weight(random, WeightFormat::kFp8, outputs, cols);
    const Weight placed = backend->place(weight.view());
    std::vector<uint16_t> x(static_cast<size_t>(rows * groups * cols));
    for (uint16_t& value : x) {
      const int exponent = round % 3 == 0   ? 0
                           : round % 3 == 1 ? -90 - random.below(60)
                                            : 100 + random.below(27);
      value = float_to_bf16(std::ldexp(random.normal(), exponent));
    }
    const auto run = [&] {
      std::vector<uint16_t> y(static_cast<size_t>(rows * outputs), 7);
      backend->grouped_linear(
          {.rows = rows, .groups = groups, .x = x.data(), .weight = &placed, .y = y.data()});
      for (uint16_t& value : y) value = (value & 0x7FFF) > 0x7F80 ? 0x7FFF : value;  // NaN is NaN
      return y;
    };
    const auto expected = run();
    for (int64_t left = cpu::usable_simd_targets(); left != 0; left &= left - 1) {
      // The emulation multiplies and adds apart, and may overflow between the two.
      if (round % 3 == 2 && (left & (left - 1)) == 0 && left != cpu::usable_simd_targets()) continue;
      cpu::limit_simd_targets(left & -left);
      EXPECT_EQ(differing(expected, run()), 0) << backend->name() << ", round " << round;
    }
    cpu::limit_simd_targets(0);
  }
}

struct Bank {
  int64_t width = 0, hidden = 0;
  std::vector<HostExpert> host;
};

template <typename T>
std::vector<T> run_experts(Backend& backend, const Bank& bank, int32_t rows, uint64_t seed) {
  Random random(seed);
  constexpr int32_t kTopK = 3;
  const auto count = static_cast<int32_t>(bank.host.size()) - 1;
  const QuantisedHost x = cases::quantised(
      cases::bf16_rows(random, rows, static_cast<size_t>(bank.hidden), static_cast<int>(seed)));
  std::vector<int32_t> ids, sequence;
  std::vector<float> weights;
  for (int32_t t = 0; t < rows; ++t) {
    // Shares of every size: the first expert has nearly all rows, the last few.
    const int32_t first = random.below(8) == 0 ? 1 + random.below(count - 3) : 0;
    ids.insert(ids.end(), {first, count - 2, first == 1 ? 2 : count - 1});
    for (int32_t i = 0; i < kTopK; ++i) weights.push_back(static_cast<float>(random.uniform()));
    sequence.push_back(rows > 4 && t == 2 ? -1 : t);
  }
  std::vector<ExpertWeights> host;
  for (const HostExpert& e : bank.host) host.push_back({e.w1.view(), e.w3.view(), e.w2.view()});
  const ExpertBank placed = backend.place_experts(std::span(host).first(host.size() - 1));
  const ExpertBank shared = backend.place_experts(std::span(host).last(1));
  const auto size = static_cast<size_t>(rows * bank.hidden);
  std::vector<T> y(std::is_same_v<T, double> ? size * (kTopK + 1) : size, T(0));
  ExpertsArgs args{.step = {.rows = rows, .sequence = sequence.data()},
                   .hidden = static_cast<int32_t>(bank.hidden),
                   .width = static_cast<int32_t>(bank.width),
                   .top_k = kTopK,
                   .limit = 7.0F,
                   .x_q = {const_cast<uint8_t*>(x.codes.data()), const_cast<uint8_t*>(x.scales.data())},
                   .ids = ids.data(),
                   .weights = weights.data(),
                   .bank = &placed,
                   .shared = &shared.experts[0]};
  if constexpr (std::is_same_v<T, double>) {
    args.y_f64 = y.data();
  } else {
    args.y = y.data();
  }
  backend.experts(args);
  return y;
}

TEST(BlockOrder, ExpertsToo) {
  const Restore restore;
  const auto backend = make_cpu_backend(CpuOptions{.threads = 2, .fork_ns = 0});
  Bank bank{96, 160, {}};
  Random random(5);
  for (int e = 0; e < 7; ++e) {
    const WeightFormat format = e == 6 ? WeightFormat::kFp8 : WeightFormat::kFp4;
    bank.host.push_back({random_weight(random, format, bank.width, bank.hidden),
                         random_weight(random, format, bank.width, bank.hidden),
                         random_weight(random, format, bank.hidden, bank.width)});
  }
  for (const int32_t rows : {1, 2, 3, 4, 7, 9, 16, 17, 40, 300}) {
    const auto seed = static_cast<uint64_t>(rows);
    const auto y = run_experts<uint16_t>(*backend, bank, rows, seed);
    const auto wide = run_experts<double>(*backend, bank, rows, seed);
    for (int64_t left = cpu::usable_simd_targets(); left != 0; left &= left - 1) {
      if ((left & (left - 1)) == 0 && left != cpu::usable_simd_targets()) continue;  // exp differs there
      cpu::limit_simd_targets(left & -left);
      EXPECT_EQ(differing(y, run_experts<uint16_t>(*backend, bank, rows, seed)), 0) << rows;
      EXPECT_EQ(differing(wide, run_experts<double>(*backend, bank, rows, seed)), 0) << rows;
    }
    cpu::limit_simd_targets(0);
  }
}

}  // namespace
}  // namespace spark::engine
