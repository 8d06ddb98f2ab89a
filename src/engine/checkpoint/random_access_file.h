// A regular file read at given offsets. Nothing is mapped, nothing read ahead; several threads may read at
// once.
//
//   const RandomAccessFile file("model-00047-of-00048.safetensors");
//   std::vector<uint8_t> bytes(256);
//   file.read(offset, bytes);
//
// Errors name the path: cannot be opened, is not a regular file, cannot be read, ends before the wanted
// range.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace spark::engine {

// kDirect goes past the page cache (O_DIRECT) where the file system can; places, lengths and memory must then
// be multiples of the device's blocks.
enum class FileAccess : uint8_t { kBuffered, kDirect };

class RandomAccessFile {
 public:
  explicit RandomAccessFile(const std::string& path, FileAccess access = FileAccess::kBuffered);
  RandomAccessFile(const RandomAccessFile&) = delete;
  RandomAccessFile& operator=(const RandomAccessFile&) = delete;
  ~RandomAccessFile();

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }  // when it was opened
  int descriptor() const { return fd_; }   // for asynchronous readers; owned by this object

  bool is_direct() const { return direct_; }

  // Fills `out` with the bytes from `offset` on.
  void read(uint64_t offset, std::span<uint8_t> out) const { read(offset, out, out.size()); }
  // The same, but the file may end when `needed` bytes have come.
  void read(uint64_t offset, std::span<uint8_t> out, size_t needed) const;

 private:
  std::string path_;
  int fd_;
  bool direct_ = false;
  uint64_t size_ = 0;
};

}  // namespace spark::engine
