#include "engine/serve/generation.h"

#include <algorithm>
#include <utility>

#include "api/json_text.h"
#include "api/sse.h"

namespace spark::engine {
namespace {

// JSON has no infinity; vLLM writes this in its place.
constexpr double kLowestLogprob = -9999.0;

api::ErrorObject shutting_down() {
  return api::http_error(503, "the server is shutting down");
}

// Of a stream that fails.
std::string last_events(const api::ErrorObject& error) {
  return api::sse_data(api::json_text(error.json())) + api::sse_data(api::kSseDone);
}

api::ErrorObject error_of(const Finish& finish) {
  if (finish.reason == FinishReason::kAbort) return shutting_down();
  return api::http_error(500, finish.error);
}

}  // namespace

Generation::Generation(Engine& engine, const text::Tokenizer& tokenizer,
                       std::shared_ptr<HttpExchange> exchange, GenerationJob job)
    : engine_(engine), tokenizer_(tokenizer), exchange_(std::move(exchange)), job_(std::move(job)) {
  unfinished_ = job_.requests.size() * static_cast<size_t>(job_.requests.front().choices);
  tokens_.resize(unfinished_);
}

void Generation::start() {
  // Outputs wait until the stream has begun.
  const std::lock_guard lock(mutex_);
  submit_all();
  exchange_->on_gone([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->abort();
  });
  if (!job_.delivery.stream) return;
  exchange_->start_stream(
      {.content_type = std::string(api::kSseMediaType), .headers = {{"Cache-Control", "no-cache"}}},
      api::sse_comment("keep-alive"), last_events(shutting_down()));
  for (const Json& first : first_events()) send(first);
}

void Generation::submit_all() {
  size_t first_choice = 0;
  try {
    for (const GenerationRequest& request : job_.requests) {
      submitted_.push_back(engine_.submit(request, [self = shared_from_this(), first_choice](Output output) {
        self->take(first_choice, std::move(output));
      }));
      first_choice += static_cast<size_t>(request.choices);
    }
  } catch (const Error& error) {
    over_ = true;
    for (const uint64_t id : submitted_) engine_.abort(id);
    if (const auto* refused = dynamic_cast<const Refused*>(&error)) {
      const bool full = refused->why() == Refused::Why::kQueueFull;
      throw api::RequestError(
          api::http_error(full ? 429 : 503, std::string(error.what()) + "; try again later"));
    }
    throw api::RequestError(api::bad_request(error.describe(), error.where()));
  }
}

void Generation::abort() {
  std::vector<uint64_t> ids;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
    ids = submitted_;
  }
  for (const uint64_t id : ids) engine_.abort(id);
}

void Generation::take(size_t first_choice, Output output) {
  const std::lock_guard lock(mutex_);
  if (over_) return;
  if (output.finish &&
      (output.finish->reason == FinishReason::kAbort || output.finish->reason == FinishReason::kError)) {
    return fail(error_of(*output.finish));
  }
  const size_t choice = first_choice + static_cast<size_t>(output.choice);
  if (output.progress) return report(choice, *output.progress);
  tokens_[choice] += static_cast<int64_t>(output.tokens.size());
  // The choices of a prompt share it: what the first of them found counts.
  if (output.cached_tokens && output.choice == 0) cached_tokens_ += *output.cached_tokens;
  if (output.drafts) {
    verified_drafts_ += output.drafts->verified;
    accepted_drafts_ += output.drafts->accepted;
  }
  const bool finished = output.finish.has_value();
  if (!job_.delivery.stream) {
    keep(choice, output);
  } else {
    const auto so_far = job_.delivery.continuous_usage_stats ? std::optional(usage()) : std::nullopt;
    if (const auto made = event(choice, output, so_far)) send(*made);
  }
  if (finished && --unfinished_ == 0) complete();
}

// Like llama.cpp's "return_progress".
void Generation::report(size_t choice, const PrefillProgress& progress) {
  Json event = progress_event(choice);
  event["prompt_progress"] = {
      {"total", progress.total}, {"cache", progress.cached}, {"processed", progress.processed}};
  send(event);
}

void Generation::fail(const api::ErrorObject& error) {
  over_ = true;
  for (const uint64_t id : submitted_) engine_.abort(id);
  if (!job_.delivery.stream) {
    return exchange_->respond({.status = error.status, .body = api::json_text(error.json())});
  }
  exchange_->write(last_events(error));
  exchange_->end_stream();
}

void Generation::complete() {
  over_ = true;
  if (!job_.delivery.stream) return exchange_->respond({.body = api::json_text(whole(usage()))});
  if (job_.delivery.include_usage) send(usage_event(usage()));
  exchange_->write(api::sse_data(api::kSseDone));
  exchange_->end_stream();
}

api::Usage Generation::usage() const {
  api::Usage out;
  for (const GenerationRequest& request : job_.requests) {
    out.prompt_tokens += static_cast<int64_t>(request.prompt.size());
  }
  for (const int64_t count : tokens_) out.completion_tokens += count;
  if (cached_tokens_ > 0) out.cached_tokens = cached_tokens_;
  if (verified_drafts_ > 0) {
    out.accepted_prediction_tokens = accepted_drafts_;
    out.rejected_prediction_tokens = verified_drafts_ - accepted_drafts_;
  }
  return out;
}

void Generation::send(const Json& made) {
  exchange_->write(api::sse_data(api::json_text(made)));
}

const std::vector<int32_t>& Generation::prompt_of(size_t choice) const {
  return job_.requests[choice / static_cast<size_t>(job_.requests.front().choices)].prompt;
}

api::TokenLogprob Generation::entry(int32_t token, double logprob) const {
  api::TokenLogprob out;
  out.token = job_.delivery.return_tokens_as_token_ids ? "token_id:" + std::to_string(token)
                                                       : tokenizer_.decode({&token, 1});
  out.bytes = tokenizer_.token_bytes(token);
  out.logprob = std::max(logprob, kLowestLogprob);
  return out;
}

std::optional<std::vector<api::PositionLogprobs>> Generation::logprobs_of(const Output& output) const {
  if (!job_.requests.front().top_logprobs) return std::nullopt;
  std::vector<api::PositionLogprobs> positions;
  for (const TokenOutput& token : output.tokens) {
    if (!token.logprobs) continue;
    api::PositionLogprobs position{entry(token.token, token.logprobs->chosen), {}};
    for (const TokenLogprob& top : token.logprobs->top) position.top.push_back(entry(top.token, top.logprob));
    positions.push_back(std::move(position));
  }
  return positions;
}

std::vector<int32_t> Generation::tokens_of(const Output& output) const {
  std::vector<int32_t> ids;
  for (const TokenOutput& token : output.tokens) ids.push_back(token.token);
  return ids;
}

std::optional<std::string> Generation::finish_reason_of(const Output& output) {
  if (!output.finish) return std::nullopt;
  return output.finish->reason == FinishReason::kLength ? api::kFinishLength : api::kFinishStop;
}

Json Generation::stop_reason_of(const Output& output) {
  if (!output.finish) return nullptr;
  if (const auto* token = std::get_if<int32_t>(&output.finish->stop)) return *token;
  if (const auto* text = std::get_if<std::string>(&output.finish->stop)) return *text;
  return nullptr;
}

}  // namespace spark::engine
