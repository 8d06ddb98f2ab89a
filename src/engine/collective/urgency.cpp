#include "engine/collective/urgency.h"

#include <dirent.h>
#include <fcntl.h>
#include <link.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace spark::engine {
namespace {

constexpr int kNice = -10;
constexpr size_t kStackBytes = size_t{64} << 10;  // far more than a watcher's calls need

bool hurry(pid_t thread) {
  const sched_param least{.sched_priority = 1};
  if (::sched_setscheduler(thread, SCHED_RR | SCHED_RESET_ON_FORK, &least) == 0) return true;
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(thread), kNice);
  return false;
}

// The objects that the watcher's calls lead through.
bool is_on_the_way(const char* object) {
  if (*object == '\0') return true;  // the program itself
  for (const char* name : {"/libc.so", "/libstdc++.so", "vdso"}) {
    if (std::strstr(object, name) != nullptr) return true;
  }
  return false;
}

int keep_code(dl_phdr_info* info, size_t, void*) {
  if (!is_on_the_way(info->dlpi_name)) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
    ::mlock(reinterpret_cast<const void*>(info->dlpi_addr + part.p_vaddr), part.p_memsz);
  }
  return 0;
}

// Touched, so that the pages are there even where they may not be locked.
[[gnu::noinline]] void keep_stack() {
  volatile uint8_t stack[kStackBytes];
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  for (size_t at = 0; at < kStackBytes; at += page) stack[at] = 0;
  ::mlock(const_cast<const uint8_t*>(stack), kStackBytes);
}

}  // namespace

bool hurry_this_thread() {
  return hurry(::gettid());
}

bool hurry_all_threads() {
  DIR* threads = ::opendir("/proc/self/task");
  if (threads == nullptr) return false;
  bool all = true;
  while (const dirent* entry = ::readdir(threads)) {
    if (const pid_t thread = std::atoi(entry->d_name); thread > 0) all = hurry(thread) && all;
  }
  ::closedir(threads);
  return all;
}

double waited_for_processor_s() {
  const int file = ::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  char text[96] = {};
  const bool known = file >= 0 && ::read(file, text, sizeof text - 1) > 0;
  if (file >= 0) ::close(file);
  unsigned long long ran_ns = 0, waited_ns = 0;
  if (!known || std::sscanf(text, "%llu %llu", &ran_ns, &waited_ns) != 2) return 0;
  return static_cast<double>(waited_ns) * 1e-9;
}

void keep_resident() {
  ::dl_iterate_phdr(keep_code, nullptr);
  keep_stack();
}

}  // namespace spark::engine
