#include "ops/site/repository.h"

#include <filesystem>

#include "common/error.h"
#include "common/file.h"

namespace spark::ops {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFileBytes = size_t{64} << 20;

bool leaves(const fs::path& relative) {
  return relative.empty() || relative.is_absolute() || *relative.begin() == "..";
}

}  // namespace

Repository::Repository(std::string root) : root_(std::move(root)) {
  std::error_code error;
  const fs::path resolved = fs::canonical(root_, error);
  if (error == std::errc::permission_denied)
    throw Error("cannot be opened: permission denied", root_,
                "become the user whose directory it is (a lab's is root's)");
  if (error || !fs::is_directory(resolved, error))
    throw Error("is not a directory", root_, "name the repository's root");
  root_ = resolved.string();
}

std::string Repository::confine(const std::string& path) const {
  static constexpr const char* kRule = "name it relative to the repository's root, inside the repository";
  if (path.empty()) throw Error("an empty path names no file", path, kRule);
  if (path.find('\0') != std::string::npos) throw Error("the path holds a NUL byte", "", kRule);
  const fs::path given(path);
  if (given.is_absolute()) throw Error("is an absolute path", path, kRule);
  const fs::path normal = given.lexically_normal();
  if (leaves(normal)) throw Error("leaves the repository", path, kRule);
  if (overlay_.count(normal.string()) != 0) return normal.string();
  std::error_code error;
  const fs::path resolved = fs::weakly_canonical(fs::path(root_) / normal, error);
  if (error) throw Error("cannot be resolved: " + error.message(), path);
  if (leaves(resolved.lexically_relative(root_))) {
    throw Error("leaves the repository through a symbolic link", path, kRule);
  }
  return normal.string();
}

bool Repository::exists(const std::string& path) const {
  std::string inside;
  try {
    inside = confine(path);
  } catch (const Error&) {
    return false;
  }
  const auto found = overlay_.find(inside);
  if (found != overlay_.end()) return found->second.has_value();
  std::error_code error;
  return fs::is_regular_file(absolute(inside), error);
}

std::string Repository::read(const std::string& path) const {
  const std::string inside = confine(path);
  const auto found = overlay_.find(inside);
  if (found != overlay_.end()) {
    if (!found->second) throw Error("does not exist", inside);
    return *found->second;
  }
  std::error_code error;
  if (!fs::exists(absolute(inside), error)) {
    const bool elsewhere = !fs::is_directory(absolute("config"), error);
    throw Error(
        "does not exist", inside,
        elsewhere ? "this folder has no config/: run spark in the repository, or name that with --repository"
                  : "");
  }
  if (!fs::is_regular_file(absolute(inside), error)) throw Error("is not a regular file", inside);
  return read_file(absolute(inside), kMaxFileBytes);
}

}  // namespace spark::ops
