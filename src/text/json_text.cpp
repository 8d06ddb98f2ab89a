#include "text/json_text.h"

#include <array>
#include <charconv>
#include <cmath>

namespace spark::text {
namespace {

// The shortest digits that read back as `value`, with an exponent below 1e-4 and from 1e16 on.
std::string python_float(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
  const double magnitude = std::fabs(value);
  const bool fixed = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  std::array<char, 64> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer.data(), end.ptr);
  if (fixed && text.find('.') == std::string::npos) text += ".0";
  return text;
}

void append_json(const Json& value, std::string& out) {
  if (value.is_object()) {
    out += '{';
    for (auto it = value.begin(); it != value.end(); ++it) {
      if (it != value.begin()) out += ", ";
      out += Json(it.key()).dump();
      out += ": ";
      append_json(it.value(), out);
    }
    out += '}';
  } else if (value.is_array()) {
    out += '[';
    for (size_t i = 0; i < value.size(); ++i) {
      if (i > 0) out += ", ";
      append_json(value[i], out);
    }
    out += ']';
  } else if (value.is_number_float()) {
    out += python_float(value.get<double>());
  } else if (is_huge_integer(value)) {
    out += huge_integer_digits(value);
  } else {
    out += value.dump();
  }
}

}  // namespace

std::string to_prompt_json(const Json& value) {
  std::string out;
  append_json(value, out);
  return out;
}

void append_json_escaped(std::string_view text, std::string& out) {
  constexpr std::string_view kHex = "0123456789abcdef";
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (byte < 0x20) {
          out += "\\u00";
          out += kHex[byte >> 4];
          out += kHex[byte & 15];
        } else {
          out += c;
        }
    }
  }
}

}  // namespace spark::text
