// One safetensors file: its header now, its tensors when asked for.
//
//   const SafetensorsFile file("formats.safetensors");
//   std::span<const float> input = file.tensor("e4m3.input").as<float>();
//
// Opening reads the header only. The first tensor() maps the file; the operating system then reads the pages
// that are touched. Safe for several threads. Truncating a mapped file under a running program ends the
// program: replace files, do not overwrite them.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "common/file.h"
#include "engine/checkpoint/random_access_file.h"
#include "engine/checkpoint/row_reader.h"
#include "engine/checkpoint/safetensors_header.h"
#include "engine/checkpoint/tensor.h"

namespace spark::engine {

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_->path(); }
  uint64_t size() const { return file_->size(); }
  const SafetensorsHeader& header() const { return header_; }

  const StoredTensor* find(std::string_view name) const;  // null when absent; a linear search
  TensorView tensor(std::string_view name) const;         // throws Error when absent
  TensorView view(const StoredTensor& entry) const;       // of an entry of this file's header
  RowReader rows(const StoredTensor& entry) const;        // does not map the file

 private:
  std::shared_ptr<const RandomAccessFile> file_;
  SafetensorsHeader header_;
  mutable std::once_flag map_once_;
  mutable std::optional<MappedFile> map_;
};

}  // namespace spark::engine
