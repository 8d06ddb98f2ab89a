// Feeds arbitrary bytes to the safetensors header reader and to the index reader. Whatever they accept must
// be consistent: tensors inside the file, gapless, and the same again after writing and reading.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/error.h"
#include "engine/checkpoint/checkpoint_index.h"
#include "engine/checkpoint/safetensors_header.h"
#include "engine/checkpoint/safetensors_writer.h"

namespace spark::engine {
namespace {

void check_header(const SafetensorsHeader& header, uint64_t file_bytes) {
  uint64_t cursor = header.data_offset;
  std::vector<TensorSpec> specs;
  for (const StoredTensor& entry : header.tensors) {
    SPARK_CHECK(entry.offset == cursor);
    SPARK_CHECK(entry.bytes == tensor_bytes(entry));
    SPARK_CHECK(entry.offset + entry.bytes <= file_bytes);
    cursor += entry.bytes;
    specs.push_back(entry);
  }
  SPARK_CHECK(cursor == file_bytes);

  const std::map<std::string, std::string> metadata(header.metadata.begin(), header.metadata.end());
  SPARK_CHECK(metadata.size() == header.metadata.size());
  const std::string json = format_safetensors_header(specs, metadata);
  const SafetensorsHeader again = parse_safetensors_header(json, file_bytes - header.data_offset, "again");
  SPARK_CHECK(again.tensors.size() == specs.size());
  // Empty tensors share an offset, so their order may differ.
  for (const StoredTensor& entry : again.tensors) {
    SPARK_CHECK(std::find(specs.begin(), specs.end(), static_cast<const TensorSpec&>(entry)) != specs.end());
  }
}

void read_header(std::span<const uint8_t> file) {
  try {
    const uint64_t length =
        safetensors_header_bytes(file.first(std::min<size_t>(8, file.size())), file.size(), "fuzz");
    const std::string_view json(reinterpret_cast<const char*>(file.data()) + 8, length);
    check_header(parse_safetensors_header(json, file.size() - 8 - length, "fuzz"), file.size());
  } catch (const Error& error) {
    SPARK_CHECK(!error.describe().empty());
  }
}

// The JSON alone, so that the fuzzer need not guess a length; the last byte says how much data follows.
void read_json(std::span<const uint8_t> text) {
  if (text.empty()) return;
  const std::string json(text.begin(), text.end() - 1);
  try {
    const SafetensorsHeader header = parse_safetensors_header(json, text.back(), "fuzz");
    check_header(header, header.data_offset + text.back());
  } catch (const Error& error) {
    SPARK_CHECK(!error.describe().empty());
  }
}

void read_index(std::span<const uint8_t> text) {
  const std::string json(text.begin(), text.end());
  try {
    const CheckpointIndex index = parse_checkpoint_index(json, "fuzz");
    for (const auto& [name, shard] : index.weight_map) {
      SPARK_CHECK(!shard.empty() && shard.find('/') == std::string::npos && shard != "..");
    }
    const std::string written = format_checkpoint_index(index);
    const CheckpointIndex again = parse_checkpoint_index(written, "again");
    SPARK_CHECK(again.total_size == index.total_size && again.weight_map.size() == index.weight_map.size());
    SPARK_CHECK(format_checkpoint_index(again) == written);
  } catch (const Error& error) {
    SPARK_CHECK(!error.describe().empty());
  }
}

}  // namespace
}  // namespace spark::engine

// The first byte chooses the reader.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::span<const uint8_t> rest(data + 1, size - 1);
  if (data[0] % 3 == 0) spark::engine::read_header(rest);
  if (data[0] % 3 == 1) spark::engine::read_json(rest);
  if (data[0] % 3 == 2) spark::engine::read_index(rest);
  return 0;
}
