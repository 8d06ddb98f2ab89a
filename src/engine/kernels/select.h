// From rows of logits to tokens, and from drafts to how many of them stand, where the logits are. Random
// numbers come in as arguments; the results are those of numeric/mass_distribution.h, to the bit, on every
// backend.
#pragma once

#include "engine/kernels/types.h"
#include "engine/numeric/token_mass.h"

namespace spark::engine {

// How a request chooses (numeric/token_distribution.h says what the filters do), as it lies in a backend's
// memory.
struct RowFilter {
  double temperature = 0;  // 0: the largest, the lowest token among equals
  double top_p = 1.0;      // (0, 1]; 1: all
  double min_p = 0.0;      // [0, 1]
  int32_t top_k = 0;       // 0: all
  int32_t unused = 0;
};

// token[m] = the row's distribution, drawn from at uniform[m] in (0, 1]; kTokenNotANumber or
// kEveryTokenExcluded where there is none.
struct SelectArgs {
  int32_t rows = 0;
  int32_t vocab = 0;                  // at most kMaxMassVocabulary
  const float* logits = nullptr;      // FP32 [rows][vocab]
  const RowFilter* filter = nullptr;  // [rows]
  const double* uniform = nullptr;    // [rows]
  int32_t max_banned = 0;
  const int32_t* banned = nullptr;  // [rows][max_banned] tokens never chosen, others negative; or null
  int32_t* token = nullptr;         // [rows]
};

// Per block b of drafts: its count[b] drafts were drawn from proposals, rows b * max_drafts .. of
// proposal_logits; rows b * (max_drafts + 1) .. of target_logits are the model's after the same tokens. All
// rows of a block have its filter; targets may have banned tokens, proposals have none. accepted[b] drafts
// stand and next[b] follows them, by block verification (schedule/verification.h) at accept[b][i] and
// last[b], all in (0, 1]; `standard`: token by token. next[b] is negative and accepted[b] zero where a
// distribution does not exist.
struct VerifyArgs {
  int32_t blocks = 0;
  int32_t max_drafts = 0;  // at least 1
  int32_t vocab = 0;       // at most kMaxMassVocabulary
  bool standard = false;
  const int32_t* drafts = nullptr;         // [blocks][max_drafts], each below vocab
  const int32_t* count = nullptr;          // [blocks] 0 .. max_drafts
  const float* target_logits = nullptr;    // FP32 [blocks][max_drafts + 1][vocab]
  const float* proposal_logits = nullptr;  // FP32 [blocks][max_drafts][vocab]
  const RowFilter* filter = nullptr;       // [blocks]
  int32_t max_banned = 0;
  const int32_t* banned = nullptr;  // [blocks][max_drafts + 1][max_banned] or null
  const double* accept = nullptr;   // [blocks][max_drafts]
  const double* last = nullptr;     // [blocks]
  int32_t* accepted = nullptr;      // [blocks]
  int32_t* next = nullptr;          // [blocks]
};

}  // namespace spark::engine
