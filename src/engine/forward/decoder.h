// The model: weights, caches and the forward pass, written once over a Backend.
//
//   Decoder decoder(make_reference_backend(), folder, {.max_sequences = 2, .max_context = 4096});
//   decoder.open_sequence(0);
//   std::span<const float> logits = decoder.run(rows);   // see StepModel
//
// Order of work per layer (DeepSeek V4.1 Flash): Engram injection, the drafter's auxiliary mean, attention,
// experts; each sublayer reads a collapse of the four streams and is expanded back into them. Layers with a
// compressed cache pool, key and select entries between projection and attention core.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/cache/cache_pool.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/collective/communicator.h"
#include "engine/forward/block_runner.h"
#include "engine/forward/drafter.h"
#include "engine/forward/engram_lookup.h"
#include "engine/forward/observer.h"
#include "engine/forward/scratch.h"
#include "engine/forward/staged_communicator.h"
#include "engine/forward/step_arrays.h"
#include "engine/forward/step_model.h"
#include "engine/forward/weights.h"
#include "model/layer_plan.h"
#include "model/split.h"

namespace spark::engine {

// Rows of a step that take injected embeddings (an image span) instead of their token's. They are routed with
// the image bias, get no Engram injection and end every n-gram.
struct InjectedRows {
  std::span<const int32_t> row;          // [step rows] row of `embeddings`, -1 for text; empty: all text
  std::span<const uint16_t> embeddings;  // BF16 [n][hidden]
};

class Decoder final : public StepModel {
 public:
  // `token_classes` is the Engram token map. This is the part of the model that the communicator's rank
  // holds; all ranks are called alike, and only rank 0 has logits to return. Throws Error for a checkpoint
  // that does not fit its configuration or cannot be split so, and when the backend has no room. The
  // communicator outlives the decoder.
  Decoder(std::unique_ptr<Backend> backend, std::unique_ptr<Checkpoint> checkpoint,
          const model::ModelConfig& config, std::vector<int32_t> token_classes, const CacheLimits& limits,
          Communicator& communicator, const TableReaderOptions& engram = {}, const WeightReads& reads = {},
          CollectiveDtype sums = CollectiveDtype::kAuto);

  int32_t vocab_size() const override { return static_cast<int32_t>(config_.vocab_size); }
  int32_t max_sequences() const override { return limits_.max_sequences; }
  int32_t max_context() const override { return limits_.max_context; }
  int32_t max_step_rows() const override { return limits_.max_step_rows; }
  int32_t max_rollback() const override { return kMaxRollback; }
  int32_t decoder_window() const override { return decoder_window_; }
  void open_sequence(int32_t sequence) override;
  void close_sequence(int32_t sequence) override;
  int32_t start_sequence(int32_t sequence, const SequenceStart& start) override;
  bool has_room(std::span<const SequenceLength> lengths) const override;
  int32_t longest_sequence() const override { return cache_.longest_sequence(); }
  CacheOccupancy cache_occupancy() const override;
  std::span<const float> run(std::span<const StepRow> rows) override { return run(rows, {}); }

  void prefetch(std::span<const int32_t> tokens, int32_t position) override {
    engram_.prefetch(tokens, position);
  }
  int32_t prefetch_lead() const override { return engram_.lead(); }
  TableCounters table_counters() const override { return engram_.counters(); }

  std::span<const float> run(std::span<const StepRow> rows, const InjectedRows& injected);

  int32_t max_drafts() const override;
  Drafts draft(std::span<const DraftRequest> requests) override;

  // Null for a checkpoint without drafter layers. Every run() keeps the drafter's caches up to date.
  Drafter* drafter() { return drafter_.get(); }

  // Every layer for every row of a prompt from now on: decoder_window() is 0 then.
  void use_exact_prefill() { decoder_window_ = 0; }

  // With several ranks: steps of more rows have their residual streams spread over the ranks by rows, which
  // changes no bit.
  void spread_rows_above(int32_t rows) {
    spread_above_ = rows;
    runner_.spread_rows_above(observer_ == nullptr ? rows : limits_.max_step_rows);
  }

