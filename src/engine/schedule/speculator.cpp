#include "engine/schedule/speculator.h"

#include <algorithm>
#include <utility>

#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "common/units.h"

namespace spark::engine {
namespace {

constexpr double kProbeShare = 0.02;  // of the time, where drafts do not pay
constexpr uint64_t kFreeProbes = 8;   // of an engine's life: it starts knowing nothing
// Drafts beyond what pays are never judged; every so many rounds all are, so that estimates cannot freeze.
constexpr uint64_t kExploreEvery = 64;

SpeculationOptions resolved(SpeculationOptions options, const StepModel& model) {
  options.max_drafts = std::clamp(options.max_drafts, 0, std::min(model.max_drafts(), model.max_rollback()));
  return options;
}

}  // namespace

Speculator::Speculator(StepModel& model, SpeculationOptions options, int32_t max_sequences)
    : model_(model), options_(resolved(std::move(options), model)), acceptance_(options_.max_drafts) {
  if (!enabled() || !options_.adaptive || !options_.costs.verify.empty()) return;
  const double begin = monotonic_s();
  options_.costs = measure_step_costs(
      model, {.max_sequences = max_sequences, .max_drafts = options_.max_drafts, .drawn = options_.drawn});
  log_info("profiled speculation step costs in " + format_fixed(monotonic_s() - begin, 2) +
           " s: " + options_.costs.describe());
}

bool Speculator::is_drawn(const Sequence& sequence) const {
  return options_.drawn && sequence.sampling().temperature > 0;
}

void Speculator::draft(std::span<Sequence* const> decoding, const StepRoom& room) {
  if (!enabled()) return;
  std::vector<Sequence*> eligible;
  for (Sequence* sequence : decoding) {
    sequence->set_drafts({});
    if (sequence->most_drafts() > 0) eligible.push_back(sequence);
  }
  if (eligible.empty() || room.free_rows <= 0) return;
  const DraftPricing pricing = {.costs = &options_.costs,
                                .streams = static_cast<int32_t>(decoding.size()),
                                .rows = room.rows,
                                .max_drafts = room.free_rows,
                                .cost_scale = options_.cost_scale};
  const Choice choice = choose(eligible, pricing);
  if (choice.sequences.empty()) return;
  ++rounds_;
  std::vector<DraftBlock> blocks = blocks_of(choice.sequences, ask(choice.sequences));
  const std::vector<int32_t> counts = counts_of(choice, blocks, pricing);
  for (size_t i = 0; i < blocks.size(); ++i) {
    blocks[i].tokens.resize(static_cast<size_t>(counts[i]));
    choice.sequences[i]->set_drafts(std::move(blocks[i]));
  }
}

Speculator::Choice Speculator::choose(std::span<Sequence* const> eligible, const DraftPricing& pricing) {
  Choice choice;
  if (!options_.adaptive) {
    choice.sequences.assign(eligible.begin(), eligible.end());
    choice.explore = true;
    return choice;
  }
  std::vector<Survivals> expected;
  for (Sequence* sequence : eligible) {
    expected.push_back(sequence->survival().expected(acceptance_, options_.max_drafts));
    const int32_t most = std::min(sequence->most_drafts(), options_.max_drafts);
    expected.back().resize(static_cast<size_t>(most));
  }
  choice.plan = plan_drafts(expected, pricing);
  for (const size_t i : choice.plan.requests) choice.sequences.push_back(eligible[i]);
  if (choice.sequences.empty()) {
    probe(eligible, pricing, choice);
  } else {
    choice.explore = rounds_ % kExploreEvery == kExploreEvery - 1;
  }
  return choice;
}

void Speculator::probe(std::span<Sequence* const> eligible, const DraftPricing& pricing, Choice& choice) {
  const StepCosts& costs = options_.costs;
  const double bare = costs.verify.at(pricing.rows);
  const double cost = costs.draft.at(1) + costs.verify.at(pricing.rows + options_.max_drafts) - bare;
  probe_credit_s_ = std::min(probe_credit_s_ + kProbeShare * bare, cost);
  if (probe_credit_s_ < cost && probes_ >= kFreeProbes) return;
  probe_credit_s_ = 0;
  probe_cost_s_ = cost;
  bare_cost_s_ = bare / pricing.streams;
  choice.sequences.push_back(eligible[probes_++ % eligible.size()]);
  choice.explore = true;
}

Drafts Speculator::ask(std::span<Sequence* const> sequences) {
  requests_.clear();
  for (const Sequence* sequence : sequences) {
    DraftRequest request{.sequence = sequence->slot(),
                         .anchor = sequence->tokens().back(),
                         .position = sequence->length() - 2};
    if (is_drawn(*sequence)) {
      request.filter = sequence->sampling().filter();
      for (int32_t place = 0; place < model_.max_drafts(); ++place) {
        request.uniforms[static_cast<size_t>(place)] = sequence->draft_uniform(place);
      }
    }
    requests_.push_back(request);
  }
  const Drafts drafts = model_.draft(requests_);
  const size_t count = requests_.size() * static_cast<size_t>(model_.max_drafts());
  SPARK_CHECK(drafts.tokens.size() == count && drafts.confidence.size() == count);
  return drafts;
}

// What each request may use of its drafts.
std::vector<DraftBlock> Speculator::blocks_of(std::span<Sequence* const> sequences, const Drafts& drafts) {
  const auto stride = static_cast<size_t>(model_.max_drafts());
  const auto depth = static_cast<size_t>(options_.max_drafts);
  std::vector<DraftBlock> blocks(sequences.size());
  size_t next_proposal = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& sequence = *sequences[i];
    DraftBlock& block = blocks[i];
    const auto tokens = drafts.tokens.subspan(i * stride, depth);
    const auto confidence = drafts.confidence.subspan(i * stride, depth);
    Survivals survival;
    double product = 1;
    for (size_t place = 0; place < depth; ++place) {
      const double said = acceptance_.acceptance(static_cast<int32_t>(place), confidence[place]);
      block.acceptance.push_back(sequence.survival().adjusted(said));
      survival.push_back(product *= block.acceptance.back());
    }
    sequence.survival().note_block(survival);
    block.confidence.assign(confidence.begin(), confidence.end());
    auto useful = static_cast<size_t>(sequence.useful_drafts(tokens));
    if (is_drawn(sequence)) {
      // Whether a drawn draft is verified must not depend on what it is, so one that ends the answer stays.
      const auto most = static_cast<size_t>(std::min(sequence.most_drafts(), options_.max_drafts));
      useful = std::min(useful + 1, most);
      block.rejection = options_.rejection;
      block.room = static_cast<int32_t>(most);
      const auto proposals = drafts.proposals.subspan(next_proposal, stride).first(useful);
      block.proposals.assign(proposals.begin(), proposals.end());
      next_proposal += stride;
    }
    block.tokens.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(useful));
  }
  return blocks;
}

