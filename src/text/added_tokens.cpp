#include "text/added_tokens.h"

namespace spark::text {

uint32_t AddedTokenMatcher::child_of(uint32_t node, uint8_t byte) const {
  for (const auto& [label, child] : nodes_[node].children) {
    if (label == byte) return child;
  }
  return 0;
}

void AddedTokenMatcher::add(std::string_view content, int32_t id) {
  uint32_t node = 0;
  for (const char c : content) {
    const auto byte = static_cast<uint8_t>(c);
    uint32_t child = child_of(node, byte);
    if (child == 0) {
      child = static_cast<uint32_t>(nodes_.size());
      nodes_[node].children.emplace_back(byte, child);
      nodes_.emplace_back();
    }
    node = child;
  }
  nodes_[node].id = id;
  first_bytes_.set(static_cast<uint8_t>(content.front()));
}

std::optional<AddedTokenMatcher::Hit> AddedTokenMatcher::find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!first_bytes_[static_cast<uint8_t>(text[begin])]) continue;
    Hit longest;
    uint32_t node = 0;
    for (size_t at = begin; at < text.size(); ++at) {
      node = child_of(node, static_cast<uint8_t>(text[at]));
      if (node == 0) break;
      if (nodes_[node].id >= 0) longest = {begin, at + 1 - begin, nodes_[node].id};
    }
    if (longest.length > 0) return longest;
  }
  return std::nullopt;
}

}  // namespace spark::text
