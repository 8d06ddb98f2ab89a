#include "common/log.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>

namespace spark {
namespace {

// The level is the one process-wide setting: threading it through every call would hide what the calls do.
std::atomic<LogLevel> g_level{LogLevel::kInfo};

}  // namespace

void set_log_level(LogLevel level) {
  g_level = level;
}

void log(LogLevel level, const std::string& message) {
  if (level < g_level.load(std::memory_order_relaxed)) return;
  static constexpr const char* kNames[] = {"debug", "info ", "warn ", "error"};
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char stamp[40];
  const size_t length = std::strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(stamp + length, sizeof stamp - length, ".%03dZ", static_cast<int>(ms));
  // One write per line, so lines of several threads never mix.
  const std::string line = std::string(stamp) + " " + kNames[static_cast<int>(level)] + " " + message + "\n";
  const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  (void)written;
}

}  // namespace spark
