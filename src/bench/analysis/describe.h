// From samples to a point: location, spread and a 95 % confidence interval of the mean.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

namespace spark::bench {

struct Description {
  size_t n = 0;
  double mean = 0;
  double median = 0;
  double min = 0;
  double max = 0;
  // Undefined for fewer than two samples.
  std::optional<double> sd;        // n - 1 in the denominator
  std::optional<double> ci95;      // half-width: t(n-1) * sd / sqrt(n)
  std::optional<double> ci95_pct;  // of the mean
};

Description describe(std::span<const double> values);

// " ±1.2%" behind a mean. Empty below three samples: an interval of two is the quantile 12.7 at work, not the
// service's spread.
std::string interval_text(size_t n, const std::optional<double>& ci95_pct);

// Two-sided 95 % quantile of Student's t: a conservative step function of the tabulated degrees of freedom.
double student_t95(size_t degrees_of_freedom);

// Whether a point needs no further sample: `minimum` reached and the interval within `precision_pct`, or
// `maximum` reached.
bool converged(const Description& point, size_t minimum, size_t maximum, double precision_pct);

}  // namespace spark::bench
