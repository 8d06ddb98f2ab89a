#include "ops/site/text_forms.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

namespace spark::ops {
namespace {

bool is_alphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

}  // namespace

bool is_hex(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
  });
}

bool is_commit(std::string_view text) {
  return text.size() == 40 && is_hex(text);
}

bool is_sha256(std::string_view text) {
  return text.size() == 64 && is_hex(text);
}

bool is_ipv4(std::string_view text) {
  in_addr address;
  return ::inet_pton(AF_INET, std::string(text).c_str(), &address) == 1 &&
         text.find('\0') == std::string_view::npos;
}

bool is_ip(std::string_view text) {
  in6_addr address;
  return is_ipv4(text) || (::inet_pton(AF_INET6, std::string(text).c_str(), &address) == 1 &&
                           text.find('\0') == std::string_view::npos);
}

bool is_host_name(std::string_view text) {
  if (text.empty() || text.size() > 253 || !is_alphanumeric(text[0])) return false;
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return is_alphanumeric(c) || c == '.' || c == '-' || c == '_'; });
}

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

std::optional<int64_t> docker_size(const std::string& text) {
  if (text.empty()) return {};
  static constexpr std::string_view kUnits = "bkmg";
  const size_t unit = kUnits.find(static_cast<char>(text.back() | 0x20));
  const auto number = whole_number(unit == std::string_view::npos ? text : text.substr(0, text.size() - 1));
  if (!number || *number < 0 || *number > (int64_t{1} << 32)) return {};
  return *number << (unit == std::string_view::npos ? 0 : 10 * unit);
}

std::string shell_quote(const std::string& word) {
  static constexpr std::string_view kSafe = "@%+=:,./-_";
  const bool safe = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return is_alphanumeric(c) || kSafe.find(c) != std::string_view::npos;
  });
  if (safe) return word;
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'') {
      quoted += "'\"'\"'";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

}  // namespace spark::ops
