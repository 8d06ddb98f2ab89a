// Whether counts agree, for tests of what is drawn at random.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace spark::engine {

// Probability that a chi-square variable exceeds x (Wilson and Hilferty, 1931; good to three digits here).
inline double chi_square_tail(double x, double degrees) {
  if (degrees <= 0) return 1;
  const double spread = 2 / (9 * degrees);
  const double z = (std::cbrt(x / degrees) - (1 - spread)) / std::sqrt(spread);
  return 0.5 * std::erfc(z / std::sqrt(2.0));
}

// That two samples come from one distribution. Cells with fewer than ten counts together are joined.
inline double same_distribution(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> first, second;
  double rest_a = 0, rest_b = 0, total_a = 0, total_b = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    total_a += a[i];
    total_b += b[i];
    if (a[i] + b[i] < 10) {
      rest_a += a[i];
      rest_b += b[i];
    } else {
      first.push_back(a[i]);
      second.push_back(b[i]);
    }
  }
  if (rest_a + rest_b > 0) {
    first.push_back(rest_a);
    second.push_back(rest_b);
  }
  const double ka = std::sqrt(total_b / total_a), kb = 1 / ka;
  double x = 0;
  for (size_t i = 0; i < first.size(); ++i) {
    const double difference = ka * first[i] - kb * second[i];
    x += difference * difference / (first[i] + second[i]);
  }
  return chi_square_tail(x, static_cast<double>(first.size()) - 1);
}

// That counts come from these probabilities.
inline double fits(const std::vector<double>& counts, const std::vector<double>& probability) {
  double total = 0, x = 0, degrees = -1;
  for (const double count : counts) total += count;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (probability[i] <= 0) {
      if (counts[i] > 0) return 0;
      continue;
    }
    const double mean = total * probability[i];
    x += (counts[i] - mean) * (counts[i] - mean) / mean;
    ++degrees;
  }
  return chi_square_tail(x, degrees);
}

}  // namespace spark::engine
