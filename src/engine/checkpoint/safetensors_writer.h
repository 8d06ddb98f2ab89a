// Writes a safetensors file piece by piece: only the header is held in memory.
//
//   SafetensorsWriter writer(path, specs);
//   for (const TensorSpec& spec : writer.order()) writer.append(bytes_of(spec));  // in any number of pieces
//   writer.finish();
//
// Deterministic: tensors lie by falling element size, then by name, so that each is aligned to its elements;
// the header is padded with spaces to 8 bytes and metadata is sorted. The file appears under its name only
// when finish() has written and synced all of it; a writer that is destroyed earlier leaves nothing. Errors:
// a repeated, overlong or reserved name, a negative extent, a size beyond 63 bits, a full disk. More or fewer
// bytes than the specs need is a programming error.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/tensor.h"

namespace spark::engine {

class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, std::vector<TensorSpec> specs,
                    const std::map<std::string, std::string>& metadata = {});
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  ~SafetensorsWriter();

  // The order in which append() takes the tensors' bytes.
  const std::vector<TensorSpec>& order() const { return order_; }
  uint64_t data_bytes() const { return data_bytes_; }  // of all tensors together

  void append(std::span<const uint8_t> bytes);
  void finish();

 private:
  void write(std::span<const uint8_t> bytes);
  void discard() noexcept;

  std::string path_;
  std::string temporary_;
  std::vector<TensorSpec> order_;
  uint64_t data_bytes_ = 0;
  uint64_t appended_ = 0;
  int fd_ = -1;
};

// The header's JSON for tensors in this order, padded so that 8 + its size is a multiple of 8.
std::string format_safetensors_header(std::span<const TensorSpec> order,
                                      const std::map<std::string, std::string>& metadata);

}  // namespace spark::engine
