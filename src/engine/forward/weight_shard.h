// What one rank loads of a checkpoint: its part of every tensor that tensor parallelism cuts (model/split.h),
// padded with zeros, and the others whole.
//
//   WeightShards shards(checkpoint, model::tensor_catalogue(config), split, rank);
//   const WeightPart part = shards.part("layers.0.attn.wo_b.weight");
//   shards.loaded_bytes();     // what rank_bytes() of the split says, once everything is loaded
//
// Parts come from the checkpoint's map, or, with WeightReads, by large direct reads ahead of whoever asks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/tensor_stream.h"
#include "model/split.h"
#include "model/tensors.h"

namespace spark::engine {

struct WeightPart {
  model::Dtype dtype = model::Dtype::kBf16;
  std::vector<int64_t> shape;          // this rank's
  std::span<const uint8_t> bytes;      // in the checkpoint's map, in `copy` or in `memory`
  std::vector<uint8_t> copy;           // empty when the part lies in one piece in the file
  std::shared_ptr<const void> memory;  // what was read for this part alone, else null
};

// Tensors that a backend copies need not be mapped: they can be read at the disk's full speed.
struct WeightReads {
  bool is_wanted = false;
  std::function<bool(const model::TensorEntry&)> is_copied;  // empty: everything comes from the map
  uint64_t from_bytes = 0;                                   // less is not worth it
  TensorStreamOptions stream = {};
  std::function<void(int64_t loaded)> on_loaded;  // after every part, with loaded_bytes()
};

class WeightShards {
 public:
  // The checkpoint outlives this. Tensors that the catalogue does not name are not cut.
  WeightShards(const Checkpoint& checkpoint, const std::vector<model::TensorEntry>& catalogue,
               const model::RankSplit& split, int32_t rank, const WeightReads& reads = {});

  bool contains(const std::string& name) const { return checkpoint_.contains(name); }
  // Throws Error when the checkpoint has no such tensor, and when it cannot be read.
  WeightPart part(const std::string& name);

  // Of all tensors had so far, each once.
  int64_t loaded_bytes() const { return loaded_bytes_; }

  // After the last part: gives the staging memory back. What is asked for later comes from the map.
  void stop_reading() { stream_.reset(); }

 private:
  // The rank's part of a tensor seen as [outer][bytes of the axis].
  struct Cut {
    int64_t outer = 1;
    int64_t whole = 0;    // bytes of the axis in the tensor
    int64_t padded = 0;   // and in the part
    int64_t skipped = 0;  // of the tensor's, before the part's
    int64_t kept = 0;     // of the tensor's, that are the part's

    uint64_t first_byte() const { return static_cast<uint64_t>(skipped); }
    uint64_t last_byte() const { return static_cast<uint64_t>((outer - 1) * whole + skipped + kept); }
    bool is_one_piece() const { return outer == 1 && kept == padded; }
  };
  Cut cut_of(const StoredTensor& tensor) const;
  void read_directly(const std::vector<model::TensorEntry>& catalogue, const WeightReads& reads);

  const Checkpoint& checkpoint_;
  const model::RankSplit split_;
  const int32_t rank_;
  std::unordered_map<std::string, model::TensorEntry> cut_;
  std::set<std::string> loaded_;
  int64_t loaded_bytes_ = 0;
  std::set<std::string> streamed_;  // by the stream, not had yet
  std::unique_ptr<TensorStream> stream_;
  std::function<void(int64_t)> on_loaded_;
};

}  // namespace spark::engine
