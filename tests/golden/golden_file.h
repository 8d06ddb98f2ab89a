// Reads a safetensors file of golden vectors, and compares with figures.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "common/file.h"
#include "common/json.h"
#include "engine/numeric/bf16.h"

namespace spark::engine::golden {

class GoldenFile {
 public:
  explicit GoldenFile(const std::string& path) : file_(read_file(path)) {
    uint64_t length = 0;
    std::memcpy(&length, file_.data(), 8);
    header_ = parse_json(std::string_view(file_).substr(8, length), path);
    body_ = 8 + length;
  }

  bool has(const std::string& name) const { return header_.contains(name); }

  template <typename T>
  std::vector<T> get(const std::string& name) const {
    const auto begin = header_.at(name).at("data_offsets").at(0).get<size_t>();
    const auto end = header_.at(name).at("data_offsets").at(1).get<size_t>();
    std::vector<T> result((end - begin) / sizeof(T));
    std::memcpy(result.data(), file_.data() + body_ + begin, end - begin);
    return result;
  }

  std::vector<int64_t> shape(const std::string& name) const {
    return header_.at(name).at("shape").get<std::vector<int64_t>>();
  }

 private:
  std::string file_;
  Json header_;
  size_t body_ = 0;
};

inline std::string data_path(const std::string& name) {
  return std::string(SPARK_TEST_DATA) + "/golden/" + name;
}

// The distance of two BF16 values in units of the last place; the two zeros are the same.
inline int bf16_steps(uint16_t a, uint16_t b) {
  const auto order = [](uint16_t bits) {
    return (bits & 0x8000U) != 0 ? -static_cast<int>(bits & 0x7FFFU) : static_cast<int>(bits);
  };
  return std::abs(order(a) - order(b));
}

struct Bf16Distance {
  size_t differing = 0;
  int largest_steps = 0;
  size_t count = 0;
};

inline Bf16Distance compare_bf16(const std::vector<uint16_t>& a, const std::vector<uint16_t>& b) {
  EXPECT_EQ(a.size(), b.size());
  Bf16Distance result;
  result.count = a.size();
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const int steps = bf16_steps(a[i], b[i]);
    result.differing += steps != 0 ? 1U : 0U;
    result.largest_steps = std::max(result.largest_steps, steps);
  }
  return result;
}

inline double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(difference <= worst)) worst = difference;
  }
  return worst;
}

inline size_t count_differing(const std::vector<float>& a, const std::vector<float>& b) {
  size_t n = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) n += a[i] != b[i] ? 1U : 0U;
  return n;
}

// |a - b| / |b|, 0 when both are zero.
template <typename Value>
double relative_l2(const Value* a, const Value* b, size_t n, double (*value)(Value)) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < n; ++i) {
    const double x = value(a[i]);
    const double y = value(b[i]);
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  if (difference == 0) return 0;
  return norm == 0 ? HUGE_VAL : std::sqrt(difference / norm);
}
inline double relative_l2(const float* a, const float* b, size_t n) {
  return relative_l2<float>(a, b, n, [](float v) { return static_cast<double>(v); });
}
inline double relative_l2(const uint16_t* a, const uint16_t* b, size_t n) {
  return relative_l2<uint16_t>(a, b, n, [](uint16_t v) { return static_cast<double>(bf16_to_float(v)); });
}

}  // namespace spark::engine::golden
