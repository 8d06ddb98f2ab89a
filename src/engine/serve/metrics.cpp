#include "engine/serve/metrics.h"

#include <utility>
#include <vector>

#include "api/metric_names.h"

namespace spark::engine {
namespace {

// vLLM's bounds, continued downwards for models whose steps take less than a millisecond.
const std::vector<double> kFirstTokenBounds = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06,
                                               0.08,   0.1,   0.25,   0.5,   0.75, 1,    2.5,  5,
                                               7.5,    10,    20,     40,    80,   160,  640,  2560};
const std::vector<double> kTokenBounds = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075,
                                          0.1,    0.15,  0.2,    0.3,   0.4,  0.5,   0.75, 1,
                                          2.5,    5,     7.5,    10,    20,   40,    80};
const std::vector<double> kRequestBounds = {0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1,   1.5, 2,   2.5, 5,    10,
                                            15,   20,   30,  40,  50,  60,  120, 240, 480, 960, 1920, 7680};
const std::vector<double> kIterationBounds = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

// 1, 2, 5, 10, 20, 50, ... up to the context.
std::vector<double> length_bounds(int64_t max_context) {
  std::vector<double> bounds;
  for (int64_t power = 1; power <= max_context; power *= 10) {
    for (const int64_t factor : {1, 2, 5}) {
      if (factor * power <= max_context) bounds.push_back(static_cast<double>(factor * power));
    }
  }
  return bounds;
}

}  // namespace

ServerMetrics::ServerMetrics(std::string model_name, int64_t max_context)
    : model_name_(std::move(model_name)),
      iteration_tokens_(kIterationBounds),
      prompt_lengths_(length_bounds(max_context)),
      answer_lengths_(length_bounds(max_context)),
      first_token_s_(kFirstTokenBounds),
      inter_token_s_(kTokenBounds),
      per_token_s_(kTokenBounds),
      queue_s_(kRequestBounds),
      prefill_s_(kRequestBounds),
      decode_s_(kRequestBounds),
      latency_s_(kRequestBounds) {}

void ServerMetrics::on_step(const StepCounts& counts) {
  const std::lock_guard lock(mutex_);
  prompt_tokens_ += static_cast<uint64_t>(counts.prompt_rows);
  iteration_tokens_.observe(
      static_cast<double>(counts.prompt_rows + counts.decode_rows + counts.recomputed_rows));
}

void ServerMetrics::on_admit(int64_t prompt_tokens, int64_t cached_tokens) {
  const std::lock_guard lock(mutex_);
  looked_up_tokens_ += static_cast<uint64_t>(prompt_tokens);
  cached_tokens_ += static_cast<uint64_t>(cached_tokens);
}

void ServerMetrics::on_preempt() {
  const std::lock_guard lock(mutex_);
  ++preemptions_;
}

void ServerMetrics::on_first_token(double after_arrival_s) {
  const std::lock_guard lock(mutex_);
  ++generation_tokens_;
  first_token_s_.observe(after_arrival_s);
}

void ServerMetrics::on_next_tokens(int64_t tokens, double after_previous_s) {
  const std::lock_guard lock(mutex_);
  generation_tokens_ += static_cast<uint64_t>(tokens);
  inter_token_s_.observe(after_previous_s);
}

void ServerMetrics::on_drafts(const DraftOutcome& outcome) {
  const std::lock_guard lock(mutex_);
  ++drafts_;
  const auto verified = static_cast<size_t>(outcome.verified);
  if (verified_by_place_.size() < verified) {
    verified_by_place_.resize(verified);
    accepted_by_place_.resize(verified);
  }
  for (size_t place = 0; place < verified; ++place) {
    ++verified_by_place_[place];
    if (place < static_cast<size_t>(outcome.accepted)) ++accepted_by_place_[place];
  }
}

void ServerMetrics::on_finish(const ChoiceRecord& record) {
  const std::lock_guard lock(mutex_);
  ++finished_[static_cast<size_t>(record.reason)];
  if (record.reason == FinishReason::kAbort || record.reason == FinishReason::kError) return;
  prompt_lengths_.observe(static_cast<double>(record.prompt_tokens));
  answer_lengths_.observe(static_cast<double>(record.output_tokens));
  queue_s_.observe(record.admitted_s - record.arrived_s);
  prefill_s_.observe(record.first_token_s - record.admitted_s);
  const double decode_s = record.last_token_s - record.first_token_s;
  decode_s_.observe(decode_s);
  if (record.output_tokens > 1)
    per_token_s_.observe(decode_s / static_cast<double>(record.output_tokens - 1));
  latency_s_.observe(record.finished_s - record.arrived_s);
}

