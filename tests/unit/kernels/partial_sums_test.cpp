// Sums that a rank hands on unrounded: products and experts cut into parts, added up in double and rounded
// once, give the bits of the whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/kernels/cpu/cpu_backend.h"
#include "engine/kernels/cpu/simd_targets.h"
#include "engine/kernels/reference/reference_backend.h"
#include "kernel_cases/random.h"

namespace spark::engine {
namespace {

using cases::HostExpert;
using cases::HostWeight;
using cases::quantised;
using cases::QuantisedHost;
using cases::Random;

struct Columns {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
};

template <typename T>
std::vector<T> cut(const std::vector<T>& values, int64_t row, int64_t begin, int64_t end) {
  std::vector<T> result;
  for (size_t at = 0; at < values.size(); at += static_cast<size_t>(row)) {
    const auto from = values.begin() + static_cast<std::ptrdiff_t>(at);
    result.insert(result.end(), from + begin, from + end);
  }
  return result;
}

int64_t bits_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return 32;
    case WeightFormat::kBf16:
      return 16;
    case WeightFormat::kFp8:
      return 8;
    case WeightFormat::kFp4:
      return 4;
  }
  return 0;
}

HostWeight columns_of(const HostWeight& w, Columns c) {
  const int64_t bits = bits_of(w.format);
  HostWeight part{
      w.format, w.rows, c.count(), cut(w.data, w.cols * bits / 8, c.begin * bits / 8, c.end * bits / 8), {}};
  if (!w.scales.empty()) part.scales = cut(w.scales, w.cols / 32, c.begin / 32, c.end / 32);
  return part;
}

// For FP8 and FP4, in whole tiles.
HostWeight rows_of(const HostWeight& w, Columns c) {
  const int64_t row = w.cols * bits_of(w.format) / 8;
  const int64_t scale_row = w.cols / 32;
  const int64_t per_scale = w.format == WeightFormat::kFp8 ? 32 : 1;
  const auto slice = [](const std::vector<uint8_t>& from, int64_t begin, int64_t end) {
    return std::vector<uint8_t>(from.begin() + begin, from.begin() + end);
  };
  return {w.format, c.count(), w.cols, slice(w.data, c.begin * row, c.end * row),
          slice(w.scales, c.begin / per_scale * scale_row, c.end / per_scale * scale_row)};
}

struct Input {
  int32_t rows = 0;
  int64_t cols = 0;
  std::vector<uint16_t> x;
  QuantisedHost q;

  Input columns(Columns c) const {
    return {rows,
            c.count(),
            cut(x, cols, c.begin, c.end),
            {cut(q.codes, cols, c.begin, c.end), cut(q.scales, cols / 32, c.begin / 32, c.end / 32)}};
  }
  Input row(int32_t m) const {
    const auto of = [&](const auto& values, int64_t width) {
      return std::vector(values.begin() + m * width, values.begin() + (m + 1) * width);
    };
    return {1, cols, of(x, cols), {of(q.codes, cols), of(q.scales, cols / 32)}};
  }
};

std::vector<double> product(Backend& backend, const HostWeight& weight, Input input) {
  const Weight placed = backend.place(weight.view());
  std::vector<double> y(static_cast<size_t>(input.rows * weight.rows), -1.0);
  backend.linear({.rows = input.rows,
                  .x = input.x.data(),
                  .x_q = {input.q.codes.data(), input.q.scales.data()},
                  .weight = &placed,
                  .y_f64 = y.data(),
                  .y_stride = weight.rows});
  return y;
}

std::vector<uint16_t> rounded(const std::vector<double>& sums) {
  std::vector<uint16_t> result;
  for (const double sum : sums) result.push_back(double_to_bf16(sum));
  return result;
}

void add(std::vector<double>& sums, const std::vector<double>& part) {
  if (sums.empty()) sums.assign(part.size(), 0.0);
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += part[i];
}

// Each part rounded to BF16 before the sum: what the exact form avoids.
void add_rounded(std::vector<double>& sums, const std::vector<double>& part) {
  std::vector<double> low;
  for (const double value : part) low.push_back(static_cast<double>(bf16_to_float(double_to_bf16(value))));
  add(sums, low);
}

