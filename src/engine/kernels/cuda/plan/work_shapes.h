// How the kernels that leave something in scratch memory for the next one cut their work: known to them and
// to the plan of that memory (scratch_plan.h).
#pragma once

#include <cstdint>

#include "engine/kernels/cuda/plan/tiles.h"

namespace spark::engine::cuda {

// ---- routed experts ----

constexpr int kExpertRows = 2;     // rows of a work item
constexpr int kDownChannels = 32;  // output channels of a unit of work of the down projection

struct alignas(16) ExpertItem {
  int32_t expert = 0;
  int32_t first = 0;  // in the sorted assignments
  int32_t count = 0;
  int32_t unused = 0;
};

// Bytes from one assignment's codes to the next one's.
constexpr int64_t expert_codes_stride(int64_t width) {
  return round_up(width, 128);
}

// Of a prompt.
constexpr int kPrefillItemRows = 32;   // rows of an item
constexpr int kMaxPrefillRows = 2048;  // of a launch

// ---- mHC coefficients ----

constexpr int kMixOutputs = 25;   // 24 dot products and the sum of squares
constexpr int kMixColumns = 160;  // of a block
constexpr int mhc_mix_chunks(int64_t columns) {
  return static_cast<int>(ceil_div(columns, kMixColumns));
}

// ---- choice of tokens ----

constexpr int kArgmaxPieces = 64;  // blocks that a row of logits is cut into
constexpr int kSelectPieces = 64;

}  // namespace spark::engine::cuda
