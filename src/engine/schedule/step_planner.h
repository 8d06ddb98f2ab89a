// Which rows of which sequence the next step has. Pure: a function of what the sequences want and of limits,
// so a plan can be tested, replayed and reasoned about without a model.
//
//   StepPlan plan = plan_step(views, {.rows = 512, .prefill_rows = 128});
//   for (const PlannedRows& p : plan.rows) ...;   // p.rows pending tokens of views[p.sequence], then
//   p.drafts drafts
//
// The rules, in this order:
//   1. Every decoding sequence gets the row of its last token. Callers run no more sequences than a step has
//      rows, so no stream ever waits for another.
//   2. Prompts are promised a share, so that drafts cannot starve them: an eighth of the step, at least one
//      row, when a prompt wants rows.
//   3. Drafts get what is left, the first draft of every sequence before the second of any. A sequence never
//      gets more than it has.
//   4. Prompts get the rest, at most `prefill_rows` of it, in the order of `views` (that of admission). The
//   first
//      `parallel_prefills` of them get equal shares, and what one leaves the others may take; what then
//      remains goes to later prompts that it completes, so no more prompts than that are left half done. The
//      first prompt gets a row in every step and no later one can take its place, so every prompt ends.
//   5. A prompt's chunk that is not its last ends at a multiple of `chunk` where its share reaches one:
//   borders
//      are absolute positions, the same for every traffic.
// A row's result does not depend on any of this (StepModel's promise); only waiting does.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace spark::engine {

// What the planner knows of one running sequence.
struct SequenceView {
  int32_t computed = 0;   // tokens in the cache: the position of its next row
  int32_t pending = 1;    // tokens known and not computed, at least 1; 1 for one that decodes
  bool decoding = false;  // has begun to answer; it wants its next token within the bound of a gap
  int32_t drafts = 0;     // guesses of what follows, to be verified in rows of their own; only when decoding
};

struct StepLimits {
  int32_t rows = 1;                // of the step
  int32_t prefill_rows = 1 << 30;  // of prompts, in a step
  int32_t parallel_prefills = 1;   // prompts that may be partly computed
  int32_t chunk = 1;               // borders of a prompt's chunks are multiples of this
};

struct PlannedRows {
  int32_t sequence = 0;  // index into the views
  int32_t rows = 0;      // pending tokens, at least 1
  int32_t drafts = 0;    // rows after them
};

struct StepPlan {
  std::vector<PlannedRows> rows;  // those that decode, then prompts; each in the order of the views
  int32_t decode_rows = 0;        // drafts included
  int32_t prefill_rows = 0;
};

StepPlan plan_step(std::span<const SequenceView> views, const StepLimits& limits);

}  // namespace spark::engine
