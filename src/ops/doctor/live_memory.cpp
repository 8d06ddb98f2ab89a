// Live rules about memory, limits and disks.
#include <algorithm>

#include "common/units.h"
#include "ops/doctor/live_context.h"
#include "ops/site/text_forms.h"

namespace spark::ops::live {
namespace {

constexpr int64_t kKibPerGib = int64_t{1} << 20;
constexpr int64_t kSparkMemoryKib =
    115 * kKibPerGib;  // 128 GB less firmware and carve-outs show as about 119 GiB
constexpr int64_t kMemoryDifferenceKib = 2 * kKibPerGib;
constexpr int64_t kSwapInUseKib = kKibPerGib;     // "swap near zero" before a start
constexpr int64_t kDiskLowKib = 20 * kKibPerGib;  // caches of a first start
constexpr int64_t kDiskEmptyKib = 2 * kKibPerGib;
constexpr int64_t kLargeBlockBytes = 2 << 20;  // what DMA maps and large GPU mappings want contiguous
constexpr double kLargeShare = 0.25;

std::string gib(int64_t kib) {
  return format_fixed(static_cast<double>(kib) / static_cast<double>(kKibPerGib), 1) + " GiB";
}

// A small disk's space in a unit in which it is not nothing.
std::string space(int64_t kib) {
  return format_bytes(static_cast<uint64_t>(std::max<int64_t>(kib, 0)) * 1024);
}

std::string option_value(const std::vector<std::string>& words, const std::string& name) {
  for (const std::string& word : words) {
    if (word.rfind(name + "=", 0) == 0) return word.substr(name.size() + 1);
  }
  return {};
}

}  // namespace

void memory_total(LiveContext& context, const LiveNode& node) {
  const auto& total = node.facts.memory.total_kib;
  if (!total) return context.unknown(node, "the amount of memory", "files");
  if (*total < kSparkMemoryKib) {
    context.error(node.name(), "has " + gib(*total) + " of memory", "about 119 GiB",
                  "look for hugepages, a large crashkernel= or a reservation on the kernel command line");
    return;
  }
  for (const LiveNode& other : context.nodes()) {
    if (&other == &node) return;  // compared with those before it only
    const auto& theirs = other.facts.memory.total_kib;
    if (!theirs || *theirs < kSparkMemoryKib || std::abs(*theirs - *total) <= kMemoryDifferenceKib) continue;
    context.warn(node.name(), "has " + gib(*total) + " of memory, " + other.name() + " has " + gib(*theirs),
                 "equal machines", "compare kernel command line and firmware of both");
    return;
  }
}

void memory_available(LiveContext& context, const LiveNode& node) {
  const auto& available = node.facts.memory.available_kib;
  if (!available) return context.unknown(node, "MemAvailable", "files");
  const HostSpec& host = context.profile.host;
  const bool serving = context.serving(node);
  const int64_t limit = (serving ? host.memguard_gib : host.startup_memguard_gib) * kKibPerGib;
  if (*available < limit) {
    context.error(node.name(), gib(*available) + " of memory are available",
                  "above the " + std::string(serving ? "steady" : "startup") + " guard's " + gib(limit),
                  serving ? "the guard will stop the service: find out what grew"
                          : "stop what uses memory before a start");
  } else if (!serving && context.profile.host.hardware == "spark" && *available < kSparkMemoryKib * 3 / 4) {
    context.warn(node.name(), "nothing serves, but only " + gib(*available) + " of memory are available",
                 "nearly all of it", "look for other processes: ps -eo rss,args --sort=-rss | head");
  }
}

void memory_fragmentation(LiveContext& context, const LiveNode& node) {
  const auto& blocks = node.facts.memory.free_blocks;
  const auto& page_size = node.facts.kernel.page_size;
  if (blocks.empty() || !page_size || *page_size <= 0)
    return context.unknown(node, "the sizes of free memory blocks", "files");
  if (context.serving(node)) return;  // a full machine has small blocks; a start happens on an empty one
  double total = 0, large = 0;
  for (size_t order = 0; order < blocks.size(); ++order) {
    const double bytes = static_cast<double>(blocks[order]) * static_cast<double>(*page_size) *
                         static_cast<double>(int64_t{1} << order);
    total += bytes;
    if ((*page_size << order) >= kLargeBlockBytes) large += bytes;
  }
  if (total == 0 || large / total >= kLargeShare) return;
  context.warn(node.name(),
               "free memory is fragmented: " + format_fixed(100 * large / total, 0) +
                   " % of it lies in blocks of 2 MiB and more",
               "at least " + format_fixed(100 * kLargeShare, 0) + " % before a start",
               "reboot the node, or sudo sh -c 'echo 1 > /proc/sys/vm/compact_memory' while nothing serves");
}

void memory_huge_pages(LiveContext& context, const LiveNode& node) {
  const auto& pages = node.facts.memory.huge_pages_reserved;
  if (!pages) return context.unknown(node, "vm.nr_hugepages", "files");
  if (*pages == 0) return;
  context.error(node.name(), std::to_string(*pages) + " huge pages are reserved",
                "none: neither model nor host can use them",
                "sudo sysctl vm.nr_hugepages=0, and remove the setting from /etc/sysctl.d");
}

void memory_swap_use(LiveContext& context, const LiveNode& node) {
  const MemoryFacts& memory = node.facts.memory;
  if (!memory.swap_total_kib || !memory.swap_free_kib) return context.unknown(node, "swap use", "files");
  const int64_t used = *memory.swap_total_kib - *memory.swap_free_kib;
  if (used < kSwapInUseKib) return;
  context.warn(node.name(), gib(used) + " of swap are in use", "nearly none",
               "find out what was pushed out; before a start: reboot with the service stopped");
}

void memory_shm(LiveContext& context, const LiveNode& node) {
  const std::string wanted = option_value(context.profile.container.docker_run_args, "--shm-size");
  const auto bytes = docker_size(wanted);
  const bool host_ipc = option_value(context.profile.container.docker_run_args, "--ipc") == "host";
  if (!bytes || !host_ipc) return;
  const auto& size = node.facts.memory.shm_kib;
  if (!size) return context.unknown(node, "the size of /dev/shm", "disks");
  if (*size >= *bytes / 1024) return;
  context.error(node.name(), "/dev/shm has " + gib(*size),
                wanted + ": with --ipc=host the host's size counts, not --shm-size",
                "sudo mount -o remount,size=" + wanted + " /dev/shm, and the same in /etc/fstab");
}

void memory_lock_limit(LiveContext& context, const LiveNode& node) {
  const auto found = node.facts.host.limits.find("l");
  if (found == node.facts.host.limits.end())
    return context.unknown(node, "the limit of locked memory", "limits");
  if (found->second == "unlimited") return;
  context.warn(node.name(), "a login may lock " + found->second + " KiB of memory",
               "unlimited: RDMA registers memory, and tools that are started by hand need it",
               "add '* - memlock unlimited' to /etc/security/limits.d/rdma.conf");
}

void memory_events(LiveContext& context, const LiveNode& node) {
  // A process shares the cgroup of the login that started it: its events are not the service's own.
  if (!context.serving(node) || context.as_process()) return;
  const auto& events = node.facts.memory.cgroup_events;
  if (events.empty()) return context.unknown(node, "memory events of the service", "memory-events");
  const auto count = [&](const char* name) {
    const auto found = events.find(name);
    return found == events.end() ? int64_t{0} : found->second;
  };
  if (count("oom_kill") > 0 || count("oom") > 0) {
    context.error(node.name(),
                  "the service ran out of its memory limit " + std::to_string(count("oom")) + " times, " +
                      std::to_string(count("oom_kill")) + " processes were killed",
                  "no such event", "stop the service and look at its log; restart it from the profile");
  } else if (count("max") > 0) {
    context.warn(node.name(), "the service met its memory limit " + std::to_string(count("max")) + " times",
                 "no such event", "compare its memory with `spark plan`");
  }
}

void disk_space(LiveContext& context, const LiveNode& node) {
  if (node.facts.disks.empty()) return context.unknown(node, "free disk space", "disks");
  const bool spark = context.profile.host.hardware == "spark";
  for (const DiskFacts& disk : node.facts.disks) {
    if (disk.filesystem == "tmpfs" || disk.mounted_on == "/boot" || disk.mounted_on == "/boot/efi") continue;
    // Other machines may have any disk; there a share of it counts.
    const int64_t low = spark ? kDiskLowKib : disk.size_kib / 10,
                  empty = spark ? kDiskEmptyKib : disk.size_kib / 50;
    const std::string evidence = disk.mounted_on + " has " + space(disk.free_kib) + " free";
    const std::string expected = "at least " + space(low) + " for caches and logs";
    const std::string fix = "remove old images (docker image prune) and caches of other images";
    if (disk.free_kib < empty) {
      context.error(node.name(), evidence, expected, fix);
    } else if (disk.free_kib < low) {
      context.warn(node.name(), evidence, expected, fix);
    }
  }
}

}  // namespace spark::ops::live
