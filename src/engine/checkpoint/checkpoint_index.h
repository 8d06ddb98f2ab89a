// model.safetensors.index.json: which shard holds which tensor.
//
//   {"metadata": {"total_size": 510286023000}, "weight_map": {"embed.weight":
//   "model-00001-of-00048.safetensors", ...}}
//
// Shards are plain file names beside the index: a name with a folder, "." or ".." is refused. Other keys of
// the file and of its metadata are ignored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spark::engine {

inline constexpr const char* kCheckpointIndexName = "model.safetensors.index.json";
inline constexpr const char* kCheckpointSingleName = "model.safetensors";

struct CheckpointIndex {
  std::optional<uint64_t> total_size;                           // bytes of all tensors together
  std::vector<std::pair<std::string, std::string>> weight_map;  // tensor name, shard name; in file order
};

// Throws Error on the first fault: syntax, a repeated tensor, a shard name that is no plain file name, no
// weight_map.
CheckpointIndex parse_checkpoint_index(std::string_view json, const std::string& path);

// Deterministic: tensors sorted by name.
std::string format_checkpoint_index(const CheckpointIndex& index);

// "model-00003-of-00048.safetensors", shards counted from 1.
std::string shard_name(int shard, int shards);

}  // namespace spark::engine