constexpr int64_t kOut = 70;
constexpr int64_t kIn = 320;
const std::vector<std::vector<Columns>> kCuts = {
    {{0, 160}, {160, 320}}, {{0, 96}, {96, 224}, {224, 320}}, {{0, 32}, {32, 64}, {64, 288}, {288, 320}}};
constexpr WeightFormat kFormats[] = {WeightFormat::kFp8, WeightFormat::kFp4, WeightFormat::kBf16,
                                     WeightFormat::kF32};

struct ProductCase {
  HostWeight weight;
  Input input;
};
ProductCase product_case(WeightFormat format, int32_t rows) {
  Random random(static_cast<uint64_t>(rows) * 10 + static_cast<uint64_t>(format));
  ProductCase result;
  result.weight = random_weight(random, format, kOut, kIn);
  const auto x = bf16_rows(random, rows, kIn);
  result.input = {rows, kIn, x, quantised(x)};
  return result;
}

TEST(PartialSums, PartsOfAProductAddUpToTheBitsOfTheWhole) {
  const auto backend = make_cpu_backend(1);
  size_t flipped = 0;
  for (const WeightFormat format : kFormats) {
    for (const int32_t rows : {1, 3, 8, 17}) {
      const ProductCase c = product_case(format, rows);
      const auto whole = rounded(product(*backend, c.weight, c.input));
      for (const auto& cuts : kCuts) {
        std::vector<double> sums, coarse;
        for (const Columns part : cuts) {
          const auto got = product(*backend, columns_of(c.weight, part), c.input.columns(part));
          add(sums, got);
          add_rounded(coarse, got);
        }
        EXPECT_EQ(rounded(sums), whole) << static_cast<int>(format) << ", " << rows << " rows";
        const auto other = rounded(coarse);
        for (size_t i = 0; i < whole.size(); ++i) flipped += other[i] != whole[i] ? 1 : 0;
      }
    }
  }
  EXPECT_GT(flipped, 1000U);  // rounding first would show
}

TEST(PartialSums, ProductsAreThoseOfTheReferenceInAnyBatchAndOnAnyProcessor) {
  const auto reference = make_reference_backend();
  const auto one = make_cpu_backend(1);
  const auto two = make_cpu_backend(CpuOptions{.threads = 2, .fork_ns = 0});
  const int64_t targets = cpu::usable_simd_targets();
  for (const WeightFormat format : kFormats) {
    const ProductCase c = product_case(format, 13);
    const auto expected = product(*reference, c.weight, c.input);
    const auto got = product(*one, c.weight, c.input);
    for (int32_t m = 0; m < c.input.rows; ++m) {
      const auto begin = static_cast<size_t>(m * kOut);
      double largest = 0;
      for (size_t n = begin; n < begin + kOut; ++n) largest = std::max(largest, std::abs(expected[n]));
      for (size_t n = begin; n < begin + kOut; ++n) {
        EXPECT_LE(std::abs(got[n] - expected[n]), largest * 2e-6) << static_cast<int>(format);
      }
      const auto alone = product(*one, c.weight, c.input.row(m));
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), got.begin() + m * kOut)) << m;
    }
    EXPECT_EQ(product(*two, c.weight, c.input), got);
    // The two best vector widths; the emulation has no fused multiply-add.
    const int64_t second = (targets & (targets - 1)) & -(targets & (targets - 1));
    if ((targets & (targets - 1) & ~second) == 0) continue;
    cpu::limit_simd_targets(second);
    EXPECT_EQ(product(*one, c.weight, c.input), got);
    cpu::limit_simd_targets(0);
  }
}

struct ExpertCase {
  int32_t rows = 0;
  int32_t hidden = 128;
  int32_t top_k = 3;
  std::vector<HostExpert> experts;  // the shared one last
  QuantisedHost x;
  std::vector<int32_t> ids, sequence;
  std::vector<float> weights;
};

