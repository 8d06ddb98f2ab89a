// Speculation around the steps of an engine: asks the model for drafts, decides how many a step verifies, and
// learns from what became of them. See docs/speculation.md.
//
//   Speculator speculator(model, options.speculation, 16, 512);
//   speculator.draft(decoding, {.rows = 40, .free_rows = 472});   // before a step: sets drafts of sequences
//   ... plan, run, advance ...
//   speculator.learn(sequence, outcome);                          // after it, for each that decoded
//
// What it decides changes when tokens come and never, for greedy drafts, which tokens. For drafts drawn at
// random the distribution of answers stays exact, and a seed's answer may depend on how many were verified.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/forward/step_model.h"
#include "engine/schedule/draft_plan.h"
#include "engine/schedule/draft_survival.h"
#include "engine/schedule/request.h"
#include "engine/schedule/sequence.h"
#include "engine/schedule/speculation_options.h"

namespace spark::engine {

struct StepRoom {
  int32_t rows = 0;       // that the step will have without drafts, as far as is known
  int32_t free_rows = 0;  // for drafts
};

class Speculator {
 public:
  // Measures the model's costs if they are needed and not given; the model has no open sequence. It outlives
  // this object.
  Speculator(StepModel& model, SpeculationOptions options, int32_t max_sequences);

  bool enabled() const { return options_.max_drafts > 0; }
  const SpeculationOptions& options() const { return options_; }

  // Sets the drafts of the next step, or none, for sequences that all decode. Throws what the model throws.
  void draft(std::span<Sequence* const> decoding, const StepRoom& room);
  void learn(Sequence& sequence, const DraftOutcome& outcome);

 private:
  struct Choice {
    std::vector<Sequence*> sequences;  // to draft for
    DraftPlan plan;
    bool explore = false;  // verify everything
  };
  bool is_drawn(const Sequence& sequence) const;
  void probe(std::span<Sequence* const> eligible, const DraftPricing& pricing, Choice& choice);
  Choice choose(std::span<Sequence* const> eligible, const DraftPricing& pricing);
  Drafts ask(std::span<Sequence* const> sequences);
  std::vector<DraftBlock> blocks_of(std::span<Sequence* const> sequences, const Drafts& drafts);
  std::vector<int32_t> counts_of(const Choice& choice, std::span<const DraftBlock> blocks,
                                 const DraftPricing& pricing) const;

  StepModel& model_;
  SpeculationOptions options_;
  AcceptanceModel acceptance_;
  std::vector<DraftRequest> requests_;
  // Where drafts do not pay, one sequence is drafted for now and then, to notice a change: as often as a
  // small share of the time allows.
  double probe_credit_s_ = 0;
  double probe_cost_s_ = 0;  // of the probe whose outcome is awaited, else 0
  double bare_cost_s_ = 0;   // of that step without the probe
  uint64_t probes_ = 0;
  uint64_t rounds_ = 0;  // of drafting
};

}  // namespace spark::engine
