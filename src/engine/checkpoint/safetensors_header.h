// The header of a safetensors file: 8 bytes little-endian length N, N bytes of JSON, then the tensors' bytes.
//
//   const SafetensorsHeader header = read_safetensors_header(file);
//   for (const StoredTensor& entry : header.tensors) ...   // in the order of their bytes
//
// Stricter than needed to read: the JSON is an object that starts at its first byte, has no repeated key and
// nothing after it but white space; each tensor has exactly dtype, shape, data_offsets; the dtype is known;
// offsets ascend, lie inside the file and span exactly the bytes that dtype and shape need; the tensors cover
// the data without hole, overlap or rest.
// `__metadata__` maps strings to strings. Anything else is one Error that names the file and up to 50 faulty
// tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/checkpoint/random_access_file.h"
#include "engine/checkpoint/tensor.h"

namespace spark::engine {

struct SafetensorsLimits {
  static constexpr uint64_t kHeaderBytes = 100'000'000;  // as in the reference implementation
  static constexpr size_t kNameBytes = 1024;
  static constexpr size_t kRank = 16;
};

struct StoredTensor : TensorSpec {
  uint64_t offset = 0;  // of the first byte, from the start of the file
  uint64_t bytes = 0;
};

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;                          // ascending offset
  std::vector<std::pair<std::string, std::string>> metadata;  // file order
  uint64_t data_offset = 0;                                   // where the tensors' bytes begin
};

// Reads the length and the JSON, nothing else of the file.
SafetensorsHeader read_safetensors_header(const RandomAccessFile& file);

// The two steps of it. `first` is the file's first min(8, file_bytes) bytes; `path` only names the file in
// errors.
uint64_t safetensors_header_bytes(std::span<const uint8_t> first, uint64_t file_bytes,
                                  const std::string& path);
SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes,
                                           const std::string& path);

}  // namespace spark::engine
