#include "ops/remote/control_folder.h"

#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "common/error.h"
#include "ops/remote/remote.h"

namespace spark::ops {
namespace {

// "/" + 40 digits of %C + "." + 16 random letters that ssh appends while it binds + the final zero.
constexpr size_t kSocketNameBytes = 1 + 40 + 1 + 16 + 1;
constexpr size_t kMaxFolderBytes = sizeof(sockaddr_un::sun_path) - kSocketNameBytes;

}  // namespace

std::string default_control_folder() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime == '/') {
    const std::string folder = std::string(runtime) + "/spark-ssh";
    if (folder.size() <= kMaxFolderBytes && ::access(runtime, W_OK) == 0) return folder;
  }
  return "/tmp/spark-ssh-" + std::to_string(::getuid());
}

void make_control_folder(const std::string& folder) {
  if (folder.size() > kMaxFolderBytes) {
    throw Error("is too long for a socket: at most " + std::to_string(kMaxFolderBytes) + " bytes", folder,
                "use a shorter folder for shared SSH connections");
  }
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    throw Error(std::string("cannot be created: ") + std::strerror(errno), folder);
  struct stat entry = {};
  if (::lstat(folder.c_str(), &entry) != 0)
    throw Error(std::string("cannot be read: ") + std::strerror(errno), folder);
  if (!S_ISDIR(entry.st_mode) || entry.st_uid != ::getuid() || (entry.st_mode & 077) != 0) {
    throw Error("must be a folder of your own with mode 0700", folder,
                "remove it; it holds nothing but sockets of SSH connections");
  }
}

}  // namespace spark::ops
