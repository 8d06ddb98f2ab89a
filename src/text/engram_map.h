// The Engram token map: every token id to the id of its class of look-alike tokens ("The", " the" and "THE"
// share one).
//
// The class of a token is its text after NFKC, NFD, removal of combining marks, lower-casing, runs of blanks,
// tabs and line breaks made one blank, and trimming; a single blank stays. A token that is no whole UTF-8
// text is a class of its own, keyed by its vocabulary string; so is one that this leaves empty, keyed by its
// text. Classes are numbered in the order of their first token.
//
//   const EngramMap map = build_engram_map(tokenizer);
//   int32_t compressed = map.classes[token];   // 0 .. map.class_count - 1
//
// utf8proc's Unicode version decides; the result for the published tokenizer is pinned by
// kPublishedEngramMap.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace spark::text {

struct EngramMap {
  std::vector<int32_t> classes;  // by token id
  int32_t class_count = 0;
};

EngramMap build_engram_map(const Tokenizer& tokenizer);

// SHA-256, in hex, of the map as little-endian int32: what a map is compared by.
std::string engram_map_digest(std::span<const int32_t> classes);

// The map of DeepSeek V4.1 Flash. A map with the same class count but another digest would read wrong table
// rows without any other sign.
struct PublishedEngramMap {
  int32_t token_count;
  int32_t class_count;
  std::string_view digest;
};
inline constexpr PublishedEngramMap kPublishedEngramMap = {
    129280, 99092, "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481"};

}  // namespace spark::text
