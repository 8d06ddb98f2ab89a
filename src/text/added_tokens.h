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
#include <utility>
#include <vector>

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
  struct Node {
    std::vector<std::pair<uint8_t, uint32_t>> children;
    int32_t id = -1;  // of the token that ends here
  };
  uint32_t child_of(uint32_t node, uint8_t byte) const;  // 0, the root, when there is none

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::bitset<256> first_bytes_;
};

}  // namespace spark::text
