// How many rows of prompts a step may have, so that the streams that wait for it get their next tokens in
// time.
//
//   PrefillGovernor governor(50);                  // milliseconds from one token of a stream to its next
//   limits.prefill_rows = governor.rows();         // when a stream waits
//   governor.observe({.prefill_rows = 64, .decode_rows = 16, .ms = 31.5});
//
// A step takes what its decoding rows take, and so much for each row of a prompt. Both are measured as steps
// go by: the dearer of what was seen, forgotten by a tenth with each cheaper step. The rows allowed are what
// fits into four fifths of the bound, rounded down to a power of two, and at most twice what the last step
// with prompts had, so that a figure from small chunks is not taken for large ones at once. Never fewer than
// kLeastRows: prompts must end. A bound below a step of that many rows, or a single slow step, is therefore
// exceeded; the histogram of inter-token latency says how often. What is computed never depends on any of
// this.
#pragma once

#include <cstdint>

namespace spark::engine {

class PrefillGovernor {
 public:
  static constexpr int32_t kLeastRows = 16;

  struct Step {
    int32_t prefill_rows = 0;
    int32_t decode_rows = 0;
    double ms = 0;  // from its beginning to its outputs
  };

  explicit PrefillGovernor(double bound_ms) : bound_ms_(bound_ms) {}

  int32_t rows() const;
  void observe(const Step& step);

 private:
  double bound_ms_;
  double decode_ms_ = 0;  // of a step without prompts
  double row_ms_ = 0;     // of a row of a prompt; 0: not seen yet
  int32_t last_rows_ = 0;
};

}  // namespace spark::engine
