// What a step costs, as measured before the first request: the base of how many drafts to verify.
//
//   StepCosts costs = measure_step_costs(model, {.max_sequences = 16, .max_drafts = 5});
//   double step_s = costs.verify.at(rows) + costs.draft.at(requests);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/forward/step_model.h"

namespace spark::engine {

struct CostPoint {
  double size = 0;  // rows, or requests
  double seconds = 0;
};

// Linear between its points; beyond the last the last slope goes on, below the first its cost holds. Never
// falls: what disturbs a measurement only adds to it, so no size costs more than a larger one was seen to.
class CostCurve {
 public:
  CostCurve() = default;
  explicit CostCurve(std::vector<CostPoint> points);  // in any order

  double at(double size) const;
  // What one more costs there.
  double slope(double size) const { return at(size + 1) - at(size); }
  bool empty() const { return points_.empty(); }
  const std::vector<CostPoint>& points() const { return points_; }

 private:
  std::vector<CostPoint> points_;  // ascending
};

struct StepCosts {
  CostCurve verify = {};  // seconds of a step by its rows
  CostCurve draft = {};   // seconds of a call for drafts by its requests

  // One line: "verify [[1, 0.52], [6, 0.61]] draft [[1, 0.08]] (tokens or requests, ms)".
  std::string describe() const;
};

struct CostMeasurement {
  int32_t max_sequences = 1;
  int32_t max_drafts = 0;        // rows of a sequence beside its own
  bool drawn = false;            // drafts are drawn, which takes longer
  int32_t repetitions = 9;       // the fastest counts
  double seconds_a_size = 0.05;  // fewer repetitions when they take longer, at least three
};

// Runs steps of short sequences of real rows: rows of padding would leave the experts out and cost too
// little. The model has no open sequence, before and after. Stops at the size for which the model has no
// room.
StepCosts measure_step_costs(StepModel& model, const CostMeasurement& options);

}  // namespace spark::engine
