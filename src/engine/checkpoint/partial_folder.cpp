#include "engine/checkpoint/partial_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "common/error.h"
#include "engine/checkpoint/checkpoint_index.h"

namespace spark::engine {
namespace {

namespace fs = std::filesystem;

constexpr const char* kParent = "check that its parent folder exists and can be written";

// Without the six characters that a file has behind its name while it is written.
std::string settled_name(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot != std::string::npos && name.size() - dot == 7 ? name.substr(0, dot) : name;
}

// "model-00001-of-00004.safetensors"
bool is_shard(const std::string& name) {
  constexpr std::string_view kForm = "model-#####-of-#####.safetensors";
  return std::equal(name.begin(), name.end(), kForm.begin(), kForm.end(),
                    [](char c, char form) { return form == '#' ? c >= '0' && c <= '9' : c == form; });
}

bool is_known(const std::string& name) {
  static constexpr const char* kNames[] = {"config.json",    "generation_config.json",
                                           "tokenizer.json", "tokenizer_config.json",
                                           "encoding.py",    kCheckpointIndexName};
  return is_shard(name) || std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

std::optional<fs::path> foreign_entry(const fs::path& folder, bool in_the_making);

bool is_ours(const fs::directory_entry& entry, bool in_the_making) {
  const std::string name = entry.path().filename().string();
  if (entry.is_symlink()) return false;
  if (entry.is_directory()) {
    return (name == "inference" || name == "encoding") && !foreign_entry(entry.path(), in_the_making);
  }
  return is_known(name) || (in_the_making && is_known(settled_name(name)));
}

// The first entry of a folder that no writer of checkpoints here makes.
std::optional<fs::path> foreign_entry(const fs::path& folder, bool in_the_making) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (!is_ours(entry, in_the_making)) return entry.path();
  }
  return std::nullopt;
}

void refuse_foreign(const fs::path& folder, bool in_the_making, const char* hint) {
  const auto foreign = foreign_entry(folder, in_the_making);
  if (!foreign) return;
  throw Error("holds " + foreign->lexically_relative(folder).string() +
                  ", which is not part of a synthetic checkpoint",
              folder.string(), hint);
}

[[noreturn]] void fail(const fs::path& path, const std::string& doing, int error, const char* hint = "") {
  throw Error(doing + ": " + std::strerror(error), path.string(), hint);
}

}  // namespace

PartialFolder::PartialFolder(const fs::path& place, bool replace) {
  if (place.empty()) throw Error("is empty", "the folder's name", "name the folder to make");
  place_ = fs::absolute(place).lexically_normal();
  if (place_.filename().empty()) place_ = place_.parent_path();  // a trailing slash
  if (place_.filename().empty()) throw Error("cannot be replaced", place_.string(), "choose another folder");
  check_place(replace);
  path_ = place_.string() + ".partial";
  std::error_code ignored;
  fs::create_directories(place_.parent_path(), ignored);
  if (::mkdir(path_.c_str(), 0777) != 0 && errno != EEXIST) fail(path_, "cannot be made", errno, kParent);
  lock_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (lock_ < 0) fail(path_, "cannot be opened", errno, kParent);
  try {
    take_over();
  } catch (...) {
    ::close(lock_);
    throw;
  }
}

void PartialFolder::check_place(bool replace) const {
  std::error_code error;
  if (!fs::exists(place_, error)) return;
  if (!fs::is_directory(place_, error)) throw Error("is a file", place_.string(), "choose another folder");
  if (fs::is_empty(place_, error) && !error) return;
  if (error) throw Error("cannot be read: " + error.message(), place_.string());
  if (!replace) {
    throw Error("is not empty", place_.string(), "choose another folder, or replace this one with --force");
  }
  refuse_foreign(place_, false, "choose another folder, or empty this one yourself");
}

// Locks the folder and removes what a killed run left in it.
void PartialFolder::take_over() {
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) fail(path_, "cannot be locked", errno);
    throw Error("is being written by another run", path_.string(), "wait for it, or choose another folder");
  }
  struct stat opened {
  }, named{};
  const bool is_same = ::fstat(lock_, &opened) == 0 && ::lstat(path_.c_str(), &named) == 0 &&
                       opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
  if (!is_same) throw Error("was moved by another run just now", path_.string(), "try again");
  if (opened.st_uid != ::geteuid())
    throw Error("belongs to another user", path_.string(), "choose another folder");
  refuse_foreign(path_, true, "move it away: this name is for the folder in the making");
  for (const fs::directory_entry& entry : fs::directory_iterator(path_)) fs::remove_all(entry.path());
}

PartialFolder::~PartialFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

// An old checkpoint and the new one change places in one step where the file system can do that; then the old
// one, now under the name of the partial one, is removed.
void PartialFolder::put_in_place() {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(place_, error))) {
    if (::rename(path_.c_str(), place_.c_str()) != 0) fail(place_, "cannot be put in place", errno);
    path_.clear();
    return;
  }
  if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, place_.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) fail(place_, "cannot be put in place", errno);
  fs::remove_all(place_, error);
  if (error) throw Error("cannot be removed: " + error.message(), place_.string());
  if (::rename(path_.c_str(), place_.c_str()) != 0) fail(place_, "cannot be put in place", errno);
  path_.clear();
}

}  // namespace spark::engine
