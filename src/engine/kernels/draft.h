// The drafter's head: a block of greedy drafts per sequence, each biased by the one before it.
#pragma once

#include "engine/kernels/types.h"

namespace spark::engine {

// The rows of one sequence (first_row .. last_row) are one draft block; token[first_row] is its anchor, the
// newest sampled token. In ascending order of rows:
//   prev = token[t] for the first row of the block, else draft[t - 1]
//   m = embed[prev];  logits[t] = base[t] + m . head^T (FP32, the product rounded first)
//   draft[t] = argmax logits[t] (ties: lowest id);  confidence[t] = concat(x[t], m) . confidence_proj^T
// The confidence is the raw logit of P(draft accepted | all before it accepted).
//
// A caller that draws some drafts instead of taking the likeliest goes place by place: after place i it reads
// `logits` of those rows, writes its own `draft`, and asks for place i + 1. Confidence and logits of a place
// depend on the drafts before it only.
struct DraftArgs {
  StepRows step = {};
  int32_t vocab = 0;
  int32_t hidden = 0;
  int32_t rank = 0;                         // width of the Markov embedding
  int32_t block_rows = 0;                   // rows of the longest block when the caller knows it, else 0
  int32_t place = -1;                       // only the rows this far from their block's first; -1: all
  const uint16_t* x = nullptr;              // BF16 [rows][hidden], collapsed streams before the final norm
  const float* base = nullptr;              // FP32 [rows][vocab], vocabulary logits of the normalised x
  const Weight* embed = nullptr;            // BF16 [vocab, rank]
  const Weight* head = nullptr;             // BF16 [vocab, rank]
  const Weight* confidence_proj = nullptr;  // BF16 [1, hidden + rank]
  int32_t* draft = nullptr;                 // [rows]
  float* confidence = nullptr;              // [rows]
  float* logits = nullptr;                  // FP32 [rows][vocab] or null (for drawing, and for tests)
};

}  // namespace spark::engine
