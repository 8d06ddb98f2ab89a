#include "engine/schedule/sequence.h"

#include <algorithm>

namespace spark::engine {

const char* name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "error";
}

Sequence::Sequence(std::shared_ptr<const RequestState> state, int32_t choice,
                   const text::Tokenizer& tokenizer, int32_t eos_token)
    : state_(std::move(state)),
      choice_(choice),
      eos_token_(eos_token),
      stop_tokens_(state_->request.stop_token_ids),
      sampling_(state_->request.sampling),
      text_(tokenizer, state_->request),
      tokens_(state_->request.prompt) {
  stop_tokens_.push_back(eos_token);
  sampling_.seed += static_cast<uint64_t>(choice);
  record_.prompt_tokens = length();
  record_.arrived_s = state_->arrived_s;
}

void Sequence::admit(int32_t slot, double now_s) {
  slot_ = slot;
  record_.admitted_s = now_s;
}

SequenceView Sequence::view() const {
  return {.computed = computed_,
          .pending = pending(),
          .decoding = answering() && pending() == 1,
          .drafts = static_cast<int32_t>(drafts_.size())};
}

void Sequence::set_drafts(std::span<const int32_t> drafts) {
  SPARK_CHECK(view().decoding);
  // The step chooses one token more than it verifies.
  const int32_t most = std::max(0, state_->request.max_tokens - output_tokens_ - 1);
  drafts_.assign(drafts.begin(), drafts.begin() + std::min<std::ptrdiff_t>(most, std::ssize(drafts)));
}

int32_t Sequence::add_rows(int32_t count, int32_t drafts, std::vector<StepRow>& rows) {
  SPARK_CHECK(count > 0 && count <= pending());
  SPARK_CHECK(drafts >= 0 && drafts <= static_cast<int32_t>(drafts_.size()));
  SPARK_CHECK(drafts == 0 || count == pending());
  drafts_.resize(static_cast<size_t>(drafts));
  const bool to_the_end = count == pending();
  const auto add = [&](int32_t token, bool wants_logits) {
    rows.push_back(
        {.sequence = slot_, .token = token, .position = computed_++, .wants_logits = wants_logits});
  };
  for (int32_t i = 0; i < count; ++i) {
    add(tokens_[static_cast<size_t>(computed_)], to_the_end && i + 1 == count);
  }
  for (const int32_t draft : drafts_) add(draft, true);
  wanted_logits_ = to_the_end ? 1 + drafts : 0;
  return wanted_logits_;
}

int32_t Sequence::choose(std::span<const float> logits, Sampler& sampler, Output& output) const {
  const GenerationRequest& request = state_->request;
  const bool may_stop = output_tokens_ >= request.min_tokens;
  const auto banned = may_stop ? std::span<const int32_t>() : std::span<const int32_t>(stop_tokens_);
  const int32_t token = sampler.choose(logits, sampling_, length(), banned);
  output.tokens.push_back({token, std::nullopt});
  if (request.top_logprobs)
    output.tokens.back().logprobs = sampler.logprobs(logits, token, *request.top_logprobs);
  return token;
}

Output Sequence::advance(const LogitRows& logits, Sampler& sampler, double now_s, EngineObserver* observer) {
  SPARK_CHECK(logits.rows() == drafts_.size() + 1);
  Output output;
  output.choice = choice_;
  std::optional<Finish> finish;
  for (size_t row = 0; row < logits.rows() && !finish; ++row) {
    const int32_t token = choose(logits.row(row), sampler, output);
    tokens_.push_back(token);
    ++output_tokens_;
    note_time(now_s, observer);
    finish = finish_after(token);
    if (row < drafts_.size() && token != drafts_[row]) break;
  }
  computed_ = length() - 1;  // what was drafted in vain is replaced by the next step
  drafts_.clear();
  record_.output_tokens = output_tokens_;
  if (finish) {
    close(*finish, output, now_s);
  } else {
    output.text = text_.take();
  }
  return output;
}

Output Sequence::end(FinishReason reason, std::string error, double now_s) {
  Output output;
  output.choice = choice_;
  close({reason, {}, std::move(error)}, output, now_s);
  return output;
}

bool Sequence::is_stop_token(int32_t token) const {
  const std::vector<int32_t>& ids = state_->request.stop_token_ids;
  return std::find(ids.begin(), ids.end(), token) != ids.end();
}

// Whether the answer ends with the token just chosen; its text is taken in either way.
std::optional<Finish> Sequence::finish_after(int32_t token) {
  const GenerationRequest& request = state_->request;
  const bool is_eos = token == eos_token_ && !request.ignore_eos;
  if (is_eos || is_stop_token(token)) {
    if (request.include_stop && !is_eos) text_.append(token, false);
    Finish finish;
    if (!is_eos) finish.stop = token;
    return finish;
  }
  if (auto stop = text_.append(token, output_tokens_ > request.min_tokens)) {
    return Finish{FinishReason::kStop, std::move(*stop), {}};
  }
  if (output_tokens_ >= request.max_tokens) return Finish{FinishReason::kLength, {}, {}};
  return std::nullopt;
}

void Sequence::note_time(double now_s, EngineObserver* observer) {
  if (output_tokens_ == 1) {
    record_.first_token_s = now_s;
    if (observer != nullptr) observer->on_first_token(now_s - record_.arrived_s);
  } else if (observer != nullptr) {
    observer->on_next_token(now_s - record_.last_token_s);
  }
  record_.last_token_s = now_s;
}

void Sequence::close(const Finish& finish, Output& output, double now_s) {
  text_.finish();
  output.text = text_.take();
  output.finish = finish;
  record_.reason = finish.reason;
  record_.finished_s = now_s;
}

}  // namespace spark::engine
