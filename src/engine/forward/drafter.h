// The drafter: proposes the next tokens of a sequence from what the backbone computed about its last one.
//
//   model.run(rows);                          // also keeps the drafter's windows up to date
//   Drafts drafts = drafter.draft({{.sequence = 0, .anchor = 42, .position = 17}});
//   drafts.tokens[0 .. block_size() - 1];     // greedy drafts for positions 19, 20, ...
//
// Context side: for every row of a backbone step, the mean streams entering three late layers are projected
// to one vector, and each drafter block stores a window record made from it. Rows of rejected drafts are
// overwritten when their positions run again; a draft never looks beyond the position it is given.
// Draft side: one block of rows [anchor, noise, noise, ..] runs through the drafter's blocks; all rows see
// the same window and all of the block. Each draft then depends on the ones before it through the Markov
// bias, so drafts drawn at random are drawn place by place, here on the host: the distribution that a draft
// was drawn from goes out with it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/cache/cache_pool.h"
#include "engine/forward/block_runner.h"
#include "engine/forward/step_arrays.h"
#include "engine/forward/step_model.h"
#include "engine/forward/weights.h"

namespace spark::engine {

class Drafter {
 public:
  // Weights, caches and frequencies are the backbone's; all must outlive this.
  Drafter(Backend& backend, Communicator& communicator, const model::ModelConfig& config,
          const model::RankSplit& split, WeightLoader& loader, const DecoderWeights& decoder,
          CachePool& cache, const float* plain_freq, const CacheLimits& limits, CollectiveDtype sums);

  int32_t block_size() const { return static_cast<int32_t>(config_.dspark_block_size); }

  // StepModel::draft.
  Drafts draft(std::span<const DraftRequest> requests);

  // Part of the backbone's step: window records of all rows from their auxiliary inputs, BF16
  // [rows][inputs][D].
  void follow(const StepRows& step, const uint16_t* aux, const float* cos_sin);

  // FP32 [rows][vocab] of the last draft(), before and after the Markov bias: for tests.
  std::vector<float> base_logits() const;
  std::vector<float> logits() const;
  void keep_logits();
  // BF16 [rows][D] of the last follow(), in the backend's memory: for tests.
  const uint16_t* main_x() const { return main_x_; }

 private:
  void forward(const StepRows& step);
  void head(const StepRows& step, int32_t place, float* logits);
  void allocate_logits();
  void draw(const StepRows& step, std::span<const DraftRequest> requests);
  std::vector<float> download(const float* from) const;

  Backend& backend_;
  Communicator& communicator_;
  const model::ModelConfig& config_;
  const model::RankSplit& split_;
  const DecoderWeights& decoder_;
  CachePool& cache_;
  DrafterWeights weights_;
  StepArrays arrays_;
  BlockRunner runner_;
  const float* plain_freq_ = nullptr;
  float* angles_ = nullptr;        // [draft rows][pairs][2]
  uint8_t* records_ = nullptr;     // [draft rows] window records
  uint16_t* collapsed_ = nullptr;  // BF16 [draft rows][D]
  float* base_part_ = nullptr;     // FP32 [draft rows][vocab of the rank]
  float* base_ = nullptr;          // FP32 [draft rows][vocab]; the same with one rank
  float* logits_ = nullptr;        // the same; null until drafts are drawn or a test asks
  bool logits_wanted_ = false;     // by a test
  int32_t* tokens_ = nullptr;
  float* confidence_ = nullptr;
  QuantisedRows aux_q_;            // context side, [step rows]
  uint16_t* main_part_ = nullptr;  // BF16 [step rows][outputs of the rank]
  uint16_t* main_raw_ = nullptr;   // BF16 [step rows][D]; the same with one rank
  uint16_t* main_x_ = nullptr;
  QuantisedRows main_q_;
  uint16_t* kv_raw_ = nullptr;  // BF16 [step rows][width]
  uint16_t* kv_ = nullptr;
  std::vector<TokenDistribution> proposals_;
  std::vector<float> row_logits_;
  std::vector<int32_t> host_tokens_;
  std::vector<float> host_confidence_;
};

}  // namespace spark::engine
