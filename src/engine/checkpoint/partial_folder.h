// A checkpoint folder in the making: written beside its place as NAME.partial and put there when complete, so
// that nobody ever sees half a checkpoint under its name.
//
//   PartialFolder folder("/models/tiny", false);     // throws Error: is a file, not empty, being written,
//   ... write_files_into(folder.path()); folder.put_in_place();
//
// Without put_in_place() the destructor removes what was written. What a killed run left behind is removed by
// the next one for the same place; a lock keeps two runs at the same time apart. Internal to this room.
#pragma once

#include <filesystem>

namespace spark::engine {

class PartialFolder {
 public:
  // `replace` allows a place that holds a checkpoint already. A folder that holds anything else is never
  // replaced.
  PartialFolder(const std::filesystem::path& place, bool replace);
  ~PartialFolder();
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void put_in_place();

 private:
  void check_place(bool replace) const;
  void take_over();

  std::filesystem::path place_;
  std::filesystem::path path_;
  int lock_ = -1;  // the folder itself, locked
};

}  // namespace spark::engine
