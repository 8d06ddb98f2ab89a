#include "bench/analysis/sample_metrics.h"

#include <algorithm>
#include <vector>

#include "common/statistics.h"

namespace spark::bench {

SampleMetrics sample_metrics(std::span<const StreamTiming> streams, double wall_s) {
  SampleMetrics result;
  int64_t tokens = 0;
  int64_t window_tokens = 0;
  double first = 0;
  double last = 0;
  std::vector<double> rates;
  std::vector<double> ttft;
  for (const StreamTiming& stream : streams) {
    if (!stream.ok) continue;
    tokens += stream.completion_tokens;
    ttft.push_back(stream.first_s - stream.start_s);
    if (stream.completion_tokens < 2) continue;
    first = window_tokens == 0 ? stream.first_s : std::min(first, stream.first_s);
    last = std::max(last, stream.last_s);
    window_tokens += stream.completion_tokens - 1;
    if (stream.last_s > stream.first_s) {
      rates.push_back(static_cast<double>(stream.completion_tokens - 1) / (stream.last_s - stream.first_s));
    }
  }
  if (wall_s > 0) result.tps = static_cast<double>(tokens) / wall_s;
  if (window_tokens > 0 && last > first)
    result.decode_window_tps = static_cast<double>(window_tokens) / (last - first);
  if (!rates.empty()) result.per_stream_tps = mean(rates);
  if (!ttft.empty()) result.ttft_s = mean(ttft);
  return result;
}

}  // namespace spark::bench
