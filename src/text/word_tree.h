// A set of words as a tree of their bytes, for finding them in text: step by step from a place, or everywhere
// at once by falling back to the longest suffix that begins a word (Aho-Corasick).
//
//   WordTree tree;
//   tree.add("END", 0);
//   tree.link();                            // only for advance()
//   uint32_t node = WordTree::kRoot;
//   for (uint8_t byte : text) {
//     node = tree.advance(node, byte);
//     if (tree.node(node).word >= 0) ...    // the longest word that ends here
//   }
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace spark::text {

class WordTree {
 public:
  static constexpr uint32_t kRoot = 0;

  struct Node {
    std::vector<std::pair<uint8_t, uint32_t>> children;
    uint32_t fallback = kRoot;  // the longest proper suffix that begins a word
    uint32_t depth = 0;         // bytes from the root
    int32_t word = -1;          // that ends here; after link(), of a suffix if no longer one does
    uint32_t word_length = 0;
  };

  // `value`, not negative, names the word. A word that is there already keeps its value.
  void add(std::string_view word, int32_t value);
  // Once, after the last add().
  void link();

  const Node& node(uint32_t node) const { return nodes_[node]; }
  uint32_t child(uint32_t node, uint8_t byte) const;  // kRoot when there is none
  uint32_t advance(uint32_t node, uint8_t byte) const;

 private:
  std::vector<Node> nodes_ = std::vector<Node>(1);
};

}  // namespace spark::text
