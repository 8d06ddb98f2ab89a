#include "common/new_folder.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "common/error.h"
#include "common/file.h"

namespace spark {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kFolderMode = 0755;

}  // namespace

NewFolder::NewFolder(std::string place) : place_(std::move(place)) {
  while (place_.size() > 1 && place_.back() == '/') place_.pop_back();
  std::error_code ignored;
  const fs::file_status status = fs::symlink_status(place_, ignored);
  if (fs::exists(status) && !(fs::is_directory(status) && fs::is_empty(place_, ignored))) {
    throw Error(fs::is_directory(status) ? "is not empty" : "exists already", place_,
                "nothing was written: name a folder that does not exist yet");
  }
  std::error_code failed;
  const fs::path parent = fs::path(place_).parent_path();
  if (!parent.empty()) fs::create_directories(parent, failed);
  if (failed) throw Error("cannot be created: " + failed.message(), parent.string());
  path_ = place_ + ".XXXXXX";
  if (::mkdtemp(path_.data()) == nullptr) {
    path_.clear();
    throw Error(std::string("cannot be created: ") + std::strerror(errno), place_);
  }
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

void NewFolder::write(const std::string& relative, std::string_view content, unsigned mode) {
  const fs::path target = fs::path(path_) / relative;
  std::error_code failed;
  fs::create_directories(target.parent_path(), failed);
  if (failed) throw Error("cannot be created: " + failed.message(), place_);
  try {
    write_file_atomic(target.string(), content, mode);
  } catch (const Error& error) {
    throw Error(error.what(), place_ + "/" + relative, "nothing was left there");
  }
}

void NewFolder::commit() {
  // An empty folder of that name gives way.
  if (::chmod(path_.c_str(), kFolderMode) != 0 || ::rename(path_.c_str(), place_.c_str()) != 0) {
    throw Error(std::string("cannot be put in place: ") + std::strerror(errno), place_);
  }
  path_.clear();
}

}  // namespace spark
