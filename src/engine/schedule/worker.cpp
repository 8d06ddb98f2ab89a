#include "engine/schedule/worker.h"

#include <algorithm>
#include <bit>
#include <set>

#include "common/clock.h"
#include "common/log.h"

namespace spark::engine {
namespace {

// Borders of chunks are multiples of a power of two about an eighth of the step.
constexpr int32_t kChunksOfStep = 8;
constexpr int32_t kLargestBorder = 256;

int32_t border_for(int32_t rows) {
  return static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(std::max(1, rows))));
}

int32_t bounded(int32_t asked, int32_t limit) {
  return asked > 0 ? std::min(asked, limit) : limit;
}

EngineOptions resolved(EngineOptions options, const StepModel& model) {
  options.max_step_rows = bounded(options.max_step_rows, model.max_step_rows());
  // One row at least for each running sequence, so that no stream waits for another.
  options.max_sequences =
      std::min(bounded(options.max_sequences, model.max_sequences()), options.max_step_rows);
  // What the caches could never hold is refused at once.
  options.max_context = bounded(options.max_context, std::min(model.max_context(), model.longest_sequence()));
  return options;
}

}  // namespace

Engine::Worker::Worker(StepModel& model, const text::Tokenizer& tokenizer, const EngineOptions& options)
    : model_(model),
      tokenizer_(tokenizer),
      options_(resolved(options, model)),
      speculator_(model, options_.speculation, options_.max_sequences),
      governor_(options_.max_token_gap_ms) {
  for (int32_t slot = options_.max_sequences - 1; slot >= 0; --slot) free_slots_.push_back(slot);
  thread_ = std::thread([this] { run(); });
}

Engine::Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Engine::Worker::validate(const GenerationRequest& request) const {
  if (request.prompt.empty()) throw Error("is empty", "prompt");
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= model_.vocab_size() || !tokenizer_.contains(token)) {
      throw Error("has token " + std::to_string(token) + "; the vocabulary ends at " +
                      std::to_string(std::min(model_.vocab_size(), tokenizer_.vocab_size()) - 1),
                  "prompt");
    }
  }
  if (request.choices < 1) throw Error("must be at least 1", "choices");
  if (request.min_tokens > 0) {
    std::set<int32_t> banned = {options_.eos_token};
    const int32_t known = std::min(model_.vocab_size(), tokenizer_.vocab_size());
    for (const int32_t token : request.stop_token_ids) {
      if (token < known) banned.insert(token);
    }
    if (banned.size() >= static_cast<size_t>(known)) {
      throw Error("cannot be reached: every token of the vocabulary ends the answer", "min_tokens");
    }
  }
  if (request.max_tokens < 1) throw Error("must be at least 1", "max_tokens");
  if (static_cast<int64_t>(request.prompt.size()) + request.max_tokens > options_.max_context) {
    throw Error("asks for " + std::to_string(request.max_tokens) + " tokens after a prompt of " +
                    std::to_string(request.prompt.size()) + "; the context has " +
                    std::to_string(options_.max_context),
                "max_tokens");
  }
}

uint64_t Engine::Worker::submit(GenerationRequest request, OutputSink sink) {
  validate(request);
  auto state = std::make_shared<RequestState>();
  state->request = std::move(request);
  state->sink = std::move(sink);
  state->arrived_s = monotonic_s();
  std::vector<SequencePointer> choices;
  uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) throw Refused(Refused::Why::kStopping, "the engine is stopping");
    if (!failure_.empty()) throw Refused(Refused::Why::kStopping, failure_);
    id = state->id = next_id_++;
  }
  for (int32_t choice = 0; choice < state->request.choices; ++choice) {
    choices.push_back(std::make_unique<Sequence>(state, choice, tokenizer_, options_.eos_token));
  }
  {
    const std::lock_guard lock(mutex_);
    const size_t taken = waiting_.size() + static_cast<size_t>(load_.running) + choices.size();
    if (taken > options_.max_waiting + static_cast<size_t>(options_.max_sequences)) {
      throw Refused(Refused::Why::kQueueFull,
                    std::to_string(waiting_.size()) + " requests are waiting, which is the limit");
    }
    for (SequencePointer& choice : choices) waiting_.push(state->request.client, std::move(choice));
    load_.waiting = static_cast<int64_t>(waiting_.size());
  }
  wake_.notify_all();
  return id;
}

void Engine::Worker::abort(uint64_t request) {
  {
    const std::lock_guard lock(mutex_);
    aborts_.push_back(request);
  }
  wake_.notify_all();
}

void Engine::Worker::abort_all() {
  {
    const std::lock_guard lock(mutex_);
    abort_all_ = true;
  }
  wake_.notify_all();
}

