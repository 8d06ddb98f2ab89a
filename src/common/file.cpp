#include "common/file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/descriptor.h"
#include "common/error.h"
#include "common/mapped_fault.h"
#include "common/read_advice.h"
#include "common/unfinished_write.h"

namespace spark {
namespace {

[[noreturn]] void fail(const std::string& path, const char* doing) {
  throw Error(std::string(doing) + ": " + std::strerror(errno), path);
}

[[noreturn]] void fail_to_open(const std::string& path) {
  const int error = errno;
  throw Error(std::string("cannot be opened: ") + std::strerror(error), path, read_advice(error));
}

[[noreturn]] void refuse_size(const std::string& path, size_t max_bytes) {
  throw Error("is larger than " + std::to_string(max_bytes) + " bytes", path);
}

size_t regular_size(int fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) fail(path, "cannot be examined");
  if (S_ISDIR(info.st_mode)) throw Error("is a folder, not a file", path);
  return static_cast<size_t>(info.st_size);
}

// Opening a pipe that nobody writes to would wait for ever, so nothing here blocks in open(); a pipe that has
// a writer gets this long for its next byte.
constexpr int kOpenFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
constexpr int kPipePatienceMs = 10'000;

void wait_for_data(int fd, const std::string& path) {
  pollfd waiting{fd, POLLIN, 0};
  if (::poll(&waiting, 1, kPipePatienceMs) == 0) {
    throw Error("gives no data for " + std::to_string(kPipePatienceMs / 1000) + " s", path);
  }
}

void sync_folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  const Descriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() >= 0) (void)::fsync(fd.get());
}

}  // namespace

std::string read_file(const std::string& path, size_t max_bytes) {
  const Descriptor fd(::open(path.c_str(), kOpenFlags));
  if (fd.get() < 0) fail_to_open(path);
  std::string content;
  const size_t size = regular_size(fd.get(), path);
  if (size > max_bytes) refuse_size(path, max_bytes);  // before memory is taken for it
  content.reserve(size);
  char buffer[1 << 16];
  for (;;) {
    const ssize_t count = ::read(fd.get(), buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {
      wait_for_data(fd.get(), path);
      continue;
    }
    if (count < 0) fail(path, "cannot be read");
    if (count == 0) return content;
    content.append(buffer, static_cast<size_t>(count));
    if (content.size() > max_bytes) refuse_size(path, max_bytes);
  }
}

void write_file_atomic(const std::string& path, std::string_view content, unsigned mode) {
  remove_unfinished_writes_of(path);  // first: a full disk may need their space
  const UnfinishedWrite unfinished(path);
  const std::string& temporary = unfinished.path();
  const Descriptor& fd = unfinished.descriptor();
  if (!fd.open()) fail(path, "cannot be created");
  try {
    while (!content.empty()) {
      const ssize_t count = ::write(fd.get(), content.data(), content.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail(path, "cannot be written");
      content.remove_prefix(static_cast<size_t>(count));
    }
    if (::fchmod(fd.get(), static_cast<mode_t>(mode)) != 0) fail(path, "cannot be given its mode");
    if (::fsync(fd.get()) != 0) fail(path, "cannot be synced to disk");
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail(path, "cannot be put in place");
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_folder_of(path);
}

bool is_unfinished_write(std::string_view name, std::string_view of) {
  if (name.size() != of.size() + kUnfinishedSuffix.size() || !name.starts_with(of)) return false;
  name.remove_prefix(of.size());
  const size_t word = kUnfinishedSuffix.find('X');
  return name.starts_with(kUnfinishedSuffix.substr(0, word)) &&
         std::all_of(name.begin() + static_cast<std::ptrdiff_t>(word), name.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0; });
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const Descriptor fd(::open(path.c_str(), kOpenFlags));
  if (fd.get() < 0) fail_to_open(path);
  size_ = regular_size(fd.get(), path);
  if (size_ == 0) return;
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) fail(path, "cannot be mapped");
  data_ = static_cast<const uint8_t*>(address);
  note_mapping(data_, size_, path);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    release();
    path_ = std::move(other.path_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

MappedFile::~MappedFile() {
  release();
}

void MappedFile::release() noexcept {
  if (data_ == nullptr) return;
  forget_mapping(data_);
  ::munmap(const_cast<uint8_t*>(data_), size_);
}

}  // namespace spark
