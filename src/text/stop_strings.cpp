#include "text/stop_strings.h"

#include "common/error.h"

namespace spark::text {

StopStrings::StopStrings(const std::vector<std::string>& stops, bool include_stop)
    : include_stop_(include_stop) {
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty())
      throw Error("is empty: it would end every text at once", "stop[" + std::to_string(i) + "]");
    add(stops[i], static_cast<int32_t>(i));
  }
  link_fallbacks();
}

uint32_t StopStrings::child_of(uint32_t node, uint8_t byte) const {
  for (const auto& [label, child] : nodes_[node].children) {
    if (label == byte) return child;
  }
  return 0;
}

void StopStrings::add(std::string_view stop, int32_t index) {
  uint32_t node = 0;
  for (const char c : stop) {
    const auto byte = static_cast<uint8_t>(c);
    uint32_t child = child_of(node, byte);
    if (child == 0) {
      child = static_cast<uint32_t>(nodes_.size());
      nodes_[node].children.emplace_back(byte, child);
      nodes_.emplace_back();
      nodes_[child].depth = nodes_[node].depth + 1;
    }
    node = child;
  }
  if (nodes_[node].stop >= 0) return;  // given twice: the first index is reported
  nodes_[node].stop = index;
  nodes_[node].stop_length = static_cast<uint32_t>(stop.size());
}

// Breadth first, so that a node's fallback is complete before its children need it.
void StopStrings::link_fallbacks() {
  std::vector<uint32_t> order = {0};
  for (size_t i = 0; i < order.size(); ++i) {
    const uint32_t node = order[i];
    for (const auto& [byte, child] : nodes_[node].children) {
      const uint32_t fallback = node == 0 ? 0 : advance(nodes_[node].fallback, byte);
      nodes_[child].fallback = fallback;
      if (nodes_[child].stop < 0) {
        nodes_[child].stop = nodes_[fallback].stop;
        nodes_[child].stop_length = nodes_[fallback].stop_length;
      }
      order.push_back(child);
    }
  }
}

uint32_t StopStrings::advance(uint32_t node, uint8_t byte) const {
  for (;; node = nodes_[node].fallback) {
    const uint32_t child = child_of(node, byte);
    if (child != 0 || node == 0) return child;
  }
}

std::string StopStrings::push(std::string_view text) {
  if (stopped()) return {};
  for (size_t i = 0; i < text.size(); ++i) {
    state_ = advance(state_, static_cast<uint8_t>(text[i]));
    const Node& node = nodes_[state_];
    if (node.stop < 0) continue;
    matched_ = static_cast<size_t>(node.stop);
    unread_ = text.size() - i - 1;
    std::string out = held_.append(text.substr(0, i + 1));
    if (!include_stop_) out.resize(out.size() - node.stop_length);
    held_.clear();
    state_ = 0;
    return out;
  }
  held_.append(text);
  std::string out = held_.substr(0, held_.size() - nodes_[state_].depth);
  held_.erase(0, out.size());
  return out;
}

void StopStrings::restart() {
  state_ = 0;
  held_.clear();
  matched_.reset();
  unread_ = 0;
}

std::string StopStrings::flush() {
  state_ = 0;
  std::string out;
  out.swap(held_);
  return out;
}

}  // namespace spark::text