std::vector<int32_t> Speculator::counts_of(const Choice& choice, std::span<const DraftBlock> blocks,
                                           const DraftPricing& pricing) const {
  std::vector<Survivals> survivals;
  for (const DraftBlock& block : blocks) {
    Survivals& survival = survivals.emplace_back();
    double product = 1;
    for (size_t i = 0; i < block.tokens.size(); ++i) survival.push_back(product *= block.acceptance[i]);
  }
  if (choice.explore) return admit(survivals, pricing.max_drafts);
  const bool drawn = std::any_of(blocks.begin(), blocks.end(),
                                 [](const DraftBlock& block) { return !block.proposals.empty(); });
  if (drawn) return admit(survivals, choice.plan.budget, choice.plan.least_survival);
  return admit(survivals, best_budget(survivals, pricing));
}

void Speculator::learn(Sequence& sequence, const DraftOutcome& outcome) {
  const DraftBlock& block = sequence.drafts();
  // A probe that paid for itself: look again at once.
  if (std::exchange(probe_cost_s_, 0) < outcome.accepted * bare_cost_s_) probe_credit_s_ = 1e9;
  for (int32_t i = 0; i < outcome.judged; ++i) {
    const bool accepted = i < outcome.accepted;
    const auto place = static_cast<size_t>(i);
    acceptance_.observe(i, block.confidence[place], accepted);
    sequence.survival().observe(block.acceptance[place], accepted);
  }
}

}  // namespace spark::engine
