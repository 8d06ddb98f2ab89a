#include "ops/lab/eater.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>

#include "common/error.h"
#include "common/file.h"
#include "common/units.h"

namespace spark::ops {
namespace {

constexpr int64_t kSlack = int64_t{8} << 20;
constexpr int64_t kSmallBite = int64_t{64} << 20;

int64_t available_now() {
  std::istringstream lines(read_file("/proc/meminfo"));
  for (std::string name, line; lines >> name && std::getline(lines, line);) {
    if (name == "MemAvailable:") return std::stoll(line) * 1024;
  }
  throw Error("has no MemAvailable", "/proc/meminfo");
}

}  // namespace

int64_t next_bite(int64_t available, int64_t wanted, bool first) {
  const int64_t excess = available - wanted;
  if (excess <= kSlack) return 0;
  return first ? excess : std::min(excess, kSmallBite);
}

void eat_memory(int64_t available_bytes) {
  for (bool first = true;; first = false) {
    const auto bytes = static_cast<size_t>(next_bite(available_now(), available_bytes, first));
    if (bytes == 0) break;
    void* block = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) throw Error("no more memory to take", "eat-memory");
    std::memset(block, 1, bytes);
    // The node's figures are renewed every 100 ms.
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
  }
  std::cout << "available: " << format_bytes(static_cast<uint64_t>(available_bytes)) << std::endl;
  while (true) ::pause();
}

}  // namespace spark::ops
