// The engine: one thread that drives a StepModel over all running requests, batched.
//
//   Engine engine(model, tokenizer, {.eos_token = 1});
//   const uint64_t id = engine.submit(request, [](Output output) { post(output); });
//   engine.abort(id);      // e.g. when the client is gone; its choices finish with kAbort
//
// Each choice of a request is a sequence with a slot of the model. A step has rows for every sequence that
// decodes and fills up with chunks of prompts (step_planner.h). What a sequence computes depends on its own
// tokens only, so batching, chunking, waiting, pausing and what the caches hold never change an answer.
//
// Who is served when:
// - Waiting clients take turns, each first in, first out. A sequence is admitted when a slot is free and the
//   caches have room for it and for all that run, at their present lengths and some more.
// - When running sequences outgrow the caches the youngest (admitted last) gives up its blocks and waits; it
// is
//   resumed, from its prompt and what it has answered, before anyone new is admitted, the oldest first.
// - So the oldest sequence always runs: it is never paused, in every step it gets its next token or some rows
// of
//   its prompt, and it ends. Then the next one is the oldest. Nothing waits for ever.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/forward/step_model.h"
#include "engine/schedule/request.h"
#include "engine/schedule/speculation_options.h"
#include "text/tokenizer.h"

namespace spark::engine {

struct EngineOptions {
  int32_t eos_token = 1;
  // 0 in the next three: as much as the model allows.
  int32_t max_sequences = 0;  // running at once
  int32_t max_step_rows = 0;  // rows of one step
  int32_t max_context = 0;    // tokens of a sequence, prompt and answer
  SpeculationOptions speculation = {};
  int32_t parallel_prefills = 2;  // prompts that may be partly computed at a time
  double max_token_gap_ms = 0;    // bound on a stream's wait while prompts are read; 0: none
  // Tokens by which every sequence can still grow when another is admitted, so that it is not paused at once.
  int32_t growth_room = 256;
  size_t max_waiting = 256;            // choices that wait; more are refused
  EngineObserver* observer = nullptr;  // outlives the engine
};

struct EngineLoad {
  int64_t running = 0;
  int64_t waiting = 0;                 // paused ones included
  int64_t prefill_backlog_tokens = 0;  // prompt tokens of running sequences not yet computed
  double cache_usage = 0;              // 0..1: blocks held by running sequences, of all
};

class Engine {
 public:
  // The model and the tokenizer outlive the engine.
  Engine(StepModel& model, const text::Tokenizer& tokenizer, const EngineOptions& options);
  // Aborts what is left and waits for the step in progress.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int32_t max_context() const;
  int32_t max_sequences() const;

  // May be called from any thread, like the rest. Throws Refused, or Error when the request does not fit the
  // model; the sink is not called then.
  uint64_t submit(GenerationRequest request, OutputSink sink);
  void abort(uint64_t request);
  void abort_all();
  // The model cannot go on: everything running and waiting ends with this error, and nothing is taken any
  // more.
  void fail(const std::string& why);
  EngineLoad load() const;

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

}  // namespace spark::engine
