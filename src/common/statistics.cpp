#include "common/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace spark {
namespace {
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
}

double mean(std::span<const double> sample) {
  if (sample.empty()) return kNaN;
  double sum = 0;
  for (const double x : sample) sum += x;
  return sum / static_cast<double>(sample.size());
}

double standard_deviation(std::span<const double> sample) {
  if (sample.size() < 2) return kNaN;
  const double m = mean(sample);
  double sum = 0;
  for (const double x : sample) sum += (x - m) * (x - m);
  return std::sqrt(sum / static_cast<double>(sample.size() - 1));
}

double quantile(std::span<const double> sample, double q) {
  if (sample.empty()) return kNaN;
  std::vector<double> sorted(sample.begin(), sample.end());
  std::sort(sorted.begin(), sorted.end());
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(position);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (position - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

}  // namespace spark