ExpertCase expert_case(int32_t rows, int64_t width) {
  Random random(static_cast<uint64_t>(rows + width));
  ExpertCase c;
  c.rows = rows;
  const auto expert = [&](WeightFormat format) {
    return HostExpert{random_weight(random, format, width, c.hidden),
                      random_weight(random, format, width, c.hidden),
                      random_weight(random, format, c.hidden, width)};
  };
  for (int e = 0; e < 6; ++e) c.experts.push_back(expert(WeightFormat::kFp4));
  c.experts.push_back(expert(WeightFormat::kFp8));
  c.x = quantised(bf16_values(random, static_cast<size_t>(rows * c.hidden)));
  for (int32_t t = 0; t < rows; ++t) {
    for (int32_t i = 0; i < c.top_k; ++i) c.ids.push_back((t * 5 + i * 2) % 6);
    for (int32_t i = 0; i < c.top_k; ++i) c.weights.push_back(static_cast<float>(random.uniform()));
    c.sequence.push_back(rows > 4 && t == 2 ? -1 : t);
  }
  return c;
}

// The unrounded results; or, with `rounded_sum`, there the finished ones.
std::vector<double> experts(Backend& backend, ExpertCase c, Columns part, uint16_t* rounded_sum = nullptr) {
  std::vector<HostExpert> parts;
  std::vector<ExpertWeights> views;
  for (const HostExpert& e : c.experts) {
    parts.push_back({rows_of(e.w1, part), rows_of(e.w3, part), columns_of(e.w2, part)});
  }
  for (const HostExpert& e : parts) views.push_back({e.w1.view(), e.w3.view(), e.w2.view()});
  const ExpertBank bank = backend.place_experts(std::span(views).first(views.size() - 1));
  const ExpertWeights shared{backend.place(views.back().w1), backend.place(views.back().w3),
                             backend.place(views.back().w2)};
  std::vector<double> y(static_cast<size_t>(c.rows * (c.top_k + 1) * c.hidden), 0.0);
  backend.experts({.step = {.rows = c.rows, .sequence = c.sequence.data()},
                   .hidden = c.hidden,
                   .width = static_cast<int32_t>(part.count()),
                   .top_k = c.top_k,
                   .x_q = {c.x.codes.data(), c.x.scales.data()},
                   .ids = c.ids.data(),
                   .weights = c.weights.data(),
                   .bank = &bank,
                   .shared = &shared,
                   .y = rounded_sum,
                   .y_f64 = rounded_sum == nullptr ? y.data() : nullptr});
  return y;
}

TEST(PartialSums, PartsOfTheExpertsAddUpToTheBitsOfTheWhole) {
  const auto backend = make_cpu_backend(2);
  const auto reference = make_reference_backend();
  for (const int32_t rows : {1, 6, 300}) {
    const ExpertCase c = expert_case(rows, 192);
    const auto sums = experts(*backend, c, {0, 192});
    const auto whole = rounded(sums);
    for (const std::vector<Columns>& cuts :
         {std::vector<Columns>{{0, 96}, {96, 192}}, std::vector<Columns>{{0, 64}, {64, 128}, {128, 192}},
          std::vector<Columns>{{0, 32}, {32, 64}, {64, 160}, {160, 192}}}) {
      std::vector<double> parts;
      for (const Columns part : cuts) add(parts, experts(*backend, c, part));
      EXPECT_EQ(rounded(parts), whole) << rows << " rows, " << cuts.size() << " parts";
    }
    if (rows > 6) continue;
    // Summed as a rank alone does, they are what y would have been.
    const auto hidden = static_cast<size_t>(c.hidden);
    std::vector<uint16_t> want(static_cast<size_t>(rows) * hidden);
    experts(*backend, c, {0, 192}, want.data());
    size_t differing = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      float total = 0;
      for (size_t e = 0; e <= static_cast<size_t>(c.top_k); ++e) {
        total +=
            bf16_to_float(whole[(i / hidden * (static_cast<size_t>(c.top_k) + 1) + e) * hidden + i % hidden]);
      }
      differing += float_to_bf16(total) != want[i] ? 1 : 0;
    }
    EXPECT_LE(differing * 50, want.size());  // sums over blocks in FP32 there, in double here
    const auto expected = experts(*reference, c, {0, 192});
    double largest = 0, distance = 0;
    for (size_t i = 0; i < sums.size(); ++i) {
      largest = std::max(largest, std::abs(expected[i]));
      distance = std::max(distance, std::abs(sums[i] - expected[i]));
    }
    EXPECT_GT(largest, 0);
    EXPECT_LE(distance, largest * 0.01);  // a flipped code of the rows in between
  }
}

}  // namespace
}  // namespace spark::engine