std::string ServerMetrics::page(const EngineLoad& load, const TableCounters& tables) const {
  namespace metric = api::metric;
  const api::MetricLabels labels = {{metric::kModelLabel, model_name_}};
  api::MetricsWriter page;
  const auto gauge = [&](const char* name, const char* help, double value) {
    page.family(name, "gauge", help);
    page.sample(name, labels, value);
  };
  const auto counter = [&](const char* name, const char* help, uint64_t value) {
    page.family(name, "counter", help);
    page.sample(name, labels, static_cast<double>(value));
  };
  const auto by_position = [&](const char* name, const char* help, const std::vector<uint64_t>& values) {
    page.family(name, "counter", help);
    for (size_t place = 0; place < values.size(); ++place) {
      api::MetricLabels with_place = labels;
      with_place.emplace_back(metric::kPositionLabel, std::to_string(place));
      page.sample(name, with_place, static_cast<double>(values[place]));
    }
  };
  const auto histogram = [&](const char* name, const char* help, const api::Histogram& values) {
    page.family(name, "histogram", help);
    page.histogram(name, labels, values);
  };

  gauge(metric::kRequestsRunning, "Sequences in the batch.", static_cast<double>(load.running));
  gauge(metric::kRequestsWaiting, "Sequences waiting for a place in the batch.",
        static_cast<double>(load.waiting));
  gauge(metric::kCacheUsage, "Share of the cache held by running sequences, 0 to 1.", load.cache_usage);
  gauge(metric::kPrefillBacklog, "Prompt tokens of running sequences not yet computed.",
        static_cast<double>(load.prefill_backlog_tokens));

  counter(metric::kEngramHits, "Engram rows that were in the cache when a step asked.", tables.hits);
  counter(metric::kEngramAwaited, "Engram rows that were just being read ahead when a step asked.",
          tables.awaited);
  counter(metric::kEngramMisses, "Engram rows that a step had read from disk.", tables.misses);
  counter(metric::kEngramPrefetched, "Engram rows read ahead of their step.", tables.prefetched);
  counter(metric::kEngramReads, "Reads of Engram table files; near rows share one.", tables.reads);
  counter(metric::kEngramReadBytes, "Bytes read from Engram table files.", tables.bytes);
  counter(metric::kEngramFailures, "Steps and read-aheads that failed to read Engram rows.", tables.failures);
  page.family(metric::kEngramWait, "counter", "Seconds that steps waited for Engram rows.");
  page.sample(metric::kEngramWait, labels, tables.wait_s);

  const std::lock_guard lock(mutex_);
  page.family(metric::kRequestSuccess, "counter", "Sequences that ended, by reason.");
  for (size_t i = 0; i < kReasons; ++i) {
    api::MetricLabels with_reason = labels;
    with_reason.emplace_back(metric::kFinishedLabel, name(static_cast<FinishReason>(i)));
    page.sample(metric::kRequestSuccess, with_reason, static_cast<double>(finished_[i]));
  }
  counter(metric::kPromptTokens, "Prompt tokens computed.", prompt_tokens_);
  counter(metric::kGenerationTokens, "Tokens generated.", generation_tokens_);
  uint64_t verified = 0, accepted = 0;
  for (const uint64_t count : verified_by_place_) verified += count;
  for (const uint64_t count : accepted_by_place_) accepted += count;
  counter(metric::kDrafts, "Blocks of drafts: one per sequence and step, also when none of it was verified.",
          drafts_);
  counter(metric::kDraftTokens, "Drafts verified.", verified);
  counter(metric::kAcceptedTokens, "Drafts accepted.", accepted);
  by_position(metric::kDraftTokensPerPosition, "Drafts verified, by place in the block.", verified_by_place_);
  by_position(metric::kAcceptedTokensPerPosition, "Drafts accepted, by place in the block.",
              accepted_by_place_);
  counter(metric::kPreemptions, "Sequences paused to make room.", preemptions_);
  counter(metric::kPromptTokensCached, "Prompt tokens taken from the prefix cache.", cached_tokens_);
  counter(metric::kPrefixQueries, "Prompt tokens looked up in the prefix cache.", looked_up_tokens_);
  counter(metric::kPrefixHits, "Prompt tokens found in the prefix cache.", cached_tokens_);

  histogram(metric::kIterationTokens, "Rows of each step.", iteration_tokens_);
  histogram(metric::kRequestPromptTokens, "Length of prompts, in tokens.", prompt_lengths_);
  histogram(metric::kRequestGenerationTokens, "Length of answers, in tokens.", answer_lengths_);
  histogram(metric::kQueueTime, "From arrival to admission.", queue_s_);
  histogram(metric::kTimeToFirstToken, "From arrival to the first token.", first_token_s_);
  histogram(metric::kInterTokenLatency, "Between the tokens of a sequence, those of one step together.",
            inter_token_s_);
  histogram(metric::kTimePerOutputToken, "Mean time per token after the first, per sequence.", per_token_s_);
  histogram(metric::kPrefillTime, "From admission to the first token.", prefill_s_);
  histogram(metric::kDecodeTime, "From the first token to the last.", decode_s_);
  histogram(metric::kRequestLatency, "From arrival to the end.", latency_s_);
  return page.text();
}

}  // namespace spark::engine
