// Files: whole reads, atomic writes, read-only maps. Every failure is an Error that names the path and the
// cause.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace spark {

std::string read_file(const std::string& path, size_t max_bytes = size_t{1} << 30);

// Writes a temporary file beside `path`, syncs it and renames it over: readers see the old or the new
// content, a full disk leaves the old file.
void write_file_atomic(const std::string& path, std::string_view content, unsigned mode = 0644);

// Whether `name` is such a temporary file's beside a file called `of`: what is left when the writer is
// killed.
bool is_unfinished_write(std::string_view name, std::string_view of);

// A whole file mapped read-only. Moving keeps the address.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  void release() noexcept;

  std::string path_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace spark
