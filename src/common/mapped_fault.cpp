#include "common/mapped_fault.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>

namespace spark {
namespace {

// Read by a signal handler: no locks, no heap. `begin` is written last and cleared first.
struct Mapping {
  std::atomic<uintptr_t> begin = 0;
  std::atomic<uintptr_t> end = 0;
  std::array<char, 240> path = {};  // its end, where it is longer
};

std::array<Mapping, kNotedMappings> mappings;
std::mutex writers;
volatile sig_atomic_t code = 1;

void say(const char* text) {
  size_t left = std::strlen(text);
  while (left > 0) {
    const ssize_t count = ::write(STDERR_FILENO, text, left);
    if (count <= 0) return;
    text += count;
    left -= static_cast<size_t>(count);
  }
}

// The handler is taken away before it runs: what it does not know happens again and ends the process.
void on_bus_error(int, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Mapping& mapping : mappings) {
    const uintptr_t begin = mapping.begin.load(std::memory_order_acquire);
    if (begin == 0 || address < begin || address >= mapping.end.load(std::memory_order_relaxed)) continue;
    say("error: ");
    say(mapping.path.data());
    say(": bytes of it are gone: the file was cut short while it was in use, or its disk fails; restore it "
        "(replace files by renaming, do not write into them) and start again\n");
    ::_exit(code);
  }
  if (info->si_code <= 0) ::raise(SIGBUS);  // somebody sent it: it would not come again
}

}  // namespace

void explain_lost_pages(int exit_code) {
  code = exit_code;
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = static_cast<int>(SA_SIGINFO | SA_RESETHAND);
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

void note_mapping(const void* data, size_t size, std::string_view path) {
  const std::lock_guard lock(writers);
  const auto free =
      std::find_if(mappings.begin(), mappings.end(), [](const Mapping& m) { return m.begin == 0; });
  if (free == mappings.end()) return;
  const std::string_view shown = path.substr(path.size() - std::min(path.size(), free->path.size() - 1));
  shown.copy(free->path.data(), shown.size());
  free->path[shown.size()] = '\0';
  const auto begin = reinterpret_cast<uintptr_t>(data);
  free->end.store(begin + size, std::memory_order_relaxed);
  free->begin.store(begin, std::memory_order_release);
}

void forget_mapping(const void* data) {
  const std::lock_guard lock(writers);
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const auto found =
      std::find_if(mappings.begin(), mappings.end(), [&](const Mapping& m) { return m.begin == begin; });
  if (found != mappings.end()) found->begin.store(0, std::memory_order_release);
}

}  // namespace spark
