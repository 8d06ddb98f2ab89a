#include "ops/guard/kernel.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "ops/guard/files.h"

namespace spark::ops {
namespace {

// So that a flood of messages cannot keep the guard from its next sample.
constexpr int kMaxRecordsPerSample = 256;

}  // namespace

MemorySource::MemorySource(const GuardOptions& options)
    : meminfo_(open_path(joined(options.root.view(), "/proc/meminfo").c_str(), O_RDONLY)),
      pressure_(open_path(joined(options.root.view(), "/proc/pressure/memory").c_str(), O_RDONLY)),
      vmstat_(open_path(joined(options.root.view(), "/proc/vmstat").c_str(), O_RDONLY)) {
  if (!options.watch_kernel_log) return;
  kernel_log_ = open_path(joined(options.root.view(), "/dev/kmsg").c_str(), O_RDONLY | O_NONBLOCK);
  if (kernel_log_.open()) ::lseek(kernel_log_.get(), 0, SEEK_END);
}

void MemorySource::sample(GuardStatus& status) {
  status.available_kib = meminfo_.open() ? meminfo_kib(read_again(meminfo_.get()), "MemAvailable") : -1;
  if (status.available_kib >= 0 && (status.minimum_kib < 0 || status.available_kib < status.minimum_kib))
    status.minimum_kib = status.available_kib;
  if (pressure_.open()) {
    status.pressure.clear();
    status.pressure.add(full_pressure(read_again(pressure_.get())));
  }
  read_swap(status);
  read_kernel_log(status);
}

void MemorySource::read_swap(GuardStatus& status) {
  const int64_t pages = vmstat_.open() ? number_of_line(read_again(vmstat_.get()), "pswpin") : -1;
  if (swapped_before_ < 0) swapped_before_ = pages;
  status.swapped_in_pages = pages < 0 ? -1 : pages - swapped_before_;
}

void MemorySource::read_kernel_log(GuardStatus& status) {
  static char record[8192];
  for (int i = 0; kernel_log_.open() && i < kMaxRecordsPerSample; ++i) {
    const ssize_t count = ::read(kernel_log_.get(), record, sizeof record);
    if (count < 0 && errno == EPIPE) continue;  // records were overwritten; the next read goes on behind them
    if (count <= 0) return;
    if (is_driver_out_of_memory({record, static_cast<size_t>(count)})) ++status.driver_errors;
  }
}

SelfProtection protect_self() {
  SelfProtection protection;
  protection.locked = ::mlockall(MCL_CURRENT | MCL_FUTURE) == 0;
  const Descriptor score = open_path("/proc/self/oom_score_adj", O_RDWR);
  if (!score.open()) return protection;
  if (!read_again(score.get()).starts_with("-1000")) {
    [[maybe_unused]] const auto written = ::pwrite(score.get(), "-1000", 5, 0);
  }
  protection.oom_protected = read_again(score.get()).starts_with("-1000");
  return protection;
}

bool is_driver_out_of_memory(std::string_view record) {
  // "NVRM: ... NV_ERR_NO_MEMORY ...", seen 172 times in the incident that this guard is for.
  return record.find("NV_ERR_NO_MEMORY") != std::string_view::npos ||
         (record.find("NVRM") != std::string_view::npos &&
          record.find("out of memory") != std::string_view::npos);
}

std::string_view full_pressure(std::string_view text) {
  constexpr std::string_view kStart = "full avg10=";
  const size_t at = text.find(kStart);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = text.substr(at + kStart.size());
  return rest.substr(0, rest.find(' '));
}

Supervisor::Supervisor() {
  const char* name = std::getenv("NOTIFY_SOCKET");
  if (name == nullptr || (name[0] != '/' && name[0] != '@')) return;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string_view path(name);
  if (path.size() >= sizeof address.sun_path) return;
  path.copy(address.sun_path, path.size());
  if (name[0] == '@') address.sun_path[0] = '\0';
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  Descriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), size) == 0) socket_ = std::move(socket);
}

void Supervisor::tell(std::string_view message) {
  if (socket_.open()) ::send(socket_.get(), message.data(), message.size(), MSG_NOSIGNAL);
}

}  // namespace spark::ops
