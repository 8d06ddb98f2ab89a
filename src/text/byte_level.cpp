#include "text/byte_level.h"

#include <array>
#include <cstdint>

#include "text/unicode.h"

namespace spark::text {
namespace {

constexpr uint32_t kFirstStandIn = 0x100;
constexpr size_t kStandIns = 68;

constexpr bool is_own_character(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

// The bytes that the characters U+0100 .. U+0143 stand for.
constexpr std::array<uint8_t, kStandIns> stand_in_bytes() {
  std::array<uint8_t, kStandIns> result{};
  size_t count = 0;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    if (!is_own_character(byte)) result[count++] = static_cast<uint8_t>(byte);
  }
  return result;
}

constexpr std::array<uint8_t, kStandIns> kStandInBytes = stand_in_bytes();

}  // namespace

std::string byte_level_string(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    uint32_t character = byte;
    for (uint32_t i = 0; i < kStandIns && !is_own_character(byte); ++i) {
      if (kStandInBytes[i] == byte) character = kFirstStandIn + i;
    }
    append_utf8(character, out);
  }
  return out;
}

bool append_byte_level_bytes(std::string_view spelling, std::string& out) {
  const size_t before = out.size();
  for (size_t at = 0; at < spelling.size();) {
    const Utf8 c = decode_utf8(spelling, at);
    at += c.length;
    if (c.code_point >= kFirstStandIn && c.code_point < kFirstStandIn + kStandIns) {
      out.push_back(static_cast<char>(kStandInBytes[c.code_point - kFirstStandIn]));
    } else if (c.code_point < kFirstStandIn && is_own_character(c.code_point)) {
      out.push_back(static_cast<char>(c.code_point));
    } else {
      out.resize(before);
      return false;
    }
  }
  return true;
}

}  // namespace spark::text
