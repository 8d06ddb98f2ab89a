#include "text/engram_map.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <unordered_map>

#include "common/error.h"
#include "common/hash.h"
#include "text/unicode.h"

namespace spark::text {
namespace {

using CodePoints = std::vector<uint32_t>;

// One of utf8proc's normal forms of `text`.
std::string normalised(const std::string& text, int options) {
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                               static_cast<utf8proc_ssize_t>(text.size()), &result,
                                               static_cast<utf8proc_option_t>(options));
  if (length < 0) throw Error(utf8proc_errmsg(length), "Engram token map");
  std::string out(reinterpret_cast<const char*>(result), static_cast<size_t>(length));
  std::free(result);
  return out;
}

bool is_white(uint32_t c) {
  const CharClass value = char_class(c);
  return value == CharClass::kSpace || value == CharClass::kNewline;
}

bool is_collapsed(uint32_t c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

// Combining marks removed, lower case. Only U+0130 has a lower case of several characters, and NFD has
// already taken it apart.
CodePoints stripped_and_lowered(const std::string& text) {
  CodePoints out;
  for (size_t at = 0; at < text.size();) {
    const Utf8 c = decode_utf8(text, at);
    at += c.length;
    if (char_class(c.code_point) == CharClass::kMark) continue;
    out.push_back(static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.code_point))));
  }
  return out;
}

std::string collapsed_and_trimmed(const CodePoints& text) {
  CodePoints collapsed;
  for (const uint32_t c : text) {
    if (!is_collapsed(c)) {
      collapsed.push_back(c);
    } else if (collapsed.empty() || collapsed.back() != ' ') {
      collapsed.push_back(' ');
    }
  }
  size_t begin = 0;
  size_t end = collapsed.size();
  if (end != 1 || collapsed[0] != ' ') {
    while (begin < end && is_white(collapsed[begin])) ++begin;
    while (end > begin && is_white(collapsed[end - 1])) --end;
  }
  std::string out;
  for (size_t i = begin; i < end; ++i) append_utf8(collapsed[i], out);
  return out;
}

std::string class_key(const Tokenizer& tokenizer, int32_t id) {
  constexpr int kCompatibilityComposed = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
  constexpr int kCanonicalDecomposed = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
  const std::string text = tokenizer.decode(std::span(&id, 1));
  if (text.find("\xEF\xBF\xBD") != std::string::npos) return std::string(tokenizer.token_string(id));
  const bool ascii =
      std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
  const std::string decomposed =
      ascii ? text : normalised(normalised(text, kCompatibilityComposed), kCanonicalDecomposed);
  std::string key = collapsed_and_trimmed(stripped_and_lowered(decomposed));
  return key.empty() ? text : key;
}

}  // namespace

EngramMap build_engram_map(const Tokenizer& tokenizer) {
  EngramMap map;
  map.classes.reserve(static_cast<size_t>(tokenizer.vocab_size()));
  std::unordered_map<std::string, int32_t> class_of_key;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const auto [entry, is_new] = class_of_key.emplace(class_key(tokenizer, id), map.class_count);
    if (is_new) ++map.class_count;
    map.classes.push_back(entry->second);
  }
  return map;
}

std::string engram_map_digest(std::span<const int32_t> classes) {
  std::string bytes;
  bytes.reserve(classes.size() * 4);
  for (const int32_t value : classes) {
    for (unsigned shift = 0; shift < 32; shift += 8) {
      bytes.push_back(static_cast<char>(static_cast<uint32_t>(value) >> shift & 0xFF));
    }
  }
  return sha256_hex(bytes);
}

}  // namespace spark::text
