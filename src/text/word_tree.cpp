#include "text/word_tree.h"

namespace spark::text {

uint32_t WordTree::child(uint32_t node, uint8_t byte) const {
  for (const auto& [label, child] : nodes_[node].children) {
    if (label == byte) return child;
  }
  return kRoot;
}

void WordTree::add(std::string_view word, int32_t value) {
  uint32_t at = kRoot;
  for (const char c : word) {
    const auto byte = static_cast<uint8_t>(c);
    uint32_t next = child(at, byte);
    if (next == kRoot) {
      next = static_cast<uint32_t>(nodes_.size());
      nodes_[at].children.emplace_back(byte, next);
      nodes_.emplace_back();
      nodes_[next].depth = nodes_[at].depth + 1;
    }
    at = next;
  }
  if (nodes_[at].word >= 0) return;
  nodes_[at].word = value;
  nodes_[at].word_length = static_cast<uint32_t>(word.size());
}

// Breadth first, so that a node's fallback is complete before its children need it.
void WordTree::link() {
  std::vector<uint32_t> order = {kRoot};
  for (size_t i = 0; i < order.size(); ++i) {
    const uint32_t parent = order[i];
    for (const auto& [byte, child] : nodes_[parent].children) {
      const uint32_t fallback = parent == kRoot ? kRoot : advance(nodes_[parent].fallback, byte);
      Node& node = nodes_[child];
      node.fallback = fallback;
      if (node.word < 0) {
        node.word = nodes_[fallback].word;
        node.word_length = nodes_[fallback].word_length;
      }
      order.push_back(child);
    }
  }
}

uint32_t WordTree::advance(uint32_t node, uint8_t byte) const {
  for (;; node = nodes_[node].fallback) {
    const uint32_t next = child(node, byte);
    if (next != kRoot || node == kRoot) return next;
  }
}

}  // namespace spark::text