void Engine::Worker::fail(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = why;
    abort_all_ = true;
  }
  wake_.notify_all();
}

EngineLoad Engine::Worker::load() const {
  const std::lock_guard lock(mutex_);
  return load_;
}

void Engine::Worker::run() {
  while (collect()) step();
  finish_all(FinishReason::kAbort, {});
  retire();
  deliver();
}

// Waits for work, takes aborts in, then admits: whoever comes finds what an abort set free. False when the
// engine stops.
bool Engine::Worker::collect() {
  {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] {
      return stopping_ || abort_all_ || !aborts_.empty() || !running_.empty() || !paused_.empty() ||
             !waiting_.empty();
    });
    take_aborts();
    if (stopping_) return false;
  }
  retire();
  deliver();
  admit();
  retire();
  deliver();
  return true;
}

// Under the lock.
void Engine::Worker::take_aborts() {
  const bool all = abort_all_ || stopping_;
  if (!all && aborts_.empty()) return;
  const auto unwanted = [&](const SequencePointer& sequence) {
    return all || std::find(aborts_.begin(), aborts_.end(), sequence->state().id) != aborts_.end();
  };
  for (SequencePointer& sequence : waiting_.remove_if(unwanted)) retired_.push_back(std::move(sequence));
  for (SequencePointer& sequence : paused_) {
    if (unwanted(sequence)) retired_.push_back(std::move(sequence));
  }
  std::erase(paused_, nullptr);
  const double now_s = monotonic_s();
  const FinishReason reason = failure_.empty() ? FinishReason::kAbort : FinishReason::kError;
  for (const SequencePointer& sequence : retired_) {
    outputs_.emplace_back(sequence.get(), sequence->end(reason, failure_, now_s));
  }
  for (const SequencePointer& sequence : running_) {
    if (unwanted(sequence)) outputs_.emplace_back(sequence.get(), sequence->end(reason, failure_, now_s));
  }
  aborts_.clear();
  abort_all_ = false;
}

void Engine::Worker::admit() {
  while (!free_slots_.empty()) {
    const Sequence* next = next_in_line();
    if (next == nullptr || !fits(*next)) return;
    start(take_next());
  }
}

// Who was paused comes before who waits.
const Sequence* Engine::Worker::next_in_line() const {
  if (!paused_.empty()) return paused_.front().get();
  const std::lock_guard lock(mutex_);
  const SequencePointer* front = waiting_.front();
  return front == nullptr ? nullptr : front->get();
}

Engine::Worker::SequencePointer Engine::Worker::take_next() {
  if (!paused_.empty()) {
    SequencePointer next = std::move(paused_.front());
    paused_.erase(paused_.begin());
    return next;
  }
  const std::lock_guard lock(mutex_);
  return std::move(*waiting_.pop());
}

// Whether the caches have room for it beside all that run. One alone always fits: see resolved().
bool Engine::Worker::fits(const Sequence& candidate) {
  if (running_.empty()) return true;
  const auto reach = [this](const Sequence& s) {
    return std::min(s.length() + options_.growth_room, s.longest());
  };
  lengths_.clear();
  for (const SequencePointer& sequence : running_) lengths_.push_back({sequence->slot(), reach(*sequence)});
  lengths_.push_back({free_slots_.back(), reach(candidate)});
  return model_.has_room(lengths_);
}

void Engine::Worker::start(SequencePointer sequence) {
  const double now_s = monotonic_s();
  const int32_t slot = free_slots_.back();
  int32_t cached = 0;
  try {
    cached = model_.start_sequence(
        slot, {.tokens = sequence->tokens(),
               .prompt_tokens = static_cast<int32_t>(sequence->state().request.prompt.size()),
               .cache_salt = sequence->state().request.cache_salt});
  } catch (const std::exception& error) {
    outputs_.emplace_back(sequence.get(), sequence->end(FinishReason::kError, error.what(), now_s));
    retired_.push_back(std::move(sequence));
    return;
  }
  free_slots_.pop_back();
  const bool first_time = !sequence->was_admitted();
  sequence->admit(slot, cached, next_ticket_, now_s);
  if (first_time) {
    ++next_ticket_;
    if (options_.observer != nullptr) options_.observer->on_admit(sequence->record().prompt_tokens, cached);
  }
  const auto place = std::upper_bound(
      running_.begin(), running_.end(), sequence->ticket(),
      [](uint64_t ticket, const SequencePointer& other) { return ticket < other->ticket(); });
  running_.insert(place, std::move(sequence));
}