  const model::ModelConfig& config() const { return config_; }
  const model::LayerPlan& plan() const { return plan_; }
  Backend& backend() { return *backend_; }
  const CachePool& cache() const { return cache_; }
  const EngramLookup& engram() const { return engram_; }
  const model::RankSplit& split() const { return split_; }
  // How the ranks' partial sums are added up; never kAuto.
  CollectiveDtype sums() const { return sums_; }
  // Weights of this rank, padding included; model::rank_bytes() without Engram tables and vision.
  int64_t loaded_bytes() const { return loader_.loaded_bytes(); }
  // For tests and debugging; null to stop. The observer must outlive its use.
  void set_observer(Observer* observer);

 private:
  // Rows moved at a time when a step narrows to the rows that enter the decoder.
  static constexpr int32_t kKeptSlice = 64;

  void check_rows(std::span<const StepRow> rows, const InjectedRows& injected) const;
  void accept_rows(std::span<const StepRow> rows, const InjectedRows& injected);
  void agree(std::span<const StepRow> rows, const InjectedRows& injected);
  void roll_back(std::span<const StepRow> rows);
  void upload_step(std::span<const StepRow> rows, const InjectedRows& injected);
  void upload_decoder_rows(std::span<const StepRow> rows, std::vector<int32_t> kept);
  uint64_t recording_key() const;
  void forward();
  void compute_angles();
  void enter_decoder(const LayerWeights& layer);
  void keep_decoder_rows();
  void run_layer(const LayerWeights& layer);
  void inject_engram(const LayerWeights& layer);
  void attend(const LayerWeights& layer);
  void compress(const LayerWeights& layer);
  void select(const LayerWeights& layer);
  void download_logits();

  const float* angles_of(const model::LayerRole& role) const;
  int32_t entry_bound(int64_t ratio) const;
  void observe(const std::string& name, ObservedType type, int64_t cols, const void* data);

  std::unique_ptr<Backend> backend_;
  const CollectiveDtype sums_;
  StagedCommunicator communicator_;
  std::unique_ptr<Checkpoint> checkpoint_;
  const model::ModelConfig config_;
  const model::LayerPlan plan_;
  const model::RankSplit split_;
  const CacheLimits limits_;
  WeightLoader loader_;
  DecoderWeights weights_;
  CachePool cache_;
  EngramLookup engram_;
  StepArrays arrays_;
  StepArrays decoder_arrays_;  // of steps with rows that skip the decoder: those that do not
  BlockRunner runner_;
  IndexScratch index_;
  EngramScratch engram_scratch_;
  AngleBuffers angles_;
  const float* plain_freq_ = nullptr;
  const float* compressed_freq_ = nullptr;
  uint16_t* aux_ = nullptr;           // BF16 [rows][inputs][D], the drafter's inputs
  uint16_t* injected_ = nullptr;      // BF16 [rows][D]
  int32_t* logit_rows_ = nullptr;     // [rows]
  uint16_t* logit_hidden_ = nullptr;  // BF16 [slice][D]
  float* part_logits_ = nullptr;      // FP32 [slice][vocab of the rank]
  float* slice_logits_ = nullptr;     // FP32 [slice][vocab]; the same with one rank
  int32_t* kept_rows_ = nullptr;      // [rows + slice]: rows that enter the decoder; 0, 1, 2, ...
  uint16_t* kept_h_ = nullptr;        // BF16 [slice][S][D]
  uint16_t* kept_pre_ = nullptr;      // FP32 [slice][S], moved as pairs of 16 bits
  std::unique_ptr<Drafter> drafter_;
  int32_t decoder_window_ = 0;

  StepRows all_rows_;           // of the step
  StepRows decoder_rows_;       // those of them that run the decoder's layers
  StepRows step_;               // the rows of the layer being run: one of the two
  bool skips_decoder_ = false;  // some rows of this step do
  bool has_entries_ = false;    // of the layer being run, already
  bool has_injected_ = false;
  std::vector<int32_t> wanted_rows_;
  int32_t longest_ = 0;  // positions of the longest sequence of the step, rounded up
  std::vector<float> logits_;
  int32_t spread_above_ = std::numeric_limits<int32_t>::max();
  Observer* observer_ = nullptr;
  uint16_t* observed_scores_ = nullptr;  // BF16 [rows][entries]
  float* observed_gates_ = nullptr;      // FP32 [rows][S]
};

}  // namespace spark::engine
