// A program may be started without its standard descriptors (`2>&-`, some supervisors). The next file that it
// opens then gets that number, and log lines go into a checkpoint or a report.
#pragma once

#include <fcntl.h>

namespace spark {

// First of all in main(). What should have been standard output takes no bytes, so that who prints there
// still notices that nobody reads it.
inline void fill_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) != -1) continue;
    // The lowest free number is given: those below are open by now.
    [[maybe_unused]] const int opened = ::open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace spark
