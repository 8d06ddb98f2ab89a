// UTF-8 decoding and the few Unicode properties the tokenizer needs.
//
// Malformed UTF-8 is read the way Unicode recommends and Rust's and Python's lossy decoders do: each maximal
// ill-formed prefix of a sequence counts as one U+FFFD.
//
//   for (size_t at = 0; at < text.size();) {
//     const Utf8 c = decode_utf8(text, at);
//     at += c.length;
//   }
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace spark::text {

inline constexpr uint32_t kReplacement = 0xFFFD;

struct Utf8 {
  uint32_t code_point = kReplacement;
  uint8_t length = 1;       // bytes consumed, at least 1
  bool valid = false;       // false: malformed, code_point is U+FFFD
  bool incomplete = false;  // malformed only because the text ends; more bytes could complete it
};

// Reads the sequence that starts at `at` (at < text.size()).
Utf8 decode_utf8(std::string_view text, size_t at);

void append_utf8(uint32_t code_point, std::string& out);

bool is_valid_utf8(std::string_view text);

// `text` with every malformed sequence replaced by U+FFFD.
std::string replace_malformed_utf8(std::string_view text);

// General categories as the pre-tokenizer's patterns group them. kSpace is the property White_Space without
// CR and LF; everything else (controls, format characters, unassigned, private use) is kOther.
enum class CharClass : uint8_t { kOther, kLetter, kMark, kNumber, kPunctuation, kSymbol, kSpace, kNewline };

// Unicode 16, the version of the `tokenizers` library's regular expressions. utf8proc of Debian 12 knows
// Unicode 15.0, that of Ubuntu 24.04 15.1; the code points assigned since are added here so that both give
// the same tokens.
CharClass char_class(uint32_t code_point);

}  // namespace spark::text
