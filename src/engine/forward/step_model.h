// What a scheduler sees of the model: sequences with caches, and steps over rows of them.
//
//   model.open_sequence(0);
//   std::vector<StepRow> rows = {{.sequence = 0, .token = 0, .position = 0},
//                                {.sequence = 0, .token = 128803, .position = 1, .wants_logits = true}};
//   std::span<const float> logits = model.run(rows);     // [1][vocab_size]
//   model.close_sequence(0);
//
// Rows of one sequence are contiguous within a step, at consecutive ascending positions. The first position
// of a step may lie below the sequence's length, by at most max_rollback(), or be 0: the rows from there on
// are replaced (a rejected draft, a truncated history). Rows that break these rules are a programming error.
// Rows at the beginning of a prompt may be marked encoder_only, all but the last decoder_window() of them:
// they leave what later rows read of them for ever (compressed entries, index keys, the encoder layers'
// windows) and nothing else. Which rows those are must follow from the prompt alone:
//
//   row.encoder_only = may_skip_decoder(model, row.position, prompt_length);
//
// The same rows are marked again when the sequence is computed anew (after preemption), so that its answer
// stays the same. A row's result never depends on the other sequences of the step, on how a prompt was cut
// into steps, or on the thread count.
#pragma once

#include <cstdint>
#include <span>

#include "engine/checkpoint/table_reader.h"

namespace spark::engine {

struct StepRow {
  int32_t sequence = 0;  // slot, 0 .. max_sequences() - 1, opened before
  int32_t token = 0;     // 0 .. vocab_size() - 1
  int32_t position = 0;  // absolute, 0-based; at most the sequence's current length
  bool wants_logits = false;
  // Of the rows of a sequence in a step only the first may be, and none that wants logits.
  bool encoder_only = false;
};

class StepModel {
 public:
  virtual ~StepModel() = default;

  virtual int32_t vocab_size() const = 0;
  virtual int32_t max_sequences() const = 0;
  virtual int32_t max_context() const = 0;    // tokens of one sequence, prompt and output together
  virtual int32_t max_step_rows() const = 0;  // rows of one step, all sequences together
  // Tokens by which a sequence may be cut back; 0: it can only grow or start again.
  virtual int32_t max_rollback() const { return 0; }
  // Rows at the end of a prompt that must not be encoder_only; 0: the model takes no encoder_only rows.
  virtual int32_t decoder_window() const { return 0; }

  // Makes the slot an empty sequence. Opening an open slot or closing a closed one is a programming error.
  virtual void open_sequence(int32_t sequence) = 0;
  virtual void close_sequence(int32_t sequence) = 0;

  // A hint that changes no result: tokens that steps to come will have, consecutive ones of a sequence, the
  // first at `position`; unless that is 0, the first prefetch_lead() of them only lead up to the others. What
  // the model needs from disk for them is read in the background. A scheduler calls it as soon as it knows
  // tokens that the running step does not have: the next chunk of a prompt, a draft.
  virtual void prefetch(std::span<const int32_t> tokens, int32_t position) {
    (void)tokens;
    (void)position;
  }
  virtual int32_t prefetch_lead() const { return 0; }
  // Reads of tables so far; from any thread.
  virtual TableCounters table_counters() const { return {}; }

  // Runs one step and returns FP32 logits [rows that want them][vocab_size], in row order; the span is valid
  // until the next call. Not thread-safe: one thread drives a model. Throws Error on a failed disk read of an
  // Engram table and when the cache is full; the sequences of the step then end before their first row of it.
  virtual std::span<const float> run(std::span<const StepRow> rows) = 0;
};

// `prompt_length` is that of the request, also when tokens of its answer are computed anew behind the prompt.
inline bool may_skip_decoder(const StepModel& model, int64_t position, int64_t prompt_length) {
  return model.decoder_window() > 0 && position < prompt_length - model.decoder_window();
}

}  // namespace spark::engine
