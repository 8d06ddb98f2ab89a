#include "common/unfinished_write.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "common/file.h"

namespace spark {
namespace {

// Whether `path` still names the file that is open: another may have removed or renamed it meanwhile.
bool still_names(const std::string& path, int fd) {
  struct stat open {
  }, named{};
  return ::fstat(fd, &open) == 0 && ::lstat(path.c_str(), &named) == 0 && open.st_dev == named.st_dev &&
         open.st_ino == named.st_ino;
}

bool lock(int fd, int operation) {
  while (::flock(fd, operation) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

}  // namespace

UnfinishedWrite::UnfinishedWrite(const std::string& target) {
  for (;;) {
    path_ = target;
    path_ += kUnfinishedSuffix;
    descriptor_ = Descriptor(::mkostemp(path_.data(), O_CLOEXEC));
    if (!descriptor_.open()) return;
    // Where there are no locks nobody can take one to remove the file either.
    if (!lock(descriptor_.get(), LOCK_EX)) return;
    // Before it was locked another writer may have taken it for one that was left behind.
    if (still_names(path_, descriptor_.get())) return;
  }
}

void remove_unfinished_writes_of(const std::string& target) {
  namespace fs = std::filesystem;
  const fs::path path(target);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const std::string name = path.filename().string();
  std::error_code fault;
  for (fs::directory_iterator at(folder, fault), end; !fault && at != end; at.increment(fault)) {
    if (!is_unfinished_write(at->path().filename().string(), name)) continue;
    const std::string found = at->path().string();
    const Descriptor fd(::open(found.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    struct stat info {};
    if (!fd.open() || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    // The name is checked under the lock: its writer may have put it in place and unlocked it just now.
    if (lock(fd.get(), LOCK_EX | LOCK_NB) && still_names(found, fd.get())) ::unlink(found.c_str());
  }
}

}  // namespace spark
