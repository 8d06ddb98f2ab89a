#include "ops/recovery/host.h"

#include <fcntl.h>
#include <linux/kd.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "common/descriptor.h"
#include "common/error.h"
#include "common/file.h"
#include "common/process.h"
#include "ops/recovery/inside_root.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

// What is written beside a file until it is whole has a name that nobody else gives.
constexpr const char* kUnfinished = ".spark-unfinished";

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw Error(what + ": " + std::strerror(errno), path,
              errno == EACCES || errno == EPERM ? "run it with sudo" : "");
}

std::string joined(const std::vector<std::string>& command) {
  std::string line;
  for (const std::string& word : command) line += (line.empty() ? "" : " ") + shell_quote(word);
  return line;
}

}  // namespace

Host::Host(std::string root) : root_(std::move(root)) {
  std::error_code failed;
  if (!std::filesystem::is_directory(root_, failed)) throw Error("is no folder", root_);
}

std::string Host::place(const std::string& path) const {
  SPARK_CHECK(!path.empty() && path[0] == '/');
  return root_ == "/" ? path : path_inside(root_, path);
}

bool Host::exists(const std::string& path) const {
  struct stat info {};
  return ::lstat(place(path).c_str(), &info) == 0;
}

std::optional<HostFile> Host::file(const std::string& path) const {
  const std::string at = place(path);
  struct stat info {};
  if (::lstat(at.c_str(), &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return {};
    fail(at, "cannot be examined");
  }
  HostFile found;
  found.owner = info.st_uid, found.group = info.st_gid;
  if (S_ISLNK(info.st_mode)) {
    found.link = std::filesystem::read_symlink(at).string();
    return found;
  }
  if (!S_ISREG(info.st_mode)) throw Error("is neither a file nor a link", at, "move it away first");
  found.mode = info.st_mode & 07777U;
  found.content = read_file(at);
  return found;
}

std::vector<std::string> Host::missing_folders(const std::string& path) const {
  namespace fs = std::filesystem;
  std::vector<std::string> missing;
  for (fs::path folder = fs::path(path).parent_path(); folder != "/" && !exists(folder.string());
       folder = folder.parent_path())
    missing.insert(missing.begin(), folder.string());
  return missing;
}

void Host::write(const std::string& path, const HostFile& file) {
  for (const std::string& folder : missing_folders(path)) {
    if (::mkdir(place(folder).c_str(), 0755) != 0 && errno != EEXIST)
      fail(place(folder), "cannot be created");
    if (::chmod(place(folder).c_str(), 0755) != 0) fail(place(folder), "cannot be given its mode");
  }
  remove_unfinished(path);
  const std::string at = place(path), unfinished = at + kUnfinished;
  if (!file.link.empty()) {
    if (::symlink(file.link.c_str(), unfinished.c_str()) != 0) fail(at, "cannot be linked");
  } else {
    write_file_atomic(unfinished, file.content, file.mode);
    struct stat info {};
    if (::lstat(unfinished.c_str(), &info) == 0 && (info.st_uid != file.owner || info.st_gid != file.group) &&
        (::chown(unfinished.c_str(), file.owner, file.group) != 0 ||
         ::chmod(unfinished.c_str(), file.mode) != 0)) {
      fail(at, "cannot be given its owner");
    }
  }
  if (::rename(unfinished.c_str(), at.c_str()) != 0) fail(at, "cannot be put in place");
  const std::string folder = std::filesystem::path(at).parent_path().string();
  const Descriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.open()) ::fsync(fd.get());
}

void Host::remove_unfinished(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path unfinished = place(path) + kUnfinished;
  const std::string name = unfinished.filename().string();
  std::error_code absent;
  for (const auto& entry : fs::directory_iterator(unfinished.parent_path(), absent)) {
    const std::string other = entry.path().filename().string();
    if (other == name || is_unfinished_write(other, name)) ::unlink(entry.path().c_str());
  }
}

void Host::remove(const std::string& path) {
  if (::unlink(place(path).c_str()) != 0 && errno != ENOENT) fail(place(path), "cannot be removed");
}

void Host::remove_folder(const std::string& path) {
  ::rmdir(place(path).c_str());  // somebody else's files may be in it by now
}

void Host::run(const std::vector<std::string>& command) {
  note(joined(command));
  if (!is_this_machine()) return;
  const ProcessResult result = run_process(command, {.timeout_s = 300});
  if (result.exit_code == 0) return;
  const std::string reason = result.error.substr(0, result.error.find('\n'));
  throw Error(
      "failed with status " + std::to_string(result.exit_code) + (reason.empty() ? "" : ": " + reason),
      joined(command), "correct the cause and repeat; `spark host revert --apply` takes everything back");
}

void Host::set_text_console(const std::string& terminal) {
  note("text mode on " + terminal);
  if (!is_this_machine()) return;
  const std::string path = "/dev/" + terminal;
  const int fd = ::open(path.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (fd < 0) fail(path, "cannot be opened");
  const int result = ::ioctl(fd, KDSETMODE, KD_TEXT);
  const int cause = errno;
  ::close(fd);
  errno = cause;
  if (result != 0) fail(path, "cannot be set to text mode");
}

}  // namespace spark::ops
