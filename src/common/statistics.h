// Statistics primitives. Functions of an empty sample return NaN.
#pragma once

#include <span>

namespace spark {

double mean(std::span<const double> sample);
double standard_deviation(std::span<const double> sample);  // of a sample: divides by n - 1
// Linear interpolation between order statistics (type 7); q in [0, 1].
double quantile(std::span<const double> sample, double q);
inline double median(std::span<const double> sample) {
  return quantile(sample, 0.5);
}

}  // namespace spark
