#include "bench/analysis/describe.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/statistics.h"
#include "common/units.h"

namespace spark::bench {

double student_t95(size_t degrees_of_freedom) {
  struct Entry {
    size_t df;
    double t;
  };
  static constexpr Entry kTable[] = {{1, 12.706}, {2, 4.303},  {3, 3.182},  {4, 2.776},
                                     {5, 2.571},  {6, 2.447},  {7, 2.365},  {8, 2.306},
                                     {9, 2.262},  {10, 2.228}, {12, 2.179}, {15, 2.131},
                                     {20, 2.086}, {30, 2.042}, {60, 2.000}, {120, 1.980}};
  double result = std::numeric_limits<double>::quiet_NaN();
  for (const Entry& entry : kTable) {
    if (entry.df <= degrees_of_freedom) result = entry.t;
  }
  return result;
}

Description describe(std::span<const double> values) {
  Description result;
  result.n = values.size();
  if (values.empty()) return result;
  result.mean = mean(values);
  result.median = median(values);
  result.min = *std::min_element(values.begin(), values.end());
  result.max = *std::max_element(values.begin(), values.end());
  if (values.size() < 2) return result;
  const double sd = standard_deviation(values);
  const double ci = student_t95(values.size() - 1) * sd / std::sqrt(static_cast<double>(values.size()));
  result.sd = sd;
  result.ci95 = ci;
  if (result.mean != 0) result.ci95_pct = 100 * ci / std::abs(result.mean);
  return result;
}

std::string interval_text(size_t n, const std::optional<double>& ci95_pct) {
  return n < 3 || !ci95_pct ? std::string() : " ±" + format_fixed(*ci95_pct, 1) + "%";
}

bool converged(const Description& point, size_t minimum, size_t maximum, double precision_pct) {
  if (point.n >= maximum) return true;
  return point.n >= minimum && point.ci95_pct && *point.ci95_pct <= precision_pct;
}

}  // namespace spark::bench
