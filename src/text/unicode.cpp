#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

namespace spark::text {
namespace {

struct ClassRange {
  uint32_t first;
  uint32_t last;
  CharClass value;
};

constexpr auto kL = CharClass::kLetter;
constexpr auto kM = CharClass::kMark;
constexpr auto kN = CharClass::kNumber;
constexpr auto kP = CharClass::kPunctuation;
constexpr auto kS = CharClass::kSymbol;

// Letters, marks, numbers, punctuation and symbols that Unicode 15.1 and 16.0 added to 15.0.
constexpr ClassRange kAssignedSinceUnicode15[] = {
    {0x00897, 0x00897, kM}, {0x01B4E, 0x01B4F, kP}, {0x01B7F, 0x01B7F, kP}, {0x01C89, 0x01C8A, kL},
    {0x02427, 0x02429, kS}, {0x02FFC, 0x02FFF, kS}, {0x031E4, 0x031E5, kS}, {0x031EF, 0x031EF, kS},
    {0x0A7CB, 0x0A7CD, kL}, {0x0A7DA, 0x0A7DC, kL}, {0x105C0, 0x105F3, kL}, {0x10D40, 0x10D49, kN},
    {0x10D4A, 0x10D65, kL}, {0x10D69, 0x10D6D, kM}, {0x10D6E, 0x10D6E, kP}, {0x10D6F, 0x10D85, kL},
    {0x10D8E, 0x10D8F, kS}, {0x10EC2, 0x10EC4, kL}, {0x10EFC, 0x10EFC, kM}, {0x11380, 0x11389, kL},
    {0x1138B, 0x1138B, kL}, {0x1138E, 0x1138E, kL}, {0x11390, 0x113B5, kL}, {0x113B7, 0x113B7, kL},
    {0x113B8, 0x113C0, kM}, {0x113C2, 0x113C2, kM}, {0x113C5, 0x113C5, kM}, {0x113C7, 0x113CA, kM},
    {0x113CC, 0x113D0, kM}, {0x113D1, 0x113D1, kL}, {0x113D2, 0x113D2, kM}, {0x113D3, 0x113D3, kL},
    {0x113D4, 0x113D5, kP}, {0x113D7, 0x113D8, kP}, {0x113E1, 0x113E2, kM}, {0x116D0, 0x116E3, kN},
    {0x11BC0, 0x11BE0, kL}, {0x11BE1, 0x11BE1, kP}, {0x11BF0, 0x11BF9, kN}, {0x11F5A, 0x11F5A, kM},
    {0x13460, 0x143FA, kL}, {0x16100, 0x1611D, kL}, {0x1611E, 0x1612F, kM}, {0x16130, 0x16139, kN},
    {0x16D40, 0x16D6C, kL}, {0x16D6D, 0x16D6F, kP}, {0x16D70, 0x16D79, kN}, {0x18CFF, 0x18CFF, kL},
    {0x1CC00, 0x1CCEF, kS}, {0x1CCF0, 0x1CCF9, kN}, {0x1CD00, 0x1CEB3, kS}, {0x1E5D0, 0x1E5ED, kL},
    {0x1E5EE, 0x1E5EF, kM}, {0x1E5F0, 0x1E5F0, kL}, {0x1E5F1, 0x1E5FA, kN}, {0x1E5FF, 0x1E5FF, kP},
    {0x1F8B2, 0x1F8BB, kS}, {0x1F8C0, 0x1F8C1, kS}, {0x1FA89, 0x1FA89, kS}, {0x1FA8F, 0x1FA8F, kS},
    {0x1FABE, 0x1FABE, kS}, {0x1FAC6, 0x1FAC6, kS}, {0x1FADC, 0x1FADC, kS}, {0x1FADF, 0x1FADF, kS},
    {0x1FAE9, 0x1FAE9, kS}, {0x1FBCB, 0x1FBEF, kS}, {0x2EBF0, 0x2EE5D, kL},
};

CharClass class_of_category(utf8proc_category_t category) {
  switch (category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharClass::kLetter;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return CharClass::kMark;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharClass::kNumber;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return CharClass::kPunctuation;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
      return CharClass::kSymbol;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return CharClass::kSpace;
    default:
      return CharClass::kOther;
  }
}

CharClass newly_assigned(uint32_t code_point) {
  const auto* const range =
      std::lower_bound(std::begin(kAssignedSinceUnicode15), std::end(kAssignedSinceUnicode15), code_point,
                       [](const ClassRange& r, uint32_t c) { return r.last < c; });
  if (range == std::end(kAssignedSinceUnicode15) || code_point < range->first) return CharClass::kOther;
  return range->value;
}

// The bytes a second byte may take after each lead byte that restricts it (Unicode, table 3-7).
bool second_byte_allowed(uint8_t lead, uint8_t byte) {
  switch (lead) {
    case 0xE0:
      return byte >= 0xA0 && byte <= 0xBF;
    case 0xED:
      return byte >= 0x80 && byte <= 0x9F;
    case 0xF0:
      return byte >= 0x90 && byte <= 0xBF;
    case 0xF4:
      return byte >= 0x80 && byte <= 0x8F;
    default:
      return byte >= 0x80 && byte <= 0xBF;
  }
}

size_t sequence_length(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

}  // namespace

Utf8 decode_utf8(std::string_view text, size_t at) {
  const auto lead = static_cast<uint8_t>(text[at]);
  const size_t length = sequence_length(lead);
  if (length == 1) return {lead, 1, true, false};
  if (length == 0) return {};
  uint32_t code_point = lead & (0xFFU >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if (at + i == text.size()) return {kReplacement, static_cast<uint8_t>(i), false, true};
    const auto byte = static_cast<uint8_t>(text[at + i]);
    const bool fits = i == 1 ? second_byte_allowed(lead, byte) : (byte & 0xC0) == 0x80;
    if (!fits) return {kReplacement, static_cast<uint8_t>(i), false, false};
    code_point = code_point << 6 | (byte & 0x3F);
  }
  return {code_point, static_cast<uint8_t>(length), true, false};
}

void append_utf8(uint32_t code_point, std::string& out) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes.data());
  out.append(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(length));
}

bool is_valid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    uint64_t eight = 0;
    if (text.size() - at >= sizeof(eight)) {  // most text is ASCII: skip it eight bytes at a time
      std::memcpy(&eight, text.data() + at, sizeof(eight));
      if ((eight & 0x8080808080808080U) == 0) {
        at += sizeof(eight);
        continue;
      }
    }
    const Utf8 c = decode_utf8(text, at);
    if (!c.valid) return false;
    at += c.length;
  }
  return true;
}

std::string replace_malformed_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8 c = decode_utf8(text, at);
    if (c.valid) {
      out.append(text.substr(at, c.length));
    } else {
      append_utf8(kReplacement, out);
    }
    at += c.length;
  }
  return out;
}

CharClass char_class(uint32_t code_point) {
  if (code_point == '\r' || code_point == '\n') return CharClass::kNewline;
  // White_Space is the separators plus these controls.
  if ((code_point >= 9 && code_point <= 12) || code_point == 0x85) return CharClass::kSpace;
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
  if (category == UTF8PROC_CATEGORY_CN) return newly_assigned(code_point);
  return class_of_category(category);
}

}  // namespace spark::text
