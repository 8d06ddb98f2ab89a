// A checkpoint: a folder with model.safetensors.index.json and its shards, or with model.safetensors alone.
//
//   const Checkpoint checkpoint("/models/DeepSeek-V4.1-Flash");
//   checkpoint.check_against(expected);  // every missing, extra and wrong tensor in one Error
//   std::span<const uint16_t> w = checkpoint.tensor("embed.weight").as<uint16_t>();
//   const RowReader table = checkpoint.rows("layers.1.engram.embed.weight");
//
// The room's vocabulary:
//
//   tensor.h             TensorSpec, TensorView, tensor_bytes, format_shape
//   checkpoint.h         Checkpoint: what a loader uses
//   row_reader.h         RowReader: rows of a table too large to map, one by one
//   table_reader.h       TableReader: such rows for steps: cached, in parallel, ahead of time
//   safetensors_file.h   SafetensorsFile: one file
//   safetensors_writer.h SafetensorsWriter: writes one file piece by piece
//   checkpoint_index.h   CheckpointIndex, shard_name: the list of shards, read and written
//
// Opening reads the index and the headers, never a tensor, and reports in one Error every shard that is
// missing or damaged and every tensor on which index and shards disagree. A shard is mapped by the first
// tensor() from it. Safe for several threads; views and readers need the checkpoint to live as
// SafetensorsFile says.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/checkpoint/checkpoint_index.h"
#include "engine/checkpoint/fault_list.h"
#include "engine/checkpoint/row_reader.h"
#include "engine/checkpoint/safetensors_file.h"
#include "engine/checkpoint/tensor.h"

namespace spark::engine {

class Checkpoint {
 public:
  explicit Checkpoint(const std::string& folder);

  const std::string& folder() const { return folder_; }
  size_t size() const { return by_name_.size(); }
  uint64_t total_bytes() const { return total_bytes_; }  // of all tensors
  const std::vector<std::unique_ptr<const SafetensorsFile>>& shards() const { return shards_; }

  // Names, dtypes and shapes without touching the data.
  const StoredTensor* find(std::string_view name) const;  // null when absent
  bool contains(std::string_view name) const { return find(name) != nullptr; }

  // These throw Error when there is no such tensor.
  TensorView tensor(std::string_view name) const;
  RowReader rows(std::string_view name) const;

  // Where it lies, for readers with their own I/O.
  std::pair<const SafetensorsFile*, const StoredTensor*> stored(std::string_view name) const;

  // Throws one Error that counts all tensors that are missing, unexpected, of another shape or of another
  // dtype, and lists up to FaultList::kShown of them, of every kind.
  void check_against(std::span<const TensorSpec> expected) const;

 private:
  struct Place {
    const SafetensorsFile* shard;
    const StoredTensor* entry;
  };

  void open_sharded(const std::string& index_path);
  void open_single(const std::string& path);
  void open_shards(const CheckpointIndex& index);
  void add(const SafetensorsFile& shard, FaultList& faults);
  void check_listing(const CheckpointIndex& index, FaultList& faults) const;
  std::string file_name(const SafetensorsFile& shard) const;
  const Place& place(std::string_view name) const;

  std::string folder_;
  std::vector<std::unique_ptr<const SafetensorsFile>> shards_;  // by file name
  std::unordered_map<std::string_view, Place> by_name_;         // keys live in the shards' headers
  uint64_t total_bytes_ = 0;
};

}  // namespace spark::engine
