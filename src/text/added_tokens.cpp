#include "text/added_tokens.h"

namespace spark::text {

void AddedTokenMatcher::add(std::string_view content, int32_t id) {
  tree_.add(content, id);
  first_bytes_.set(static_cast<uint8_t>(content.front()));
}

std::optional<AddedTokenMatcher::Hit> AddedTokenMatcher::find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!first_bytes_[static_cast<uint8_t>(text[begin])]) continue;
    Hit longest;
    uint32_t node = WordTree::kRoot;
    for (size_t at = begin; at < text.size(); ++at) {
      node = tree_.child(node, static_cast<uint8_t>(text[at]));
      if (node == WordTree::kRoot) break;
      if (const int32_t id = tree_.node(node).word; id >= 0) longest = {begin, at + 1 - begin, id};
    }
    if (longest.length > 0) return longest;
  }
  return std::nullopt;
}

}  // namespace spark::text
