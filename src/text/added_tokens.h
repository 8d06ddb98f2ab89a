// Finds added tokens (control tokens and the like) in text: leftmost, and of those that start at one place
// the longest.
//
//   AddedTokenMatcher matcher;
//   matcher.add("<think>", 128821);
//   const auto hit = matcher.find("a<think>b", 0);   // {.begin = 1, .length = 7, .id = 128821}
#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <string_view>

#include "text/word_tree.h"

namespace spark::text {

class AddedTokenMatcher {
 public:
  struct Hit {
    size_t begin = 0;
    size_t length = 0;
    int32_t id = 0;
  };

  void add(std::string_view content, int32_t id);  // content must not be empty
  std::optional<Hit> find(std::string_view text, size_t from) const;

 private:
  WordTree tree_;
  std::bitset<256> first_bytes_;
};

}  // namespace spark::text
