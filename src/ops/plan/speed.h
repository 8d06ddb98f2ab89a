// Predicted times: a decode step for some streams, and prefill of a prompt.
//
//   const SpeedModel speed(request);
//   const StepTime step = speed.step(workload, 8, 1024);
//   const PrefillTime prefill = speed.prefill(262144);
//
// Bytes, operations and collective sizes are the model's. For vLLM they are divided by rates that were fitted
// to the reference's published runs (ops/plan/calibration.h), and the result is a prediction; for the native
// engine they are divided by the device's ceilings, and the result is a floor.
#pragma once

#include "model/cost.h"
#include "ops/plan/calibration.h"
#include "ops/plan/request.h"

namespace spark::ops {

struct StepTime {
  int64_t streams = 0;
  double rows = 0;   // of the verification
  double bytes = 0;  // that one rank reads
  double memory_s = 0;
  double collective_s = 0;
  double total_s() const { return memory_s + collective_s; }
  double tokens_per_s = 0;  // all streams together; 0 when unknown
};

struct PrefillTime {
  int64_t tokens = 0;
  double flops = 0;  // all ranks
  double dense_s = 0;
  double score_s = 0;
  double window_s = 0;  // the decoder's last rows of every chunk: bound by bytes
  double collective_s = 0;
  double total_s() const { return dense_s + score_s + window_s + collective_s; }
  double tokens_per_s() const { return total_s() > 0 ? static_cast<double>(tokens) / total_s() : 0; }
};

class SpeedModel {
 public:
  // Keeps a reference to the request. Throws Error when the model does not split over its ranks.
  explicit SpeedModel(const PlanRequest& request);

  // `context`: tokens before the step, per stream.
  StepTime step(const Workload& workload, int64_t streams, int64_t context) const;
  PrefillTime prefill(int64_t tokens) const;

 private:
  const PlanRequest& request_;
  model::RankSplit split_;
  model::CostModel cost_;
};

}  // namespace spark::ops
