#include "text/stop_strings.h"

#include "common/error.h"

namespace spark::text {

StopStrings::StopStrings(const std::vector<std::string>& stops, bool include_stop)
    : include_stop_(include_stop) {
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty())
      throw Error("is empty: it would end every text at once", "stop[" + std::to_string(i) + "]");
    tree_.add(stops[i], static_cast<int32_t>(i));
  }
  tree_.link();
}

std::string StopStrings::push(std::string_view text) {
  if (stopped()) return {};
  for (size_t i = 0; i < text.size(); ++i) {
    state_ = tree_.advance(state_, static_cast<uint8_t>(text[i]));
    const WordTree::Node& node = tree_.node(state_);
    if (node.word < 0) continue;
    matched_ = static_cast<size_t>(node.word);
    unread_ = text.size() - i - 1;
    std::string out = held_.append(text.substr(0, i + 1));
    if (!include_stop_) out.resize(out.size() - node.word_length);
    held_.clear();
    state_ = WordTree::kRoot;
    return out;
  }
  held_.append(text);
  std::string out = held_.substr(0, held_.size() - tree_.node(state_).depth);
  held_.erase(0, out.size());
  return out;
}

void StopStrings::restart() {
  state_ = WordTree::kRoot;
  held_.clear();
  matched_.reset();
  unread_ = 0;
}

std::string StopStrings::flush() {
  state_ = WordTree::kRoot;
  std::string out;
  out.swap(held_);
  return out;
}

}  // namespace spark::text
