#include "ops/site/patch_series.h"

#include <filesystem>

#include "common/hash.h"

namespace spark::ops {

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
  std::string material;
  for (const std::string& commit : source.applied_upstream_commits) (material += commit) += '\0';
  if (source.patch_series) {
    state.series_exists = repository.exists(*source.patch_series);
    if (!state.series_exists) return state;
    const std::string series = repository.read(*source.patch_series);
    material += series;
    const auto folder = std::filesystem::path(*source.patch_series).parent_path();
    for (const SeriesEntry& entry : parse_series(series)) {
      if (entry.placeholder) continue;
      const std::string path = (folder / entry.name).lexically_normal().string();
      if (!repository.exists(path)) {
        state.missing.push_back(path);
        continue;
      }
      ((material += entry.name) += '\0') += repository.read(path);
    }
  }
  if (state.missing.empty()) state.fingerprint = sha256_hex(material);
  return state;
}

}  // namespace spark::ops
