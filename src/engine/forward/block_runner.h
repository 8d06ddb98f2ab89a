// One block of the model, in the steps that backbone layers and drafter blocks share: mHC mixes, attention
// projections, the attention core with its output projection, and the expert layer.
//
//   runner.begin_attention(step, block, cos_sin);   // x, q, kv from h and the previous mix
//   ... the window record is written; a layer may compress and select ...
//   runner.attention_output(step, block, view);     // y
//   runner.add_attention(step);                     // into h
//   runner.begin_experts(step, block);              // x, experts chosen
//   runner.expert_output(step, block);              // y
//   runner.add_experts(step);                       // into h; leaves the next layer's mix
//
// Results lie in the scratch. The mixes are delayed by one sublayer: attention collapses the streams with the
// coefficients of the previous layer's experts, the experts with those of this layer's attention.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>

#include "engine/collective/communicator.h"
#include "engine/forward/scratch.h"
#include "engine/forward/weights.h"
#include "engine/kernels/backend.h"
#include "model/config.h"
#include "model/split.h"

namespace spark::engine {

// What one block's attention looks at.
struct AttentionView {
  const float* cos_sin = nullptr;
  PagedCache window;
  WindowOrder order = WindowOrder::kOldestFirst;
  const int32_t* window_end = nullptr;  // drafter
  const uint8_t* extra = nullptr;       // drafter: the block's own records
  PagedCache main = {};                 // base null for window layers
  const int32_t* selected = nullptr;
};

class BlockRunner {
 public:
  BlockRunner(Backend& backend, Communicator& communicator, const model::ModelConfig& config,
              const model::RankSplit& split, const BlockScratch& scratch)
      : backend_(backend), communicator_(communicator), config_(config), split_(split), scratch_(scratch) {}

  const BlockScratch& scratch() const { return scratch_; }

  // Steps with more rows than this have their streams spread over the ranks: each rank mixes, collapses and
  // expands its own rows only, and rows are joined where a sublayer reads them all. The same bits come out.
  void spread_rows_above(int32_t rows) { spread_above_ = rows; }
  bool spreads(const StepRows& step) const { return communicator_.ranks() > 1 && step.rows > spread_above_; }
  // The rows of the step whose streams this rank holds: all, or its own.
  RowRange held_rows(const StepRows& step) const;
  StepRows held(const StepRows& step) const;
  // Gives every rank all rows of arrays whose own rows it holds.
  void join_rows(const StepRows& step, std::initializer_list<SpreadRows> arrays);
  // Streams and mix that pass from one block to the next, on every rank.
  void join_streams(const StepRows& step);

  void embed(const StepRows& step, const Weight& table, const uint16_t* overrides,
             const int32_t* override_rows);
  // Only the input of the attention sublayer, scratch().x: what a layer's entries are made from.
  void attention_input(const StepRows& step, const BlockWeights& block);
  // `reads_input`: scratch().x is read by others, so all its rows must be there.
  void begin_attention(const StepRows& step, const BlockWeights& block, const float* cos_sin,
                       bool reads_input);
  // Sublayer output in scratch().y, before it is added to the streams.
  void attention_output(const StepRows& step, const BlockWeights& block, const AttentionView& view);
  void add_attention(const StepRows& step);
  void begin_experts(const StepRows& step, const BlockWeights& block);
  void expert_output(const StepRows& step, const BlockWeights& block);
  void add_experts(const StepRows& step);
  // The streams collapsed by the last block's mix and normalised; the collapsed row itself when u is set.
  void final_hidden(const StepRows& step, const uint16_t* norm, uint16_t* u, uint16_t* x);

  float norm_eps() const { return static_cast<float>(config_.rms_norm_eps); }

 private:
  void sum(const StepRows& step, uint16_t* x, int64_t cols);
  ExpertsArgs expert_args(const StepRows& step, const BlockWeights& block, RowRange range) const;
  void mix(const StepRows& step, const MhcWeights& weights, const MixBuffers& out);
  void collapse(const StepRows& step, const float* pre, const uint16_t* norm);
  void expand(const StepRows& step, const MixBuffers& mix);

  Backend& backend_;
  Communicator& communicator_;
  const model::ModelConfig& config_;
  const model::RankSplit& split_;
  BlockScratch scratch_;
  int32_t spread_above_ = std::numeric_limits<int32_t>::max();
};

}  // namespace spark::engine
