// One choice of a request on its way: waiting, its prompt being computed chunk by chunk, decoding, finished.
// Internal to this room.
//
// The state is two numbers: how many tokens there are (prompt and answer) and how many of them the model has
// computed. A sequence with tokens to compute wants rows; when the last of them is computed its logits choose
// the next token. Decoding is the case of one token to compute.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/forward/step_model.h"
#include "engine/schedule/output_text.h"
#include "engine/schedule/request.h"
#include "engine/schedule/sampling.h"

namespace spark::engine {

// What the choices of a request share.
struct RequestState {
  uint64_t id = 0;
  GenerationRequest request;
  OutputSink sink;
  double arrived_s = 0;
};

class Sequence {
 public:
  Sequence(std::shared_ptr<const RequestState> state, int32_t choice, const text::Tokenizer& tokenizer,
           int32_t eos_token);

  const RequestState& state() const { return *state_; }
  int32_t slot() const { return slot_; }
  int32_t length() const { return static_cast<int32_t>(tokens_.size()); }
  int32_t pending() const { return length() - computed_; }  // tokens to compute; never 0 while running
  bool decoding() const { return output_tokens_ > 0; }

  void admit(int32_t slot, double now_s);

  // Appends rows for the next `count` pending tokens, and takes them as computed. True when the last row
  // wants logits.
  bool add_rows(int32_t count, std::vector<StepRow>& rows);

  // Chooses the next token from the logits of the last row. Throws Error on logits that are no numbers.
  Output advance(std::span<const float> logits, Sampler& sampler, double now_s, EngineObserver* observer);
  // Ends the choice from outside.
  Output end(FinishReason reason, std::string error, double now_s);

  bool finished() const { return record_.finished_s != 0; }
  const ChoiceRecord& record() const { return record_; }

 private:
  bool is_stop_token(int32_t token) const;
  std::optional<Finish> finish_after(int32_t token);
  void note_time(double now_s, EngineObserver* observer);
  void close(const Finish& finish, Output& output, double now_s);

  std::shared_ptr<const RequestState> state_;
  int32_t choice_;
  int32_t eos_token_;
  std::vector<int32_t> stop_tokens_;  // banned before min_tokens: the end of sequence and stop_token_ids
  SamplingParams sampling_;
  OutputText text_;
  std::vector<int32_t> tokens_;
  int32_t computed_ = 0;
  int32_t output_tokens_ = 0;
  int32_t slot_ = -1;
  ChoiceRecord record_;
};

}  // namespace spark::engine
