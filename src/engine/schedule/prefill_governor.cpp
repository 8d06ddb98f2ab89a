#include "engine/schedule/prefill_governor.h"

#include <algorithm>
#include <bit>

namespace spark::engine {
namespace {

constexpr double kShare = 0.8;   // of the bound; the rest is for what varies
constexpr double kForget = 0.1;  // of what is dearer than the newest figure
constexpr int32_t kMostRows = 1 << 20;

void note(double& dearest, double seen) {
  dearest = seen > dearest ? seen : dearest + kForget * (seen - dearest);
}

}  // namespace

int32_t PrefillGovernor::rows() const {
  if (row_ms_ <= 0) return kLeastRows;
  const double fitting = (kShare * bound_ms_ - decode_ms_) / row_ms_;
  const double bounded = std::clamp(fitting, double{kLeastRows}, double{kMostRows});
  const auto rows = static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(bounded)));
  return std::clamp(rows, kLeastRows, std::max(kLeastRows, 2 * last_rows_));
}

void PrefillGovernor::observe(const Step& step) {
  if (step.prefill_rows == 0) {
    if (step.decode_rows > 0) note(decode_ms_, step.ms);
    return;
  }
  // Whatever the rows beside them took is counted for them when it is not known.
  const double for_decoding = step.decode_rows > 0 ? std::min(decode_ms_, step.ms) : 0;
  note(row_ms_, (step.ms - for_decoding) / step.prefill_rows);
  last_rows_ = step.prefill_rows;
}

}  // namespace spark::engine
