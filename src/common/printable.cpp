#include "common/printable.h"

#include <algorithm>

namespace spark {
namespace {

// Of the character at the front; 0: its bytes are no UTF-8, or NUL.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return lead == 0 ? 0 : 1;
  const size_t length = lead >= 0xc2 && lead < 0xe0   ? 2
                        : lead >= 0xe0 && lead < 0xf0 ? 3
                        : lead >= 0xf0 && lead < 0xf5 ? 4
                                                      : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) return 0;
  }
  const unsigned char second = byte(1);
  if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) || (lead == 0xf0 && second < 0x90) ||
      (lead == 0xf4 && second > 0x8f)) {
    return 0;
  }
  return length;
}

// Whether a terminal may obey the character instead of showing it.
bool is_obeyed(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7f;
  if (character.size() == 2)
    return byte(0) == 0xc2 && byte(1) < 0xa0;  // C1: U+009B begins a sequence as ESC [
  if (character.size() != 3 || byte(0) != 0xe2) return false;
  return (byte(1) == 0x80 && byte(2) >= 0xa8 && byte(2) <= 0xae) ||  // U+2028 to U+202E
         (byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9);    // U+2066 to U+2069
}

std::string shown(std::string_view text, bool with_tabs) {
  const std::string clean = clean_text(text);
  std::string line;
  line.reserve(clean.size());
  for (std::string_view rest = clean; !rest.empty();) {
    const std::string_view character = rest.substr(0, utf8_length(rest));
    line += is_obeyed(character) && !(with_tabs && character == "\t") ? " " : character;
    rest.remove_prefix(character.size());
  }
  return line;
}

}  // namespace

std::string clean_text(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const size_t length = utf8_length(bytes);
    if (length == 0) {
      text += "\xef\xbf\xbd";
      bytes.remove_prefix(1);
    } else {
      text += bytes.substr(0, length);
      bytes.remove_prefix(length);
    }
  }
  return text;
}

std::string one_line(std::string_view text) {
  return shown(text, false);
}

std::string fit_lines(std::string_view text, std::string_view indent) {
  std::string lines;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = shown(text.substr(at, end - at), true);
    if (at > 0) lines += '\n';
    if (at > 0 && !line.empty() && !line.starts_with(indent)) lines += indent;
    lines += line;
    at = end + 1;
  }
  return lines;
}

}  // namespace spark
