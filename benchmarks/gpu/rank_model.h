// A tensor-parallel rank at full size, with synthetic weights: 40 layers, the drafter's block, the heads. The
// order of operations is the engine's (BlockRunner); the all-reduces are absent.
//
//   RankModel model(*cuda, 4, 64);
//   model.prepare(6, make_steps(*cuda, 6, kContext));
//   time_graph(*cuda, [&] { model.run_backbone(), model.run_drafter(); }, 1, 12);
#pragma once

#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "caches.h"
#include "engine/forward/block_runner.h"
#include "engine/forward/scratch.h"
#include "engine/forward/weights.h"
#include "harness.h"
#include "model/layer_plan.h"
#include "skipping_backend.h"

namespace spark::bench_gpu {

using engine::AngleBuffers;
using engine::BlockRunner;
using engine::BlockScratch;
using engine::BlockWeights;
using engine::EngramScratch;
using engine::IndexScratch;
using engine::LayerWeights;
using engine::MhcWeights;
using engine::QuantisedRows;
using engine::SoloCommunicator;
using engine::StepRows;
using engine::Weight;
using engine::WeightFormat;

constexpr int kContext = 32768;  // of every sequence

class RankModel {
 public:
  RankModel(CudaBackend& cuda, int ranks, int most_rows);

  int ranks() const { return static_cast<int>(split_.ranks); }
  // Steps have these rows from now on; of the drafter, five a stream, or as many as there are rows. The head
  // takes the first `head_rows` of them.
  void prepare(int rows, const Steps& steps, int head_rows = std::numeric_limits<int>::max());
  void run_backbone();
  void run_drafter();
  // Kinds of operations that are left out from now on.
  void skip(std::initializer_list<std::string> kinds) { backend_.skip(kinds); }

  // Weights, caches and keys that the step must read. Routed experts: those the router chose in the last run
  // cannot be known here, so independent uniform routing is assumed, as in the specification's floors.
  int64_t step_bytes(int rows) const;
  // Different ones, of the last layer that ran.
  int distinct_experts(int rows) const;

 private:
  static constexpr int kRing = 8;

  Weight fp8(int64_t out, int64_t in) { return cuda_.synthetic_weight(WeightFormat::kFp8, out, in, ++seed_); }
  Weight bf16(int64_t out, int64_t in) {
    return cuda_.synthetic_weight(WeightFormat::kBf16, out, in, ++seed_);
  }
  const uint16_t* vector(int64_t n) { return random_bf16(cuda_, n, 1, ++seed_); }
  MhcWeights make_mhc();
  BlockWeights make_block(int experts, int top_k);
  void make_compressor(LayerWeights& layer);
  void fill_index_queries(int64_t rows);
  double bytes_of(const Weight& w) const {
    return w.empty() ? 0 : static_cast<double>(cuda_.weight_bytes(w));
  }
  double block_bytes(const BlockWeights& b) const;

  const Caches& caches_of(int64_t source) const {
    return caches_[source == 2 ? 0 : source == 8 ? 1 : source == 14 ? 2 : 3];
  }
  void head(const uint16_t* x, int rows);
  void run_layer(const StepRows& step, const LayerWeights& layer);
  void inject(const StepRows& step, const LayerWeights& layer);
  void compress(const StepRows& step, const LayerWeights& layer);
  void select(const StepRows& step, const LayerWeights& layer);
  void follow(const StepRows& step);

  CudaBackend& cuda_;
  SkippingBackend backend_;
  SoloCommunicator communicator_;
  const model::ModelConfig config_;
  const model::LayerPlan plan_;
  const model::RankSplit split_;
  BlockScratch scratch_;
  IndexScratch index_;
  EngramScratch engram_;
  BlockRunner runner_;
  uint64_t seed_ = 1000;
  std::vector<LayerWeights> layers_;
  std::vector<BlockWeights> drafter_;
  std::vector<Weight> drafter_kv_;
  Weight head_, embed_, markov_embed_, markov_head_, confidence_, main_proj_;
  const uint16_t* norm_ = nullptr;
  AngleBuffers angles_;
  const float* freq_ = nullptr;
  uint16_t* aux_ = nullptr;
  QuantisedRows aux_q_;
  uint16_t* main_x_ = nullptr;
  QuantisedRows main_q_;
  uint8_t* records_ = nullptr;
  uint16_t* collapsed_ = nullptr;
  float* logits_ = nullptr;
  int32_t* drafts_ = nullptr;
  float* confidences_ = nullptr;
  int32_t* best_ = nullptr;
  QuantisedRows engram_codes_;
  float* pair_state_ = nullptr;
  Steps steps_;
  Caches caches_[4];
  StepRows draft_step_;
  const int32_t* window_end_ = nullptr;
  int draft_rows_ = 0;
  int head_rows_ = std::numeric_limits<int>::max();
};

}  // namespace spark::bench_gpu
