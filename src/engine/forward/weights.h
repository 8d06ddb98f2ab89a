// The weights of a checkpoint, placed in a backend's memory and grouped by the sublayer that uses them.
// Shapes are those of the catalogue (model/tensors.h); widths that tensor parallelism cuts are this rank's.
//
//   WeightLoader loader(backend, WeightShards(checkpoint, catalogue, split, rank));
//   const BlockWeights block = load_block(loader, "layers.3", {.experts = 384, .top_k = 6});
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "engine/forward/weight_shard.h"
#include "engine/kernels/backend.h"
#include "model/config.h"
#include "model/layer_plan.h"

namespace spark::engine {

struct MhcWeights {
  Weight fn;                     // F32 [2S + S*S, S*D]
  const float* scale = nullptr;  // [3]
  const float* base = nullptr;   // [2S + S*S]
};

struct AttentionWeights {
  const uint16_t* norm = nullptr;  // BF16 [D]
  Weight wq_a_kv;                  // FP8 [q rank + latent width, D]: two projections of one input
  const uint16_t* q_norm = nullptr;
  const uint16_t* kv_norm = nullptr;
  Weight wq_b;                  // FP8
  const float* sink = nullptr;  // [heads]
  Weight wo_a;                  // FP8, block-diagonal
  Weight wo_b;                  // FP8
};

struct ExpertLayerWeights {
  const uint16_t* norm = nullptr;  // BF16 [D]
  Weight gate;                     // BF16 [experts, D]
  const float* bias = nullptr;
  const float* image_bias = nullptr;  // null when the checkpoint has none
  ExpertBank bank;
  ExpertWeights shared;
  int32_t experts = 0;
  int32_t top_k = 0;
};

struct BlockWeights {
  MhcWeights attention_mix;
  MhcWeights expert_mix;
  AttentionWeights attention;
  ExpertLayerWeights experts;
};

// Of layers that own a compressed cache.
struct CompressorWeights {
  Weight wkv;    // BF16 [width, D]
  Weight wgate;  // the same; empty for ratio 1
  const uint16_t* norm = nullptr;
  Weight wk;  // BF16 [key width, width]
  const uint16_t* k_norm = nullptr;
};

// Of layers that select entries.
struct IndexerWeights {
  Weight wq_b;          // FP8 [index heads * key width, q rank]
  Weight weights_proj;  // BF16 [index heads, D]
};

struct EngramWeights {
  Weight wkv;                          // FP8 [(S + 1) D, columns * head width]
  const uint16_t* q_weight = nullptr;  // BF16 [S][D]
  const uint16_t* k_weight = nullptr;
};

struct LayerWeights {
  model::LayerRole role;
  BlockWeights block;
  CompressorWeights compressor = {};  // when role.owns_kv()
  IndexerWeights indexer = {};        // when role.runs_indexer()
  EngramWeights engram = {};          // when role.engram >= 0
};

struct DecoderWeights {
  Weight embed;                    // BF16 [vocab of the rank, D]
  Weight head;                     // the same
  const uint16_t* norm = nullptr;  // BF16 [D]
  std::vector<LayerWeights> layers;
};

struct DrafterWeights {
  Weight main_proj;                     // FP8 [D, inputs * D]
  const uint16_t* main_norm = nullptr;  // BF16 [D]
  std::vector<BlockWeights> blocks;
  std::vector<Weight> wkv;  // of each block, once more: the context side needs it alone
  const uint16_t* norm = nullptr;
  Weight markov_embed;     // BF16 [vocab, rank]
  Weight markov_head;      // BF16 [vocab, rank]
  Weight confidence_proj;  // BF16 [1, D + rank]
};

// Hands a rank's part of a checkpoint to a backend. Must live as long as the weights: it owns what it put
// together. Throws Error for a tensor that is missing; shapes and dtypes were checked against the catalogue
// before.
class WeightLoader {
 public:
  WeightLoader(Backend& backend, WeightShards shards) : backend_(backend), shards_(std::move(shards)) {}
  WeightLoader(const WeightLoader&) = delete;
  WeightLoader& operator=(const WeightLoader&) = delete;

  // `name` without ".weight"; the scale is found beside it.
  Weight matrix(const std::string& name);
  // An FP8 matrix whose rows are those of `first`, then those of `second`. Both have whole 32-row tiles.
  Weight joined(const std::string& first, const std::string& second);
  // A tensor by its whole name.
  Weight plain(const std::string& name);
  const float* f32(const std::string& name);
  const uint16_t* bf16(const std::string& name);
  bool contains(const std::string& name) const { return shards_.contains(name); }

  ExpertWeights expert(const std::string& prefix);
  ExpertBank bank(const std::string& prefix, int32_t experts);

  // Bytes of the tensors loaded so far, padding included, each tensor once.
  int64_t loaded_bytes() const { return shards_.loaded_bytes(); }
  // After the last weight.
  void finish() { shards_.stop_reading(); }

 private:
  // Host memory that a weight lies in and the checkpoint's map does not.
  struct HostCopy {
    std::vector<uint8_t> bytes;
    std::shared_ptr<const void> memory;
  };
  using Copies = std::vector<HostCopy>;
  // The part as it lies in host memory; what had to be copied for it goes to `copies`.
  Weight host_matrix(const std::string& name, Copies& copies);
  ExpertWeights host_expert(const std::string& prefix, Copies& copies);
  std::span<const uint8_t> keep(WeightPart part, Copies& copies);
  // Places it, then drops the copies when the backend has its own.
  Weight place(const Weight& host, Copies copies);
  const void* copy_of(const std::string& name, model::Dtype dtype);

  Backend& backend_;
  WeightShards shards_;
  std::deque<HostCopy> kept_;
};

struct ExpertShape {
  int32_t experts = 0;
  int32_t top_k = 0;
};

BlockWeights load_block(WeightLoader& loader, const std::string& prefix, const ExpertShape& shape);
DecoderWeights load_decoder_weights(WeightLoader& loader, const model::ModelConfig& config,
                                    const model::LayerPlan& plan);
DrafterWeights load_drafter_weights(WeightLoader& loader, const model::ModelConfig& config);

}  // namespace spark::engine
