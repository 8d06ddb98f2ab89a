#include "ops/site/patch_series.h"

#include <filesystem>
#include <set>

#include "common/hash.h"

namespace spark::ops {
namespace {

constexpr std::string_view kNul("\0", 1);

}  // namespace

std::vector<SeriesEntry> parse_series(std::string_view text) {
  std::vector<SeriesEntry> entries;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string_view::npos || line[first] == '#') continue;
    line = line.substr(first, line.find_last_not_of(" \t\r") - first + 1);
    entries.push_back({std::string(line), line.starts_with("TODO-")});
  }
  return entries;
}

SeriesState inspect_series(const Repository& repository, const LockedSource& source) {
  SeriesState state;
  Sha256 material;  // fed file by file: patches of a source may be large, all of them together larger
  for (const std::string& commit : source.applied_upstream_commits) {
    material.feed(commit);
    material.feed(kNul);
  }
  if (source.patch_series) {
    state.series_exists = repository.exists(*source.patch_series);
    if (!state.series_exists) return state;
    const std::string series = repository.read(*source.patch_series);
    material.feed(series);
    const auto folder = std::filesystem::path(*source.patch_series).parent_path();
    std::set<std::string> seen;
    for (const SeriesEntry& entry : parse_series(series)) {
      if (entry.placeholder) continue;
      const std::string path = (folder / entry.name).lexically_normal().string();
      if (!seen.insert(path).second) {
        state.repeated.push_back(path);
        continue;
      }
      if (!repository.exists(path)) {
        state.missing.push_back(path);
        continue;
      }
      material.feed(entry.name);
      material.feed(kNul);
      material.feed(repository.read(path));
    }
  }
  if (state.missing.empty() && state.repeated.empty()) state.fingerprint = material.hex();
  return state;
}

}  // namespace spark::ops
