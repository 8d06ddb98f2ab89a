// What one rank loads of a checkpoint: its part of every tensor that tensor parallelism cuts (model/split.h),
// padded with zeros, and the others whole.
//
//   WeightShards shards(checkpoint, model::tensor_catalogue(config), split, rank);
//   const WeightPart part = shards.part("layers.0.attn.wo_b.weight");
//   shards.loaded_bytes();     // what rank_bytes() of the split says, once everything is loaded
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "model/split.h"
#include "model/tensors.h"

namespace spark::engine {

struct WeightPart {
  model::Dtype dtype = model::Dtype::kBf16;
  std::vector<int64_t> shape;      // this rank's
  std::span<const uint8_t> bytes;  // in the checkpoint's map, or in `copy`
  std::vector<uint8_t> copy;       // empty when the part lies in one piece in the checkpoint
};

class WeightShards {
 public:
  // The checkpoint outlives this. Tensors that the catalogue does not name are not cut.
  WeightShards(const Checkpoint& checkpoint, const std::vector<model::TensorEntry>& catalogue,
               const model::RankSplit& split, int32_t rank);

  bool contains(const std::string& name) const { return checkpoint_.contains(name); }
  // Throws Error when the checkpoint has no such tensor.
  WeightPart part(const std::string& name);

  // Of all tensors had so far, each once.
  int64_t loaded_bytes() const { return loaded_bytes_; }

 private:
  const Checkpoint& checkpoint_;
  const model::RankSplit split_;
  const int32_t rank_;
  std::unordered_map<std::string, model::TensorEntry> cut_;
  std::set<std::string> loaded_;
  int64_t loaded_bytes_ = 0;
};

}  // namespace spark::engine
