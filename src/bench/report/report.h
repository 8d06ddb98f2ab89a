// bench.json: everything that was measured, and the table that is always printed from it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/analysis/describe.h"
#include "bench/analysis/sample_metrics.h"
#include "bench/load/wave.h"
#include "common/json.h"

namespace spark::bench {

inline constexpr int kReportSchema = 1;

struct DecodeSample {
  // Of the streams that succeeded. When one failed the others had more room, so the figures enter no mean.
  SampleMetrics metrics;
  std::optional<double> tokens_per_step;  // 1 + accepted / drafts, when the server drafts
  std::vector<Receipt> receipts;

  bool complete() const;  // every request succeeded
};

struct DecodePoint {
  std::string case_name;
  int concurrency = 1;
  std::vector<DecodeSample> samples;

  std::string name() const { return case_name + "-c" + std::to_string(concurrency); }
  size_t failed_requests() const;
};

struct Report {
  std::string started_utc;  // yyyymmddThhmmssZ
  std::string finished_utc;
  std::string url;
  std::string model;
  std::string server_version;  // what /version says, empty when it says nothing
  std::string client_version;
  std::string host;  // CPU and core count of the client's machine
  Json deployment;   // members of "identity" that say what was started; null: only its address is known
  std::string prompt_set;
  double precision_pct = 0;
  size_t min_samples = 0;
  size_t max_samples = 0;
  uint64_t seed = 0;
  std::vector<DecodePoint> points;
  std::vector<DiscardedSample> discarded;
  std::string aborted;  // why the run stopped early, empty otherwise

  bool failed() const;  // aborted, or a request failed
};

Json report_json(const Report& report);

// The table of a report, read from its JSON so that a stored and a fresh report print the same. Throws Error
// when the JSON is no report of this schema.
std::string report_table(const Json& report, const std::string& source);

}  // namespace spark::bench
