// The JSON of a safetensors header, read in one pass into plain structs: the real checkpoint has 96,085
// tensors, and a tree of JSON values would cost most of the time to open it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spark::engine {

// A tensor as written; nothing is checked but the JSON types, name length and rank.
struct RawTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // relative to the first byte after the header
  uint64_t end = 0;
};

// Throws Error on the first fault of syntax or structure. Repeated tensor names are left to the caller.
void parse_safetensors_json(std::string_view json, const std::string& path, std::vector<RawTensor>& tensors,
                            std::vector<std::pair<std::string, std::string>>& metadata);

}  // namespace spark::engine
