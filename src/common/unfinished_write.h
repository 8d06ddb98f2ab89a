// The temporary files of atomic writes (common/file.h). A writer that is killed leaves its own behind;
// whoever writes the same file next removes it. Every writer keeps its temporary file locked until it is in
// place, so one that nobody locks has no writer any more, and the lock goes with the process, whatever ends
// it.
//
//   UnfinishedWrite write("/etc/x");  // /etc/x.unfinished-k3Xb2a, locked; write to write.descriptor()
//   rename(write.path().c_str(), "/etc/x");
#pragma once

#include <string>
#include <string_view>

#include "common/descriptor.h"

namespace spark {

// Six letters or digits stand for the X's. The word is there because `x.conf.backup` must not pass for one.
inline constexpr std::string_view kUnfinishedSuffix = ".unfinished-XXXXXX";

class UnfinishedWrite {
 public:
  // errno says why descriptor() is not open.
  explicit UnfinishedWrite(const std::string& target);

  const Descriptor& descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  Descriptor descriptor_;
};

// Best effort: what cannot be opened, locked or removed stays.
void remove_unfinished_writes_of(const std::string& target);

}  // namespace spark
