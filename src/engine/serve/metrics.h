// What the server counts, and the page that /metrics shows. Names are vLLM's (api/metric_names.h).
//
//   ServerMetrics metrics("deepseek-v4.1-flash");
//   Engine engine(model, tokenizer, {.observer = &metrics});
//   std::string page = metrics.page(engine.load());
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "api/prometheus.h"
#include "engine/schedule/engine.h"

namespace spark::engine {

class ServerMetrics : public EngineObserver {
 public:
  ServerMetrics(std::string model_name, int64_t max_context);

  void on_step(const StepCounts& counts) override;
  void on_admit(int64_t prompt_tokens, int64_t cached_tokens) override;
  void on_preempt() override;
  void on_first_token(double after_arrival_s) override;
  void on_next_tokens(int64_t tokens, double after_previous_s) override;
  void on_drafts(const DraftOutcome& outcome) override;
  void on_finish(const ChoiceRecord& record) override;

  // `tables` are the model's reads of its Engram tables.
  std::string page(const EngineLoad& load, const TableCounters& tables = {}) const;

 private:
  static constexpr size_t kReasons = 4;  // of FinishReason

  const std::string model_name_;
  mutable std::mutex mutex_;
  uint64_t prompt_tokens_ = 0;
  uint64_t generation_tokens_ = 0;
  uint64_t looked_up_tokens_ = 0;  // in the prefix cache
  uint64_t cached_tokens_ = 0;
  uint64_t preemptions_ = 0;
  uint64_t drafts_ = 0;
  std::vector<uint64_t> verified_by_place_;
  std::vector<uint64_t> accepted_by_place_;
  std::array<uint64_t, kReasons> finished_{};
  api::Histogram iteration_tokens_;
  api::Histogram prompt_lengths_;
  api::Histogram answer_lengths_;
  api::Histogram first_token_s_;
  api::Histogram inter_token_s_;
  api::Histogram per_token_s_;
  api::Histogram queue_s_;
  api::Histogram prefill_s_;
  api::Histogram decode_s_;
  api::Histogram latency_s_;
};

}  // namespace spark::engine
