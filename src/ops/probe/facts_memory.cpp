// Memory and disks.
#include "ops/probe/text_reader.h"
#include "ops/site/text_forms.h"

namespace spark::ops::probe {
namespace {

void read_meminfo(const FactReader& reader) {
  const std::string* content = reader.dump().file("/proc/meminfo");
  if (content == nullptr) return;
  MemoryFacts& memory = reader.facts().memory;
  const std::pair<const char*, std::optional<int64_t>*> wanted[] = {
      {"MemTotal", &memory.total_kib},         {"MemFree", &memory.free_kib},
      {"MemAvailable", &memory.available_kib}, {"SwapTotal", &memory.swap_total_kib},
      {"SwapFree", &memory.swap_free_kib},     {"CmaTotal", &memory.cma_total_kib},
      {"CmaFree", &memory.cma_free_kib}};
  for (const std::string& line : lines_of(*content)) {
    const size_t colon = line.find(':');
    const auto words = words_of(colon == std::string::npos ? std::string() : line.substr(colon + 1));
    for (const auto& [name, target] : wanted) {
      if (line.substr(0, std::min(colon, line.size())) != name) continue;
      *target = words.empty() ? std::nullopt : whole_number(words[0]);
      if (!*target || **target < 0) {
        *target = std::nullopt;
        reader.fault("/proc/meminfo", std::string(name) + " is \"" + line.substr(0, 60) + "\"");
      }
    }
  }
}

// "Node 0, zone   Normal   4381   2711 ..." : free blocks of 1, 2, 4, ... pages
void read_buddies(const FactReader& reader) {
  const std::string* content = reader.dump().file("/proc/buddyinfo");
  if (content == nullptr) return;
  std::vector<int64_t>& blocks = reader.facts().memory.free_blocks;
  for (const std::string& line : lines_of(*content)) {
    const auto words = words_of(line);
    for (size_t i = 4; i < words.size(); ++i) {
      const auto count = whole_number(words[i]);
      if (!count || *count < 0 || i - 4 > 30) {
        reader.fault("/proc/buddyinfo", "has the line \"" + line.substr(0, 60) + "\"");
        break;
      }
      if (blocks.size() <= i - 4) blocks.resize(i - 3);
      blocks[i - 4] += *count;
    }
  }
}

void read_disks(const FactReader& reader) {
  // df fails when one of the paths does not exist, and still prints the others.
  const CommandAnswer* answer = reader.dump().command("disks");
  if (answer == nullptr) return;
  if (answer->output.empty()) {
    reader.facts().failures["disks"] = answer->failure();
    return;
  }
  const auto lines = lines_of(answer->output);
  for (size_t i = 1; i < lines.size(); ++i) {
    const auto words = words_of(lines[i]);
    const auto size = words.size() < 6 ? std::nullopt : whole_number(words[1]);
    const auto free = words.size() < 6 ? std::nullopt : whole_number(words[3]);
    if (!size || !free) {
      reader.fault("disks", "has the line \"" + lines[i].substr(0, 60) + "\"");
      continue;
    }
    const DiskFacts disk{words[0], words[5], *size, *free};
    bool known = false;
    for (const DiskFacts& other : reader.facts().disks) known |= other.mounted_on == disk.mounted_on;
    if (!known) reader.facts().disks.push_back(disk);
    if (disk.mounted_on == "/dev/shm") reader.facts().memory.shm_kib = disk.size_kib;
  }
}

}  // namespace

void read_memory(const FactReader& reader) {
  MemoryFacts& memory = reader.facts().memory;
  read_meminfo(reader);
  read_buddies(reader);
  read_disks(reader);
  memory.huge_pages_reserved = reader.number("/proc/sys/vm/nr_hugepages");
  if (const CommandAnswer* events = reader.answer("memory-events")) {
    for (const std::string& line : lines_of(events->output)) {
      const auto words = words_of(line);
      const auto count = words.size() == 2 ? whole_number(words[1]) : std::nullopt;
      if (count) memory.cgroup_events[words[0]] = *count;
    }
  }
}

}  // namespace spark::ops::probe
