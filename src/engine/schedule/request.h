// A request as the engine takes it, and what it reports back.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/error.h"
#include "engine/schedule/sampling.h"

namespace spark::engine {

struct GenerationRequest {
  std::vector<int32_t> prompt;          // at least one token
  SamplingParams sampling;              // choice i draws with seed + i
  int32_t choices = 1;                  // independent answers to the prompt
  int32_t max_tokens = 16;              // per choice; prompt and answer must fit into the context
  int32_t min_tokens = 0;               // before them, no end of sequence and no stop token, string or other
  bool ignore_eos = false;              // go on past the end of sequence
  std::vector<int32_t> stop_token_ids;  // end the answer, and are no part of its text
  std::vector<std::string> stop;        // strings that end it
  bool include_stop = false;            // keep the stop string or token in the text
  bool skip_special = true;             // leave the tokens flagged special out of the text
  std::optional<int32_t> top_logprobs;  // log probability of each token, and of this many likeliest ones
  std::string client;                   // whom the request is from; waiting clients take turns
  uint64_t cache_salt = 0;              // prefixes are shared with requests of the same salt only
  bool report_progress = false;         // outputs say how far the prompt has been read
};

enum class FinishReason { kStop, kLength, kAbort, kError };
const char* name(FinishReason reason);  // "stop", "length", "abort", "error": values of the metric's label

struct Finish {
  FinishReason reason = FinishReason::kStop;
  std::variant<std::monostate, int32_t, std::string> stop;  // the stop token or string, if it was one
  std::string error;                                        // of kError
};

struct TokenOutput {
  int32_t token = 0;
  std::optional<TokenLogprobs> logprobs;
};

// What became of the drafts of one step.
struct DraftOutcome {
  int32_t verified = 0;  // rows of the step that were drafts
  int32_t judged = 0;    // of these, up to the first that was rejected or the end of the answer
  int32_t accepted = 0;  // tokens of the answer that were drafted
};

// How far a prompt has been read.
struct PrefillProgress {
  int64_t total = 0;      // tokens of the prompt
  int64_t cached = 0;     // of these, taken from the prefix cache
  int64_t processed = 0;  // computed or cached so far
};

// What one step added to one choice. Text that may be the beginning of a stop string or of a character is
// held back, so `text` need not be the text of `tokens`; over the whole answer they agree.
struct Output {
  int32_t choice = 0;
  std::vector<TokenOutput> tokens;
  std::string text;
  std::optional<DraftOutcome> drafts;       // when the step verified any
  std::optional<PrefillProgress> progress;  // of a request that asked for it; nothing else is set then
  // Prompt tokens that came from the prefix cache, with the first tokens of the answer.
  std::optional<int64_t> cached_tokens;
  std::optional<Finish> finish;  // set on the last output of the choice
};

// Called on the engine's thread, in order, until every choice has finished. Must neither block nor throw.
using OutputSink = std::function<void(Output)>;

// Times and counts of a choice that has finished; seconds on the monotonic clock, 0 when it did not come so
// far.
struct ChoiceRecord {
  FinishReason reason = FinishReason::kStop;
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, when it was first admitted
  int64_t preemptions = 0;
  int64_t accepted_drafts = 0;  // tokens of the answer that were drafted
  int64_t rejected_drafts = 0;  // verified in vain
  double arrived_s = 0;
  double admitted_s = 0;
  double first_token_s = 0;
  double last_token_s = 0;
  double finished_s = 0;
};

// Rows of a step.
struct StepCounts {
  int64_t prompt_rows = 0;      // tokens of prompts, for the first time
  int64_t decode_rows = 0;      // last tokens of sequences, and drafts
  int64_t recomputed_rows = 0;  // of sequences that had been preempted
};

// Told what happens, on the engine's thread; metrics implement it.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  virtual void on_step(const StepCounts& counts) = 0;
  // A sequence begins for the first time, with so much of its prompt cached.
  virtual void on_admit(int64_t prompt_tokens, int64_t cached_tokens) {
    static_cast<void>(prompt_tokens);
    static_cast<void>(cached_tokens);
  }
  virtual void on_preempt() {}
  virtual void on_first_token(double after_arrival_s) = 0;
  // `tokens` came at once; the time is since the step before.
  virtual void on_next_tokens(int64_t tokens, double after_previous_s) = 0;
  // A sequence took its turn in an engine that drafts; verified may be 0.
  virtual void on_drafts(const DraftOutcome&) {}
  virtual void on_finish(const ChoiceRecord& record) = 0;
};

// The engine does not take a request.
class Refused : public Error {
 public:
  enum class Why { kQueueFull, kStopping };
  Refused(Why why, std::string what) : Error(std::move(what)), why_(why) {}
  Why why() const { return why_; }

 private:
  Why why_;
};

}  // namespace spark::engine
