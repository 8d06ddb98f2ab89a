// The decode suite: every case at every concurrency, sampled in shuffled rounds until each point is known
// well enough.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "bench/report/report.h"

namespace spark::bench {

struct DecodeSuiteOptions {
  std::vector<Case> cases;
  std::vector<int> concurrency = {1, 2};
  size_t min_samples = 3;
  size_t max_samples = 6;
  double precision_pct = 2;
  uint64_t seed = 0;
  WaveOptions wave;
};

// Appends points and discarded samples to `report` (also when it throws: what was measured is kept). One
// warm-up sample per point is thrown away. `progress` gets one line per round.
void run_decode_suite(const HttpClient& client, const std::string& model, const DecodeSuiteOptions& options,
                      Report& report, const std::function<void(const std::string&)>& progress);

// The model to ask for: `wanted`, or when that is empty the first of /v1/models. Throws Error when the
// service does not list it, Unreachable when nothing answers.
std::string served_model(const HttpClient& client, const std::string& wanted = {});
// The text of /version's "version", empty when there is none.
std::string served_version(const HttpClient& client);

}  // namespace spark::bench
