// One choice of a request on its way: waiting, its prompt being computed chunk by chunk, decoding, finished.
// Internal to this room.
//
// The state is two numbers: how many tokens there are (prompt and answer) and how many of them the model has
// computed. A sequence with tokens to compute wants rows; when the last of them is computed its logits choose
// the next token. Decoding is the case of one token to compute. A sequence that decodes may hold drafts,
// guesses of what follows: each gets a row of its own, and the logits of all these rows choose one token or
// several.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/forward/step_model.h"
#include "engine/schedule/draft_survival.h"
#include "engine/schedule/output_text.h"
#include "engine/schedule/request.h"
#include "engine/schedule/sampling.h"
#include "engine/schedule/step_planner.h"
#include "engine/schedule/verification.h"

namespace spark::engine {

// What the choices of a request share.
struct RequestState {
  uint64_t id = 0;
  GenerationRequest request;
  OutputSink sink;
  double arrived_s = 0;
};

// Rows of logits of one sequence, in the order of its rows that want them.
struct LogitRows {
  std::span<const float> values;  // [rows][width]
  size_t width = 0;
  size_t known = 0;  // tokens that may be chosen: the first of each row

  size_t rows() const { return values.size() / width; }
  std::span<const float> row(size_t i) const { return values.subspan(i * width, known); }
};

// Guesses of the tokens that follow, for one step.
struct DraftBlock {
  std::vector<int32_t> tokens;
  // What each token was drawn from, or nothing: then they are the likeliest ones, and a token is chosen as
  // without drafts and compared.
  std::vector<TokenDistribution> proposals;
  // Drafts that the caches must have room for when any is verified. Of drawn drafts as many as there might
  // have been: whether they are verified must not depend on what they are (schedule/verification.h).
  int32_t room = 0;
  RejectionMethod rejection = RejectionMethod::kBlock;
  std::vector<float> confidence;   // the drafter's logits
  std::vector<double> acceptance;  // what is expected of each, when those before it are accepted
};

class Sequence {
 public:
  Sequence(std::shared_ptr<const RequestState> state, int32_t choice, const text::Tokenizer& tokenizer,
           int32_t eos_token);

  const RequestState& state() const { return *state_; }
  int32_t slot() const { return slot_; }
  int32_t length() const { return static_cast<int32_t>(tokens_.size()); }
  int32_t pending() const { return length() - computed_; }  // tokens to compute; never 0 while running
  bool answering() const { return output_tokens_ > 0; }
  std::span<const int32_t> tokens() const { return tokens_; }  // prompt, then answer
  const SamplingParams& sampling() const { return sampling_; }
  SequenceView view() const;

  // Takes a slot whose caches hold the first `cached` tokens; again after a pause. Sequences are older the
  // lower their ticket, which is given once.
  void admit(int32_t slot, int32_t cached, uint64_t ticket, double now_s);
  uint64_t ticket() const { return ticket_; }
  // Gives the slot up; what was computed is gone, what was chosen stays.
  void pause();
  bool was_admitted() const { return record_.admitted_s != 0; }
  // Tokens that the caches must hold for the answer at its longest.
  int32_t longest() const;
  // What a step of `count` pending tokens computes again.
  int32_t recomputed(int32_t count) const { return std::clamp(first_time_ - computed_, 0, count); }
  // Nothing when it was not asked for, or the prompt was read before.
  std::optional<Output> progress() const;

  // Drafts that a step may verify: it chooses one token more.
  int32_t most_drafts() const;
  // How many of these guesses are worth a row: what follows a token that ends the answer is not, nor the row
  // after that token.
  int32_t useful_drafts(std::span<const int32_t> tokens) const;
  // The drafts of the next step, at most most_drafts(). The step takes all, the first of them, or none; then
  // they count no more. Only for a sequence that decodes.
  void set_drafts(DraftBlock block);
  const DraftBlock& drafts() const { return drafts_; }  // of the last step, until new ones are set
  // Random numbers of the block that starts at the next token to choose, all of them apart.
  double draft_uniform(int32_t place) const;
  RequestSurvival& survival() { return survival_; }

  // Appends rows for the next `count` pending tokens and the first `drafts` drafts. Returns how many of the
  // rows want logits: 1 + drafts with the last pending token, else 0.
  int32_t add_rows(int32_t count, int32_t drafts, std::vector<StepRow>& rows);
  int32_t wanted_logits() const { return wanted_logits_; }  // of the rows added last

  // Chooses the next tokens from the logits of the rows added last: from the first row, and from each next
  // one as long as the draft before it stands. Throws Error on logits that are no numbers.
  Output advance(const LogitRows& logits, Sampler& sampler, double now_s, EngineObserver* observer);
  // Ends the choice from outside.
  Output end(FinishReason reason, std::string error, double now_s);

  // How many of the tokens the model has been told of ahead of their step.
  int32_t announced() const { return announced_; }
  void announce(int32_t tokens) { announced_ = tokens; }

  bool finished() const { return record_.finished_s != 0; }
  const ChoiceRecord& record() const { return record_; }

 private:
  std::span<const int32_t> banned_after(int32_t output_tokens) const;
  Verdict verify(const LogitRows& logits) const;
  void take(int32_t token, std::span<const float> logits, const Sampler& sampler, Output& output);
  bool ends_answer(int32_t token) const;
  bool is_stop_token(int32_t token) const;
  std::optional<Finish> finish_after(int32_t token);
  void note_time(int64_t tokens, double now_s, EngineObserver* observer);
  void close(const Finish& finish, Output& output, double now_s);

  std::shared_ptr<const RequestState> state_;
  int32_t choice_;
  int32_t eos_token_;
  std::vector<int32_t> stop_tokens_;  // banned before min_tokens: the end of sequence and stop_token_ids
  SamplingParams sampling_;
  OutputText text_;
  std::vector<int32_t> tokens_;
  DraftBlock drafts_;
  RequestSurvival survival_;
  int32_t planned_drafts_ = 0;  // of the step that runs
  int32_t wanted_logits_ = 0;
  int32_t computed_ = 0;  // drafts included while their step runs
  int32_t output_tokens_ = 0;
  int32_t first_time_ = 0;  // tokens below were computed before a pause
  bool reported_cached_ = false;
  uint64_t ticket_ = 0;
  int32_t announced_ = 0;
  int32_t slot_ = -1;
  ChoiceRecord record_;
};

}  // namespace spark::engine
