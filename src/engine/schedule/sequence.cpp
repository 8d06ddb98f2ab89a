#include "engine/schedule/sequence.h"

#include <algorithm>
#include <utility>

#include "common/error.h"
#include "engine/schedule/random.h"

namespace spark::engine {
namespace {

// Streams of random numbers at the position where a block starts; 0 is the sampler's. A block starts at a
// position once: the next one starts at least one token later.
constexpr uint32_t kAcceptStream = 1;
constexpr uint32_t kResidualStream = 128;
constexpr uint32_t kDraftStream = 256;
static_assert(kAcceptStream + kMaxDrafts <= kResidualStream);

}  // namespace

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

void Sequence::admit(int32_t slot, int32_t cached, uint64_t ticket, double now_s) {
  SPARK_CHECK(slot_ < 0 && cached >= 0 && cached < length());
  slot_ = slot;
  computed_ = cached;
  if (was_admitted()) return;
  ticket_ = ticket;
  record_.cached_tokens = cached;
  record_.admitted_s = now_s;
}

void Sequence::pause() {
  first_time_ = std::max(first_time_, computed_);
  slot_ = -1;
  computed_ = announced_ = 0;
  planned_drafts_ = 0;
  ++record_.preemptions;
}

// The last token of an answer is not computed.
int32_t Sequence::longest() const {
  return static_cast<int32_t>(record_.prompt_tokens) + state_->request.max_tokens - 1;
}

std::optional<Output> Sequence::progress() const {
  if (!state_->request.report_progress || finished() || answering() || computed_ < first_time_)
    return std::nullopt;
  Output output;
  output.choice = choice_;
  output.progress = {.total = record_.prompt_tokens, .cached = record_.cached_tokens, .processed = computed_};
  return output;
}

SequenceView Sequence::view() const {
  return {.computed = computed_,
          .pending = pending(),
          .decoding = answering() && pending() == 1,
          .drafts = planned_drafts_};
}

int32_t Sequence::most_drafts() const {
  return std::max(0, state_->request.max_tokens - output_tokens_ - 1);
}

int32_t Sequence::useful_drafts(std::span<const int32_t> tokens) const {
  const int32_t most = std::min(most_drafts(), static_cast<int32_t>(tokens.size()));
  for (int32_t i = 0; i < most; ++i) {
    const bool may_stop = output_tokens_ + i >= state_->request.min_tokens;
    if (may_stop && ends_answer(tokens[static_cast<size_t>(i)])) return i;
  }
  return most;
}

void Sequence::set_drafts(DraftBlock block) {
  SPARK_CHECK(answering() && pending() == 1);
  SPARK_CHECK(static_cast<int32_t>(block.tokens.size()) <= most_drafts());
  drafts_ = std::move(block);
  planned_drafts_ = static_cast<int32_t>(drafts_.tokens.size());
}

double Sequence::draft_uniform(int32_t place) const {
  return uniform(sampling_.seed, static_cast<uint64_t>(length()),
                 kDraftStream + static_cast<uint32_t>(place));
}

int32_t Sequence::add_rows(int32_t count, int32_t drafts, std::vector<StepRow>& rows) {
  SPARK_CHECK(count > 0 && count <= pending());
  SPARK_CHECK(drafts >= 0 && drafts <= planned_drafts_);
  SPARK_CHECK(drafts == 0 || count == pending());
  planned_drafts_ = drafts;
  const bool to_the_end = count == pending();
  const auto add = [&](int32_t token, bool wants_logits) {
    rows.push_back(
        {.sequence = slot_, .token = token, .position = computed_++, .wants_logits = wants_logits});
  };
  for (int32_t i = 0; i < count; ++i) {
    add(tokens_[static_cast<size_t>(computed_)], to_the_end && i + 1 == count);
  }
  for (int32_t i = 0; i < drafts; ++i) add(drafts_.tokens[static_cast<size_t>(i)], true);
  wanted_logits_ = to_the_end ? 1 + drafts : 0;
  return wanted_logits_;
}

std::span<const int32_t> Sequence::banned_after(int32_t output_tokens) const {
  if (output_tokens >= state_->request.min_tokens) return {};
  return stop_tokens_;
}

Verdict Sequence::verify(const LogitRows& logits) const {
  const size_t count = logits.rows() - 1;
  std::vector<TokenDistribution> targets(count + 1);
  std::vector<double> accept(count);
  const auto block = static_cast<uint64_t>(length());
  for (size_t i = 0; i <= count; ++i) {
    targets[i].assign(logits.row(i), sampling_.filter(),
                      banned_after(output_tokens_ + static_cast<int32_t>(i)));
    if (i < count) accept[i] = uniform(sampling_.seed, block, kAcceptStream + static_cast<uint32_t>(i));
  }
  return verify_block(std::span(drafts_.tokens).first(count), std::span(drafts_.proposals).first(count),
                      targets, {.accept = accept, .last = uniform(sampling_.seed, block, kResidualStream)},
                      drafts_.rejection);
}

void Sequence::take(int32_t token, std::span<const float> logits, const Sampler& sampler, Output& output) {
  output.tokens.push_back({token, std::nullopt});
  if (const auto top = state_->request.top_logprobs) {
    output.tokens.back().logprobs = sampler.logprobs(logits, token, *top);
  }
  tokens_.push_back(token);
  ++output_tokens_;
}

Output Sequence::advance(const LogitRows& logits, Sampler& sampler, double now_s, EngineObserver* observer) {
  const int32_t drafted = std::exchange(planned_drafts_, 0);
  SPARK_CHECK(logits.rows() == static_cast<size_t>(drafted) + 1);
  Output output;
  output.choice = choice_;
  if (!std::exchange(reported_cached_, true)) output.cached_tokens = record_.cached_tokens;
  std::optional<Verdict> verdict;
  if (drafted > 0 && !drafts_.proposals.empty()) verdict = verify(logits);
  DraftOutcome outcome{.verified = drafted};
  std::optional<Finish> finish;
  for (int32_t row = 0; row <= drafted && !finish; ++row) {
    const auto of_row = logits.row(static_cast<size_t>(row));
    const int32_t draft = row < drafted ? drafts_.tokens[static_cast<size_t>(row)] : -1;
    int32_t token = draft;
    if (!verdict) {
      token = sampler.choose(of_row, sampling_, length(), banned_after(output_tokens_));
    } else if (row == verdict->accepted) {
      token = verdict->next;
    }
    take(token, of_row, sampler, output);
    finish = finish_after(token);
    if (row == drafted) break;
    ++outcome.judged;
    if (verdict ? row == verdict->accepted : token != draft) break;
    ++outcome.accepted;
  }
  computed_ = length() - 1;  // what was drafted in vain is replaced by the next step
  record_.output_tokens = output_tokens_;
  if (drafted > 0) {
    output.drafts = outcome;
    record_.accepted_drafts += outcome.accepted;
    record_.rejected_drafts += drafted - outcome.accepted;
  }
  note_time(std::ssize(output.tokens), now_s, observer);
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

bool Sequence::ends_answer(int32_t token) const {
  return (token == eos_token_ && !state_->request.ignore_eos) || is_stop_token(token);
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

void Sequence::note_time(int64_t tokens, double now_s, EngineObserver* observer) {
  if (output_tokens_ == tokens) {
    record_.first_token_s = now_s;
    if (observer != nullptr) observer->on_first_token(now_s - record_.arrived_s);
  } else if (observer != nullptr) {
    observer->on_next_tokens(tokens, now_s - record_.last_token_s);
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
