#include "ops/recovery/inside_root.h"

#include <deque>
#include <filesystem>

#include "common/error.h"

namespace spark::ops {
namespace {

namespace fs = std::filesystem;

constexpr int kMostLinks = 40;  // as many as Linux follows

}  // namespace

std::string path_inside(const std::string& root, const std::string& path) {
  const fs::path names = fs::path(path).relative_path();
  std::deque<fs::path> ahead(names.begin(), names.end());
  fs::path inside;
  for (int links = 0; !ahead.empty();) {
    const fs::path name = ahead.front();
    ahead.pop_front();
    if (name.empty() || name == ".") continue;
    if (name == "..") {
      inside = inside.parent_path();
      continue;
    }
    const fs::path here = fs::path(root) / inside / name;
    std::error_code absent;
    if (ahead.empty() || !fs::is_symlink(fs::symlink_status(here, absent))) {
      inside /= name;
      continue;
    }
    if (++links > kMostLinks) throw Error("has links that lead in a circle", root + path);
    const fs::path target = fs::read_symlink(here);
    if (target.is_absolute()) inside.clear();
    const fs::path further = target.relative_path();
    ahead.insert(ahead.begin(), further.begin(), further.end());
  }
  return (fs::path(root) / inside).string();
}

}  // namespace spark::ops
