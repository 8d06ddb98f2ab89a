// Diagnostics on stderr, one line each, for people or for machines:
//
//   log_info("loaded", {{"tensors", 915}, {"seconds", 1.25}});
//
//   2026-11-29T12:00:00.123Z info  loaded tensors=915 seconds=1.25
//   {"time":"2026-11-29T12:00:00.123Z","level":"info","message":"loaded","tensors":915,"seconds":1.25}
#pragma once

#include <concepts>
#include <initializer_list>
#include <string>
#include <utility>
#include <variant>

namespace spark {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

// A named value beside the message: text, a number or a truth value. Names are words, without blanks.
struct LogField {
  template <std::convertible_to<std::string> T>
  LogField(std::string field, T&& text) : name(std::move(field)), value(std::string(std::forward<T>(text))) {}
  LogField(std::string field, bool truth) : name(std::move(field)), value(truth) {}
  template <std::integral T>
  LogField(std::string field, T number) : name(std::move(field)), value(static_cast<long long>(number)) {}
  LogField(std::string field, double number) : name(std::move(field)), value(number) {}

  std::string name;
  std::variant<std::string, bool, long long, double> value;
};
using LogFields = std::initializer_list<LogField>;

// Set once by an app's main(); the defaults are kInfo and kText.
void set_log_level(LogLevel level);
void set_log_format(LogFormat format);
LogFormat log_format();
void log(LogLevel level, const std::string& message, LogFields fields = {});

// The line that log() writes, with its end: for tests.
std::string log_line(LogFormat format, LogLevel level, const std::string& stamp, const std::string& message,
                     LogFields fields);

inline void log_info(const std::string& message, LogFields fields = {}) {
  log(LogLevel::kInfo, message, fields);
}
inline void log_warning(const std::string& message, LogFields fields = {}) {
  log(LogLevel::kWarning, message, fields);
}
inline void log_error(const std::string& message, LogFields fields = {}) {
  log(LogLevel::kError, message, fields);
}
inline void log_debug(const std::string& message, LogFields fields = {}) {
  log(LogLevel::kDebug, message, fields);
}

}  // namespace spark
