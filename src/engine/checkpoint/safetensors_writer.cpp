#include "engine/checkpoint/safetensors_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/error.h"
#include "common/units.h"
#include "engine/checkpoint/fault_list.h"
#include "engine/checkpoint/safetensors_header.h"

namespace spark::engine {
namespace {

[[noreturn]] void fail(const std::string& path, const char* doing) {
  throw Error(std::string(doing) + ": " + std::strerror(errno), path);
}

// Unlike quote_name(), for content: invalid UTF-8 is refused, not replaced.
std::string json_string(const std::string& text) {
  try {
    return nlohmann::json(text).dump(-1, ' ', true);
  } catch (const nlohmann::json::type_error&) {
    throw Error("the name or metadata " + quote_name(text) + " is not valid UTF-8");
  }
}

void sort_for_file(std::vector<TensorSpec>& specs) {
  std::sort(specs.begin(), specs.end(), [](const TensorSpec& a, const TensorSpec& b) {
    const size_t size_a = model::dtype_bytes(a.dtype);
    const size_t size_b = model::dtype_bytes(b.dtype);
    return size_a != size_b ? size_a > size_b : a.name < b.name;
  });
}

void check_names(const std::vector<TensorSpec>& specs, const std::string& path) {
  std::vector<std::string_view> names;
  for (const TensorSpec& spec : specs) {
    if (spec.name == "__metadata__" || spec.name.size() > SafetensorsLimits::kNameBytes) {
      throw Error(quote_name(spec.name) + " cannot name a tensor", path);
    }
    if (spec.shape.size() > SafetensorsLimits::kRank)
      throw Error(quote_name(spec.name) + " has too many dimensions", path);
    names.push_back(spec.name);
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end())
    throw Error("tensor " + quote_name(std::string(*twice)) + " is to be written twice", path);
}

// The rename itself must survive a power cut.
void sync_folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  (void)::fsync(fd);
  ::close(fd);
}

}  // namespace

std::string format_safetensors_header(std::span<const TensorSpec> order,
                                      const std::map<std::string, std::string>& metadata) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (json.back() != '{') json += ',';
      json += json_string(key) + ":" + json_string(value);
    }
    json += "}";
  }
  uint64_t begin = 0;
  for (const TensorSpec& spec : order) {
    const uint64_t bytes = tensor_bytes(spec);
    if (bytes > uint64_t{1} << 62 || begin > uint64_t{1} << 62)
      throw Error("the tensors overflow 63 bits together");
    if (json.back() != '{') json += ',';
    json += json_string(spec.name) + ":{\"dtype\":\"" + std::string(model::dtype_name(spec.dtype)) +
            "\",\"shape\":[";
    for (const int64_t extent : spec.shape) {
      if (json.back() != '[') json += ',';
      json += std::to_string(extent);
    }
    json += "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(begin + bytes) + "]}";
    begin += bytes;
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  return json;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<TensorSpec> specs,
                                     const std::map<std::string, std::string>& metadata)
    : path_(path), order_(std::move(specs)) {
  check_names(order_, path_);
  sort_for_file(order_);
  const std::string json = format_safetensors_header(order_, metadata);
  if (json.size() > SafetensorsLimits::kHeaderBytes) {
    throw Error("would need a header of " + format_count(json.size()) + " bytes; the limit is " +
                    format_count(SafetensorsLimits::kHeaderBytes),
                path_, "spread the tensors over several files");
  }
  for (const TensorSpec& spec : order_) data_bytes_ += tensor_bytes(spec);

  temporary_ = path_ + ".XXXXXX";
  fd_ = ::mkostemp(temporary_.data(), O_CLOEXEC);
  if (fd_ < 0) fail(path_, "cannot be created");
  uint8_t length[8];
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<uint8_t>(json.size() >> (8 * i));
  try {
    write(length);
    write({reinterpret_cast<const uint8_t*>(json.data()), json.size()});
  } catch (...) {
    discard();
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  discard();
}

void SafetensorsWriter::discard() noexcept {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
  fd_ = -1;
}

void SafetensorsWriter::write(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd_, bytes.data(), std::min(bytes.size(), size_t{1} << 30));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path_, "cannot be written");
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

void SafetensorsWriter::append(std::span<const uint8_t> bytes) {
  SPARK_CHECK(fd_ >= 0 && bytes.size() <= data_bytes_ - appended_);
  write(bytes);
  appended_ += bytes.size();
}

void SafetensorsWriter::finish() {
  SPARK_CHECK(fd_ >= 0 && appended_ == data_bytes_);
  if (::fchmod(fd_, 0644) != 0) fail(path_, "cannot be given its mode");
  if (::fsync(fd_) != 0) fail(path_, "cannot be synced to disk");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_, "cannot be put in place");
  ::close(std::exchange(fd_, -1));
  sync_folder_of(path_);
}

}  // namespace spark::engine
