// One POST to a generating route on its way through the engine: its prompts are submitted, outputs become
// stream events or one answer, the client's going away aborts it. Internal to this room.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "api/error_object.h"
#include "api/request.h"
#include "api/response.h"
#include "engine/schedule/engine.h"
#include "engine/serve/http.h"
#include "text/output_start.h"
#include "text/tokenizer.h"

namespace spark::engine {

struct GenerationJob {
  std::string id;                           // "chatcmpl-..."
  std::string model;                        // as the client named it
  int64_t created = 0;                      // Unix seconds
  std::vector<GenerationRequest> requests;  // one per prompt, all with the same number of choices
  api::DeliveryFields delivery;
};

// Outputs arrive on the engine's thread, one at a time.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(Engine& engine, const text::Tokenizer& tokenizer, std::shared_ptr<HttpExchange> exchange,
             GenerationJob job);
  virtual ~Generation() = default;

  // Submits; throws RequestError when the engine takes not all of the prompts.
  void start();

 protected:
  // What the two routes make of the outputs. `choice` counts over prompts and choices.
  virtual std::vector<Json> first_events() { return {}; }
  virtual std::optional<Json> event(size_t choice, Output& output,
                                    const std::optional<api::Usage>& usage) = 0;
  virtual Json progress_event(size_t choice) const = 0;  // a chunk that says nothing
  virtual Json usage_event(const api::Usage& usage) const = 0;
  virtual void keep(size_t choice, Output& output) = 0;
  virtual Json whole(const api::Usage& usage) = 0;

  const GenerationJob& job() const { return job_; }
  const std::vector<int32_t>& prompt_of(size_t choice) const;
  size_t choice_count() const { return tokens_.size(); }
  std::optional<std::vector<api::PositionLogprobs>> logprobs_of(const Output& output) const;
  std::vector<int32_t> tokens_of(const Output& output) const;
  static std::optional<std::string> finish_reason_of(const Output& output);
  static Json stop_reason_of(const Output& output);

 private:
  void submit_all();
  void take(size_t first_choice, Output output);
  void report(size_t choice, const PrefillProgress& progress);
  void fail(const api::ErrorObject& error);
  void complete();
  void abort();
  api::Usage usage() const;
  void send(const Json& event);
  api::TokenLogprob entry(int32_t token, double logprob) const;

  Engine& engine_;
  const text::Tokenizer& tokenizer_;
  std::shared_ptr<HttpExchange> exchange_;
  GenerationJob job_;

  std::mutex mutex_;
  std::vector<uint64_t> submitted_;  // the engine's request ids
  std::vector<int64_t> tokens_;      // generated so far, by choice
  int64_t cached_tokens_ = 0;
  int64_t verified_drafts_ = 0;
  int64_t accepted_drafts_ = 0;
  size_t unfinished_;
  bool over_ = false;  // answered or failed; what still comes is dropped
};

// How the text of a chat answer is to be read.
struct ChatOutput {
  text::OutputStart start;
  bool tools = false;      // calls are looked for
  bool many_calls = true;  // false: all but the first are dropped
};

std::shared_ptr<Generation> make_chat_generation(Engine& engine, const text::Tokenizer& tokenizer,
                                                 std::shared_ptr<HttpExchange> exchange, GenerationJob job,
                                                 ChatOutput output);
std::shared_ptr<Generation> make_completion_generation(Engine& engine, const text::Tokenizer& tokenizer,
                                                       std::shared_ptr<HttpExchange> exchange,
                                                       GenerationJob job);

}  // namespace spark::engine