void Engine::Worker::step() {
  const double began_s = monotonic_s();
  StepPlan step;
  rows_.clear();
  try {
    speculate();
    step = plan();
    if (rows_.empty()) return;
    prefetch();
    advance(model_.run(rows_));
    report_progress(step);
  } catch (const Error& error) {
    log_error("a step of " + std::to_string(rows_.size()) + " rows failed: " + error.describe());
    fail_step(error.what());
  } catch (const std::exception& error) {
    log_error("a step of " + std::to_string(rows_.size()) + " rows failed: " + error.what());
    fail_step(error.what());
  }
  retire();
  deliver();
  governor_.observe({.prefill_rows = step.prefill_rows,
                     .decode_rows = step.decode_rows,
                     .ms = (monotonic_s() - began_s) * 1e3});
}

void Engine::Worker::speculate() {
  if (!speculator_.enabled()) return;
  decoding_.clear();
  int64_t prompt_rows = 0;
  for (const SequencePointer& sequence : running_) {
    if (sequence->view().decoding) {
      decoding_.push_back(sequence.get());
    } else {
      prompt_rows += sequence->pending();
    }
  }
  const auto streams = static_cast<int32_t>(decoding_.size());
  const int32_t left = options_.max_step_rows - streams;
  const auto prompts = static_cast<int32_t>(std::min<int64_t>(prompt_rows, left));
  speculator_.draft(decoding_, {.rows = streams + prompts, .free_rows = left});
}

StepLimits Engine::Worker::limits() const {
  StepLimits limits{.rows = options_.max_step_rows,
                    .prefill_rows = options_.max_step_rows,
                    .parallel_prefills = options_.parallel_prefills};
  const bool streams =
      std::any_of(views_.begin(), views_.end(), [](const SequenceView& v) { return v.decoding; });
  if (streams && options_.max_token_gap_ms > 0) {
    limits.prefill_rows = std::min(limits.prefill_rows, governor_.rows());
  }
  limits.chunk = std::min(
      {border_for(options_.max_step_rows / kChunksOfStep), border_for(limits.prefill_rows), kLargestBorder});
  return limits;
}

// The step that the planner wants, made to fit the caches: without drafts if need be, then without the
// youngest.
StepPlan Engine::Worker::choose() {
  bool drafts = true;
  while (true) {
    views_.clear();
    for (const SequencePointer& sequence : running_) views_.push_back(sequence->view());
    if (!drafts) {
      for (SequenceView& view : views_) view.drafts = 0;
    }
    StepPlan plan = plan_step(views_, limits());
    if (fits(plan)) return plan;
    if (drafts &&
        std::any_of(views_.begin(), views_.end(), [](const SequenceView& v) { return v.drafts > 0; })) {
      drafts = false;
      continue;
    }
    // The model promised room for one sequence; if it lied the step fails, and says so.
    if (running_.size() == 1) return plan;
    preempt_youngest();
  }
}

bool Engine::Worker::fits(const StepPlan& plan) {
  lengths_.clear();
  for (const PlannedRows& planned : plan.rows) {
    const auto i = static_cast<size_t>(planned.sequence);
    const int32_t drafts = planned.drafts > 0 ? std::max(planned.drafts, running_[i]->drafts().room) : 0;
    lengths_.push_back({running_[i]->slot(), views_[i].computed + planned.rows + drafts});
  }
  return model_.has_room(lengths_);
}

void Engine::Worker::preempt_youngest() {
  SequencePointer youngest = std::move(running_.back());
  running_.pop_back();
  model_.close_sequence(youngest->slot());
  free_slots_.push_back(youngest->slot());
  youngest->pause();
  paused_.insert(paused_.begin(), std::move(youngest));  // it is older than all that were paused before
  if (options_.observer != nullptr) options_.observer->on_preempt();
}

// Turns the planner's choice into rows.
StepPlan Engine::Worker::plan() {
  chosen_.clear();
  const StepPlan plan = choose();
  StepCounts counts{.decode_rows = plan.decode_rows};
  for (const PlannedRows& planned : plan.rows) {
    const auto i = static_cast<size_t>(planned.sequence);
    Sequence& sequence = *running_[i];
    if (!views_[i].decoding) {
      const int32_t again = sequence.recomputed(planned.rows);
      counts.recomputed_rows += again;
      (sequence.answering() ? counts.decode_rows : counts.prompt_rows) += planned.rows - again;
    }
    const size_t first = rows_.size();
    if (sequence.add_rows(planned.rows, planned.drafts, rows_) > 0) chosen_.push_back(&sequence);
    for (size_t row = first; row < rows_.size(); ++row) {
      rows_[row].encoder_only =
          may_skip_decoder(model_, rows_[row].position, sequence.record().prompt_tokens);
    }
  }
  if (options_.observer != nullptr && !rows_.empty()) options_.observer->on_step(counts);
  return plan;
}

