#include "common/memory.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>

#include "common/error.h"
#include "common/file.h"

namespace spark {
namespace {

std::string text_of(const std::filesystem::path& path) {
  try {
    return read_file(path.string(), size_t{1} << 20);
  } catch (const Error&) {
    return {};
  }
}

std::optional<uint64_t> number_at(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

// The number after `key` at the beginning of a line.
std::optional<uint64_t> value_of(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (line.starts_with(key)) return number_at(line.substr(key.size()));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return std::nullopt;
}

// The control groups (version 2) of this process, innermost first.
std::optional<uint64_t> least_of_groups() {
  const std::string self = text_of("/proc/self/cgroup");
  const size_t at = self.find("0::/");
  if (at == std::string::npos) return std::nullopt;
  const std::string path = self.substr(at + 4, self.find('\n', at) - at - 4);
  const std::filesystem::path root = "/sys/fs/cgroup";
  std::optional<uint64_t> least;
  for (std::filesystem::path group = root / path;; group = group.parent_path()) {
    const auto available = group_available(text_of(group / "memory.max"), text_of(group / "memory.current"),
                                           text_of(group / "memory.stat"));
    if (available) least = std::min(least.value_or(*available), *available);
    if (group == root || !group.has_relative_path()) return least;
  }
}

}  // namespace

std::optional<uint64_t> meminfo_available(const std::string& meminfo) {
  const auto kibibytes = value_of(meminfo, "MemAvailable:");
  return kibibytes ? std::optional(*kibibytes * 1024) : std::nullopt;
}

std::optional<uint64_t> group_available(const std::string& max, const std::string& current,
                                        const std::string& stat) {
  const auto limit = number_at(max);  // "max": none
  const auto used = number_at(current);
  if (!limit || !used) return std::nullopt;
  // Pages of files that nobody uses are given back before anything fails.
  const uint64_t held = *used - std::min(*used, value_of(stat, "inactive_file ").value_or(0));
  return *limit - std::min(*limit, held);
}

std::optional<uint64_t> available_memory() {
  const auto machine = meminfo_available(text_of("/proc/meminfo"));
  const auto group = least_of_groups();
  if (!machine || !group) return machine ? machine : group;
  return std::min(*machine, *group);
}

}  // namespace spark
