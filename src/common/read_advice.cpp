#include "common/read_advice.h"

#include <cerrno>

namespace spark {

std::string read_advice(int error) {
  switch (error) {
    case EMFILE:
      return "raise this process's limit of open files (ulimit -n, LimitNOFILE= of a unit)";
    case ENFILE:
      return "raise the machine's limit of open files (sysctl fs.file-max)";
    case EACCES:
    case EPERM:
      return "let the user that runs this read it, and enter every folder above it";
    case EIO:
      return "see the kernel's log: the disk, or the way to it, fails";
    case ESTALE:
      return "mount the file system again: its server has lost the file";
    default:
      return {};
  }
}

}  // namespace spark
