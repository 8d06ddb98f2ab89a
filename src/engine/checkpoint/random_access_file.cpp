#include "engine/checkpoint/random_access_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "common/error.h"
#include "common/read_advice.h"

namespace spark::engine {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& doing, int error) {
  throw Error(doing + ": " + std::strerror(error), path, read_advice(error));
}

// Some file systems take the flag and refuse the reads.
bool reads_directly(int fd) {
  constexpr size_t kBlock = 4096;
  const std::unique_ptr<void, decltype(&std::free)> block(std::aligned_alloc(kBlock, kBlock), &std::free);
  return block != nullptr && ::pread(fd, block.get(), kBlock, 0) >= 0;
}

}  // namespace

// O_NONBLOCK keeps a named pipe from blocking the open; regular files ignore it.
RandomAccessFile::RandomAccessFile(const std::string& path, FileAccess access) : path_(path), fd_(-1) {
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  if (access == FileAccess::kDirect) {
    fd_ = ::open(path.c_str(), kFlags | O_DIRECT);
    direct_ = fd_ >= 0 && reads_directly(fd_);
    if (fd_ >= 0 && !direct_) {
      ::close(fd_);
      fd_ = -1;
    }
  }
  if (fd_ < 0) fd_ = ::open(path.c_str(), kFlags);
  if (fd_ < 0) fail(path_, "cannot be opened", errno);
  struct stat info {};
  const int error = ::fstat(fd_, &info) != 0 ? errno : 0;
  if (error != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd_);
    if (error != 0) fail(path_, "cannot be examined", error);
    throw Error(S_ISDIR(info.st_mode) ? "is a folder, not a file" : "is not a regular file", path_);
  }
  size_ = static_cast<uint64_t>(info.st_size);
}

RandomAccessFile::~RandomAccessFile() {
  ::close(fd_);
}

void RandomAccessFile::read(uint64_t offset, std::span<uint8_t> out, size_t needed) const {
  constexpr ssize_t kSmallestBlock = 512;
  constexpr size_t kChunk = size_t{1} << 30;  // Linux moves at most 2 GiB per call
  size_t done = 0;
  while (done < needed) {
    const size_t wanted = std::min(out.size() - done, kChunk);
    const ssize_t count = ::pread(fd_, out.data() + done, wanted, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path_, "cannot be read at byte " + std::to_string(offset + done), errno);
    // A direct read that is no whole number of blocks has met the end; the next one could not begin there.
    const bool ended =
        count == 0 || (direct_ && count % kSmallestBlock != 0 && done + static_cast<size_t>(count) < needed);
    if (ended) {
      done += static_cast<size_t>(count);
      // A file that was cut short meanwhile ends before the bytes that were asked for, not at them.
      struct stat now {};
      const uint64_t end = ::fstat(fd_, &now) == 0 ? static_cast<uint64_t>(now.st_size) : offset + done;
      throw Error("ends at byte " + std::to_string(std::min(end, offset + done)) + "; bytes " +
                      std::to_string(offset) + " to " + std::to_string(offset + out.size()) + " were wanted",
                  path_, "the file is truncated: copy or download it again");
    }
    done += static_cast<size_t>(count);
  }
}

}  // namespace spark::engine
