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
// are replaced (a rejected draft, a truncated history). A step does not start below where an earlier one of
// the sequence started, except at 0: what a step begins after is settled. Rows that break these rules are a
// programming error.
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

#include <array>
#include <cstdint>
#include <span>

#include "engine/checkpoint/table_reader.h"
#include "engine/numeric/token_distribution.h"

namespace spark::engine {

struct StepRow {
  int32_t sequence = 0;  // slot, 0 .. max_sequences() - 1, opened before
  int32_t token = 0;     // 0 .. vocab_size() - 1
  int32_t position = 0;  // absolute, 0-based; at most the sequence's current length
  bool wants_logits = false;
  // Of the rows of a sequence in a step only the first may be, and none that wants logits.
  bool encoder_only = false;
};

// What is known of a sequence when it begins.
struct SequenceStart {
  std::span<const int32_t> tokens;  // the prompt, and after a pause what had been answered; at least one
  int32_t prompt_tokens = 0;        // how many of them are the prompt
  uint64_t cache_salt = 0;          // sequences share cached prefixes with those of the same salt only
};

// A length that a sequence shall reach. The slot need not be open.
struct SequenceLength {
  int32_t sequence = 0;
  int32_t tokens = 0;
};

// Blocks of the scarcest cache group.
struct CacheOccupancy {
  int64_t blocks = 0;  // 0: the model does not say
  int64_t held = 0;    // by open sequences
  int64_t cached = 0;  // by nobody, kept for prefixes; given up when blocks are needed
};

// Most drafts of one request, whatever a checkpoint's drafter offers.
inline constexpr int32_t kMaxDrafts = 64;

// Asks what may follow a sequence. Plain data, so that it can be sent to other ranks.
struct DraftRequest {
  int32_t sequence = 0;
  int32_t anchor = 0;    // the newest sampled token, not yet run
  int32_t position = 0;  // of the last token that ran
  // Temperature 0: each draft is the likeliest token. Otherwise draft i is drawn from the drafter's
  // distribution so filtered, at uniforms[i] in (0, 1].
  TokenFilter filter = {};
  std::array<double, kMaxDrafts> uniforms = {};
};

struct Drafts {
  std::span<const int32_t> tokens;    // [requests][max_drafts]; draft i is for position + 2 + i
  std::span<const float> confidence;  // the same; raw logits of P(accepted | all before it accepted), which
                                      // know the drafts before it only
  // What each was drawn from: [requests with a temperature][max_drafts].
  std::span<const TokenDistribution> proposals;
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

  // Opens the slot with the longest cached prefix of the tokens. Returns its length, less than the number of
  // tokens: the sequence's rows go on from there, and what they compute is what they would have computed
  // without the cache, bit for bit.
  virtual int32_t start_sequence(int32_t sequence, const SequenceStart& start) {
    static_cast<void>(start);
    open_sequence(sequence);
    return 0;
  }

  // Whether sequences could grow to these lengths together, others staying as they are. Never false for one
  // sequence of at most longest_sequence() tokens when no other is open. A question, not a reservation.
  virtual bool has_room(std::span<const SequenceLength> lengths) const {
    static_cast<void>(lengths);
    return true;
  }
  // Tokens that one sequence may have when the caches are all its own.
  virtual int32_t longest_sequence() const { return max_context(); }
  virtual CacheOccupancy cache_occupancy() const { return {}; }

  // Runs one step and returns FP32 logits [rows that want them][vocab_size], in row order; the span is valid
  // until the next call. Not thread-safe: one thread drives a model. Throws Error on a failed disk read of an
  // Engram table and when the cache is full; the sequences of the step then end before their first row of it.
  virtual std::span<const float> run(std::span<const StepRow> rows) = 0;

  // Drafts of one request; 0: this model drafts nothing, and draft() must not be called.
  virtual int32_t max_drafts() const { return 0; }
  // At most one request per sequence. Looks at nothing beyond a request's position, though the sequence may
  // be longer, and changes no sequence. Valid until the next call of draft(). Throws Error like run().
  virtual Drafts draft(std::span<const DraftRequest>) { return {}; }
};

// `prompt_length` is that of the request, also when tokens of its answer are computed anew behind the prompt.
inline bool may_skip_decoder(const StepModel& model, int64_t position, int64_t prompt_length) {
  return model.decoder_window() > 0 && position < prompt_length - model.decoder_window();
}

}  // namespace spark::engine
