#include "engine/checkpoint/safetensors_header.h"

#include <algorithm>
#include <unordered_set>

#include "common/error.h"
#include "common/units.h"
#include "engine/checkpoint/fault_list.h"
#include "engine/checkpoint/safetensors_json.h"

namespace spark::engine {
namespace {

constexpr const char* kTruncated = "the file is truncated: copy or download it again";
constexpr const char* kDamaged = "the file is damaged or not a safetensors file: copy or download it again";

// Bytes that dtype and shape need; false when they do not fit 63 bits.
bool needed_bytes(const StoredTensor& entry, uint64_t& bytes) {
  auto product = static_cast<int64_t>(model::dtype_bytes(entry.dtype));
  for (const int64_t extent : entry.shape) {
    if (__builtin_mul_overflow(product, extent, &product)) return false;
  }
  bytes = static_cast<uint64_t>(product);
  return true;
}

void check_sizes(const std::vector<RawTensor>& raw, std::vector<StoredTensor>& tensors, FaultList& faults) {
  for (const RawTensor& tensor : raw) {
    StoredTensor entry;
    entry.name = tensor.name;
    entry.shape = tensor.shape;
    entry.offset = tensor.begin;
    entry.bytes = tensor.end - tensor.begin;
    const auto dtype = model::dtype_from_name(tensor.dtype);
    uint64_t needed = 0;
    if (!dtype) {
      faults.add(quote_name(tensor.name), "has the unknown dtype " + quote_name(tensor.dtype.substr(0, 32)));
      continue;
    }
    entry.dtype = *dtype;
    if (tensor.begin > tensor.end) {
      faults.add(quote_name(tensor.name), "ends at byte " + std::to_string(tensor.end) +
                                              ", before its begin " + std::to_string(tensor.begin));
    } else if (!needed_bytes(entry, needed)) {
      faults.add(quote_name(tensor.name),
                 "has the shape " + format_shape(entry.shape) + ", which overflows 63 bits");
    } else if (needed != entry.bytes) {
      faults.add(quote_name(tensor.name), tensor.dtype + " " + format_shape(entry.shape) + " needs " +
                                              std::to_string(needed) + " bytes, its offsets span " +
                                              std::to_string(entry.bytes));
    } else {
      tensors.push_back(std::move(entry));
    }
  }
}

void check_names(const std::vector<RawTensor>& raw, FaultList& faults) {
  std::unordered_set<std::string_view> names;
  names.reserve(raw.size());
  for (const RawTensor& tensor : raw) {
    if (!names.insert(tensor.name).second) faults.add(quote_name(tensor.name), "stands twice in the header");
  }
}

// The sorted tensors must follow each other without hole or overlap.
void check_order(const std::vector<StoredTensor>& tensors, FaultList& faults) {
  uint64_t covered = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const StoredTensor& entry = tensors[i];
    if (entry.offset < covered) {
      faults.add(quote_name(entry.name), "overlaps " + quote_name(tensors[i - 1].name));
    } else if (entry.offset > covered) {
      faults.add(quote_name(entry.name), "begins " + std::to_string(entry.offset - covered) +
                                             " bytes after the tensor before it ends");
    }
    covered = std::max(covered, entry.offset + entry.bytes);
  }
}

void check_length(const std::vector<StoredTensor>& tensors, uint64_t data_bytes, const std::string& path) {
  const uint64_t described = tensors.empty() ? 0 : tensors.back().offset + tensors.back().bytes;
  if (described == data_bytes) return;
  throw Error("holds " + format_count(data_bytes) + " bytes of tensors; its header describes " +
                  format_count(described),
              path, data_bytes < described ? kTruncated : kDamaged);
}

}  // namespace

uint64_t safetensors_header_bytes(std::span<const uint8_t> first, uint64_t file_bytes,
                                  const std::string& path) {
  if (file_bytes < 8) {
    throw Error("is " + std::to_string(file_bytes) + " bytes long, too short for a safetensors file", path,
                kTruncated);
  }
  SPARK_CHECK(first.size() == 8);
  uint64_t length = 0;
  for (size_t i = 8; i-- > 0;) length = length << 8 | first[i];
  if (length > SafetensorsLimits::kHeaderBytes) {
    throw Error("claims a header of " + format_count(length) + " bytes; the limit is " +
                    format_count(SafetensorsLimits::kHeaderBytes),
                path, kDamaged);
  }
  if (length > file_bytes - 8) {
    throw Error("claims a header of " + format_count(length) + " bytes, but only " +
                    format_count(file_bytes - 8) + " follow",
                path, kTruncated);
  }
  return length;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes,
                                           const std::string& path) {
  SafetensorsHeader header;
  std::vector<RawTensor> raw;
  parse_safetensors_json(json, path, raw, header.metadata);

  FaultList faults;
  header.tensors.reserve(raw.size());
  check_names(raw, faults);
  check_sizes(raw, header.tensors, faults);
  std::sort(header.tensors.begin(), header.tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return a.offset != b.offset ? a.offset < b.offset
           : a.bytes != b.bytes ? a.bytes < b.bytes
                                : a.name < b.name;
  });
  // Tensors left out above would show as holes.
  if (faults.empty()) check_order(header.tensors, faults);
  faults.throw_if_any(path, kDamaged);
  check_length(header.tensors, data_bytes, path);

  header.data_offset = 8 + json.size();
  for (StoredTensor& entry : header.tensors) entry.offset += header.data_offset;
  return header;
}

SafetensorsHeader read_safetensors_header(const RandomAccessFile& file) {
  uint8_t first[8] = {};
  const auto available = std::span(first).first(std::min<uint64_t>(8, file.size()));
  file.read(0, available);
  const uint64_t length = safetensors_header_bytes(available, file.size(), file.path());
  std::string json(length, '\0');
  file.read(8, {reinterpret_cast<uint8_t*>(json.data()), json.size()});
  return parse_safetensors_header(json, file.size() - 8 - length, file.path());
}

}  // namespace spark::engine
