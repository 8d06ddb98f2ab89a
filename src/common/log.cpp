#include "common/log.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "common/printable.h"

namespace spark {
namespace {

// The two process-wide settings: threading them through every call would hide what the calls do.
std::atomic<LogLevel> g_level{LogLevel::kInfo};
std::atomic<LogFormat> g_format{LogFormat::kText};

std::string time_stamp() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char stamp[40];
  const size_t length = std::strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(stamp + length, sizeof stamp - length, ".%03dZ", static_cast<int>(ms));
  return stamp;
}

nlohmann::ordered_json json_of(const LogField& field) {
  return std::visit([](const auto& value) { return nlohmann::ordered_json(value); }, field.value);
}

// A text that would not read as one word is quoted, as in JSON.
std::string text_of(const LogField& field) {
  const auto* text = std::get_if<std::string>(&field.value);
  const bool is_word =
      text != nullptr && !text->empty() && text->find_first_of(" \t\r\n\"=\\") == std::string::npos;
  if (is_word) return one_line(*text);
  return one_line(json_of(field).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace

void set_log_level(LogLevel level) {
  g_level = level;
}

void set_log_format(LogFormat format) {
  g_format = format;
}

LogFormat log_format() {
  return g_format.load(std::memory_order_relaxed);
}

std::string log_line(LogFormat format, LogLevel level, const std::string& stamp, const std::string& message,
                     LogFields fields) {
  static constexpr const char* kNames[] = {"debug", "info", "warn", "error"};
  const std::string name = kNames[static_cast<int>(level)];
  if (format == LogFormat::kJson) {
    nlohmann::ordered_json line = {{"time", stamp}, {"level", name}, {"message", message}};
    for (const LogField& field : fields) line[field.name] = json_of(field);
    // What is no UTF-8 becomes U+FFFD: a log line is never lost.
    return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  }
  std::string line = stamp + " " + name + std::string(6 - name.size(), ' ') + fit_lines(message, "  ");
  for (const LogField& field : fields) line += " " + field.name + "=" + text_of(field);
  return line + "\n";
}

void log(LogLevel level, const std::string& message, LogFields fields) {
  if (level < g_level.load(std::memory_order_relaxed)) return;
  const std::string line =
      log_line(g_format.load(std::memory_order_relaxed), level, time_stamp(), message, fields);
  // One write per line, so lines of several threads never mix.
  const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  (void)written;
}

}  // namespace spark
