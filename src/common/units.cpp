#include "common/units.h"

#include <array>
#include <cstdio>
#include <string_view>

namespace spark {

std::string format_fixed(double value, int digits) {
  std::array<char, 400> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.*f", digits, value);
  const std::string_view text = buffer.data();
  const bool zero = text.find_first_not_of("-0.") == std::string_view::npos;
  return std::string(zero && text.starts_with('-') ? text.substr(1)
                                                   : text);  // nobody reads "-0.00" as nothing
}

std::string format_bytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  return format_fixed(value, 2) + " " + kUnits[unit];
}

std::string format_count(uint64_t count) {
  std::string digits = std::to_string(count);
  for (size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

}  // namespace spark
