// Diagnostics on stderr, one line each: "2026-11-29T12:00:00.123Z info  loaded 915 tensors".
#pragma once

#include <string>

namespace spark {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Set once by an app's main(); the default is kInfo.
void set_log_level(LogLevel level);
void log(LogLevel level, const std::string& message);

inline void log_info(const std::string& message) {
  log(LogLevel::kInfo, message);
}
inline void log_warning(const std::string& message) {
  log(LogLevel::kWarning, message);
}
inline void log_error(const std::string& message) {
  log(LogLevel::kError, message);
}
inline void log_debug(const std::string& message) {
  log(LogLevel::kDebug, message);
}

}  // namespace spark