// After advance(): who has begun to answer has nothing to report.
void Engine::Worker::report_progress(const StepPlan& plan) {
  for (const PlannedRows& planned : plan.rows) {
    Sequence* sequence = running_[static_cast<size_t>(planned.sequence)].get();
    if (auto output = sequence->progress()) outputs_.emplace_back(sequence, std::move(*output));
  }
}

// While this step runs, the model may read what the next chunks of its prompts need.
void Engine::Worker::prefetch() {
  for (const SequencePointer& sequence : running_) {
    const int32_t computed = sequence->length() - sequence->pending();
    const int32_t begin = std::max(computed, sequence->announced());
    const int32_t end = std::min(sequence->length(), computed + options_.max_step_rows);
    if (begin >= end) continue;
    sequence->announce(end);
    const int32_t from = std::max(0, begin - model_.prefetch_lead());
    model_.prefetch(sequence->tokens().subspan(static_cast<size_t>(from), static_cast<size_t>(end - from)),
                    from);
  }
}

void Engine::Worker::advance(std::span<const float> logits) {
  const auto width = static_cast<size_t>(model_.vocab_size());
  // Tokens that the checkpoint pads its vocabulary with have no text.
  const size_t known = std::min(width, static_cast<size_t>(tokenizer_.vocab_size()));
  const double now_s = monotonic_s();
  size_t next = 0;  // row of logits
  for (Sequence* sequence : chosen_) {
    const auto count = static_cast<size_t>(sequence->wanted_logits());
    SPARK_CHECK((next + count) * width <= logits.size());
    const LogitRows rows{logits.subspan(next * width, count * width), width, known};
    next += count;
    const bool decoded = sequence->answering();
    try {
      outputs_.emplace_back(sequence, sequence->advance(rows, sampler_, now_s, options_.observer));
      if (decoded) learn(*sequence, outputs_.back().second);
    } catch (const Error& error) {
      log_error("request " + std::to_string(sequence->state().id) + ": " + error.what());
      outputs_.emplace_back(sequence, sequence->end(FinishReason::kError, error.what(), now_s));
    }
  }
  SPARK_CHECK(next * width == logits.size());
}

void Engine::Worker::learn(Sequence& sequence, const Output& output) {
  if (!speculator_.enabled()) return;
  if (output.drafts) speculator_.learn(sequence, *output.drafts);
  if (options_.observer != nullptr) options_.observer->on_drafts(output.drafts.value_or(DraftOutcome{}));
}

// The caches of every sequence in the step are in an unknown state now.
void Engine::Worker::fail_step(const std::string& what) {
  outputs_.clear();
  finish_all(FinishReason::kError, "the model failed: " + what);
}

void Engine::Worker::finish_all(FinishReason reason, const std::string& error) {
  const double now_s = monotonic_s();
  for (const SequencePointer& sequence : running_) {
    if (!sequence->finished()) outputs_.emplace_back(sequence.get(), sequence->end(reason, error, now_s));
  }
}

// Gives slots back and tells the observer, before the outputs go out: whoever has an answer finds it counted.
void Engine::Worker::retire() {
  std::stable_partition(running_.begin(), running_.end(),
                        [](const SequencePointer& s) { return !s->finished(); });
  const auto first =
      std::find_if(running_.begin(), running_.end(), [](const SequencePointer& s) { return s->finished(); });
  for (auto it = first; it != running_.end(); ++it) {
    model_.close_sequence((*it)->slot());
    free_slots_.push_back((*it)->slot());
    retired_.push_back(std::move(*it));
  }
  running_.erase(first, running_.end());
  for (const SequencePointer& sequence : retired_) {
    if (options_.observer != nullptr) options_.observer->on_finish(sequence->record());
  }
  publish_load();
}

void Engine::Worker::deliver() {
  for (auto& [sequence, output] : outputs_) sequence->state().sink(std::move(output));
  outputs_.clear();
  retired_.clear();
}

void Engine::Worker::publish_load() {
  EngineLoad load;
  load.running = static_cast<int64_t>(running_.size());
  double held = 0;
  for (const SequencePointer& sequence : running_) {
    held += sequence->length();
    if (!sequence->view().decoding) load.prefill_backlog_tokens += sequence->pending();
  }
  const CacheOccupancy cache = model_.cache_occupancy();
  if (cache.blocks > 0) {
    load.cache_usage = static_cast<double>(cache.held) / static_cast<double>(cache.blocks);
  } else {
    load.cache_usage = held / (static_cast<double>(options_.max_sequences) * options_.max_context);
  }
  const std::lock_guard lock(mutex_);
  load.waiting = static_cast<int64_t>(waiting_.size() + paused_.size());
  load_ = load;
}

}  // namespace spark::engine
