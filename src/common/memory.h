// Memory of this machine, or of the container this program runs in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace spark {

// Bytes that can be allocated without swapping: the kernel's estimate (MemAvailable), less where a control
// group allows less. nullopt where neither is known.
std::optional<uint64_t> available_memory();

// The parts, for tests: of /proc/meminfo, and of a control group's memory.max, memory.current and
// memory.stat.
std::optional<uint64_t> meminfo_available(const std::string& meminfo);
std::optional<uint64_t> group_available(const std::string& max, const std::string& current,
                                        const std::string& stat);

}  // namespace spark
