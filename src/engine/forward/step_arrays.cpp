#include "engine/forward/step_arrays.h"

#include <cstring>

#include "common/error.h"

namespace spark::engine {

StepArrays::StepArrays(Backend& backend, int32_t max_rows) : backend_(backend), max_rows_(max_rows) {
  const size_t ints = (kFields + 1) * static_cast<size_t>(max_rows);
  device_ = static_cast<int32_t*>(backend.allocate(ints * sizeof(int32_t), "the rows of a step"));
  host_.reserve(ints);
}

void StepArrays::set_sequence_bounds() {
  const size_t n = rows_.size();
  size_t first = 0;
  for (size_t t = 0; t < n; ++t) {
    if (t > 0 && rows_[t].sequence != rows_[t - 1].sequence) first = t;
    host_[kFirstRow * n + t] = static_cast<int32_t>(first);
  }
  size_t last = n;
  for (size_t t = n; t-- > 0;) {
    if (t + 1 == n || rows_[t].sequence != rows_[t + 1].sequence) last = t;
    host_[kLastRow * n + t] = static_cast<int32_t>(last);
  }
}

StepRows StepArrays::upload() {
  SPARK_CHECK(size() <= max_rows_);
  const size_t n = rows_.size();
  host_.assign(kFields * n + (n + 3) / 4, 0);
  auto* images = reinterpret_cast<uint8_t*>(host_.data() + kFields * n);
  for (size_t t = 0; t < n; ++t) {
    const StepArrayRow& row = rows_[t];
    host_[kToken * n + t] = row.token;
    host_[kPosition * n + t] = row.position;
    host_[kSequence * n + t] = row.sequence;
    host_[kWindowStart * n + t] = row.window_start;
    host_[kOverrideRow * n + t] = row.override_row;
    host_[kWindowEnd * n + t] = row.window_end;
    images[t] = row.is_image ? 1 : 0;
  }
  set_sequence_bounds();
  backend_.upload(device_, host_.data(), host_.size() * sizeof(int32_t));
  return {.rows = size(),
          .token = field(kToken),
          .position = field(kPosition),
          .sequence = field(kSequence),
          .first_row = field(kFirstRow),
          .last_row = field(kLastRow),
          .window_start = field(kWindowStart),
          .is_image = reinterpret_cast<const uint8_t*>(device_ + kFields * n)};
}

}  // namespace spark::engine
