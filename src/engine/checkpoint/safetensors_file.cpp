#include "engine/checkpoint/safetensors_file.h"

#include "common/error.h"
#include "engine/checkpoint/fault_list.h"

namespace spark::engine {

SafetensorsFile::SafetensorsFile(const std::string& path)
    : file_(std::make_shared<const RandomAccessFile>(path)), header_(read_safetensors_header(*file_)) {}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  for (const StoredTensor& entry : header_.tensors) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

TensorView SafetensorsFile::tensor(std::string_view name) const {
  const StoredTensor* entry = find(name);
  if (entry == nullptr) throw Error("has no tensor " + quote_name(std::string(name)), path());
  return view(*entry);
}

TensorView SafetensorsFile::view(const StoredTensor& entry) const {
  std::call_once(map_once_, [&] {
    MappedFile map(path());
    if (map.bytes().size() != file_->size()) {
      throw Error("has changed its size from " + std::to_string(file_->size()) + " to " +
                      std::to_string(map.bytes().size()) + " bytes since it was opened",
                  path(), "start again once nothing writes to it");
    }
    map_.emplace(std::move(map));
  });
  return {entry.name, entry.dtype, entry.shape, map_->bytes().subspan(entry.offset, entry.bytes), path()};
}

RowReader SafetensorsFile::rows(const StoredTensor& entry) const {
  return {file_, entry};
}

}  // namespace spark::engine
