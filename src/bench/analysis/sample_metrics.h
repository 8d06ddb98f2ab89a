// The figures of one sample (one wave of streams), from its receipts.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace spark::bench {

// The timing of one stream, seconds from the sample's start on the monotonic clock, taken when bytes arrived.
struct StreamTiming {
  bool ok = false;
  double start_s = 0;
  double first_s = 0;  // first event that carried text
  double last_s = 0;   // last event that carried text
  int64_t completion_tokens = 0;
};

struct SampleMetrics {
  double tps = 0;  // all tokens of streams that succeeded / wall time of the sample
  std::optional<double>
      decode_window_tps;                 // sum of (tokens - 1) / (last token anywhere - first token anywhere)
  std::optional<double> per_stream_tps;  // mean over streams of (tokens - 1) / (last - first)
  std::optional<double> ttft_s;          // mean time to first token
};

SampleMetrics sample_metrics(std::span<const StreamTiming> streams, double wall_s);

}  // namespace spark::bench
