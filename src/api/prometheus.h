// Prometheus' text format (0.0.4): the writer of a server's page, a histogram to put on it, and the reader.
//
//   MetricsWriter page;
//   page.family("vllm:num_requests_running", "gauge", "Requests in the batch.");
//   page.sample("vllm:num_requests_running", {{"model_name", name}}, 3);
//
//   const MetricsPage seen = parse_metrics(body);
//   double running = seen.sum("vllm:num_requests_running").value_or(0);    // over all label sets of exactly
//   this name
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spark::api {

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

inline constexpr std::string_view kMetricsMediaType = "text/plain; version=0.0.4; charset=utf-8";

// Counts of observations at or below each bound. Not synchronised.
class Histogram {
 public:
  explicit Histogram(std::vector<double> ascending_bounds)
      : bounds_(std::move(ascending_bounds)), counts_(bounds_.size() + 1) {}

  void observe(double value);
  const std::vector<double>& bounds() const { return bounds_; }
  const std::vector<uint64_t>& counts() const {
    return counts_;
  }  // not cumulative; the last one: above all bounds
  uint64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;
  uint64_t count_ = 0;
  double sum_ = 0;
};

class MetricsWriter {
 public:
  // Starts a family; its samples follow. `type` is "gauge", "counter" or "histogram".
  void family(std::string_view name, std::string_view type, std::string_view help);
  void sample(std::string_view name, const MetricLabels& labels, double value);
  // NAME_bucket for every bound and +Inf, NAME_sum, NAME_count.
  void histogram(std::string_view name, const MetricLabels& labels, const Histogram& histogram);
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

struct MetricSample {
  std::string name;
  MetricLabels labels;
  double value = 0;

  std::optional<std::string> label(std::string_view name) const;
};

struct MetricsPage {
  std::vector<MetricSample> samples;

  std::optional<double> sum(std::string_view name) const;  // nullopt when the name does not occur
  // The sum over samples whose label has this value.
  std::optional<double> sum_where(std::string_view name, std::string_view label,
                                  std::string_view value) const;
};

// Throws Error naming the line that is no sample.
MetricsPage parse_metrics(std::string_view text);

}  // namespace spark::api
