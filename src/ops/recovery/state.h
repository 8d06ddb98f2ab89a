// What an apply replaced, kept on the machine until it is reverted.
#pragma once

#include <string>
#include <vector>

#include "ops/recovery/host.h"

namespace spark::ops {

struct RecoveryState {
  struct File {
    std::string path;
    bool existed = false;
    HostFile before;  // as it was, when it existed
  };
  struct UnitState {
    std::string name;
    bool enabled = false, active = false;
  };
  std::vector<File> files;                                  // in the order in which they were changed
  std::vector<std::string> folders;                         // created, outermost first
  std::vector<UnitState> units;                             // disabled
  std::vector<std::pair<std::string, std::string>> sysctl;  // name, value before

  const File* find(const std::string& path) const;
  bool empty() const { return files.empty() && folders.empty() && units.empty() && sysctl.empty(); }
};

RecoveryState load_state(const Host& host);  // empty when there is none
void save_state(Host& host, RecoveryState& state);
void drop_state(Host& host);

}  // namespace spark::ops
