// The engine's thread and what it holds: see engine.h. Internal to this room.
//
// One turn of the loop: aborts are taken in, sequences admitted, a step planned (step_planner.h), run, and
// its logits turned into outputs; then places are given back and the outputs delivered. Everything behind the
// mutex is shared; `running_`, the slots and the scratch belong to the thread alone.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/schedule/engine.h"
#include "engine/schedule/fair_queue.h"
#include "engine/schedule/prefill_governor.h"
#include "engine/schedule/sequence.h"
#include "engine/schedule/speculator.h"
#include "engine/schedule/step_planner.h"

namespace spark::engine {

class Engine::Worker {
 public:
  Worker(StepModel& model, const text::Tokenizer& tokenizer, const EngineOptions& options);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  const EngineOptions& options() const { return options_; }
  uint64_t submit(GenerationRequest request, OutputSink sink);
  void abort(uint64_t request);
  void abort_all();
  void fail(const std::string& why);
  EngineLoad load() const;

 private:
  using SequencePointer = std::unique_ptr<Sequence>;

  void validate(const GenerationRequest& request) const;
  void run();
  bool collect();
  void take_aborts();
  void admit();
  const Sequence* next_in_line() const;
  SequencePointer take_next();
  bool fits(const Sequence& candidate);
  void start(SequencePointer sequence);
  void step();
  void speculate();
  StepLimits limits() const;
  StepPlan choose();
  bool fits(const StepPlan& plan);
  void preempt_youngest();
  StepPlan plan();
  void report_progress(const StepPlan& plan);
  void prefetch();
  void advance(std::span<const float> logits);
  void learn(Sequence& sequence, const Output& output);
  void fail_step(const std::string& what);
  void finish_all(FinishReason reason, const std::string& error);
  void retire();
  void deliver();
  void publish_load();

  StepModel& model_;
  const text::Tokenizer& tokenizer_;
  const EngineOptions options_;
  Speculator speculator_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  FairQueue<SequencePointer> waiting_;
  std::vector<uint64_t> aborts_;
  bool abort_all_ = false;
  std::string failure_;  // set when the model cannot go on
  bool stopping_ = false;
  uint64_t next_id_ = 1;
  EngineLoad load_;

  std::vector<SequencePointer> running_;  // in order of first admission, like the next
  std::vector<SequencePointer> paused_;   // without a slot, to be resumed
  std::vector<SequencePointer> retired_;  // finished without having run
  std::vector<int32_t> free_slots_;       // the lowest last
  std::vector<Sequence*> decoding_;       // scratch
  std::vector<SequenceLength> lengths_;   // scratch
  PrefillGovernor governor_;
  uint64_t next_ticket_ = 0;
  std::vector<SequenceView> views_;  // of running_, for the planner
  std::vector<StepRow> rows_;
  std::vector<Sequence*> chosen_;  // sequences whose next tokens this step's logits choose, in row order
  std::vector<std::pair<Sequence*, Output>> outputs_;
  Sampler sampler_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace spark::engine
