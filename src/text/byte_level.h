// GPT-2's byte alphabet: tokenizer.json spells the 256 bytes as printable characters. Printable Latin-1
// stands for itself, the other bytes, in order, for U+0100 and up: byte 0x20 is "Ġ" (U+0120), byte 0x0A is
// "Ċ".
#pragma once

#include <string>
#include <string_view>

namespace spark::text {

std::string byte_level_string(std::string_view bytes);

// Appends the bytes that `spelling` stands for; false, and nothing appended, when a character is not in the
// alphabet.
bool append_byte_level_bytes(std::string_view spelling, std::string& out);

}  // namespace spark::text
