#include "engine/cache/prefix_cache.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/error.h"
#include "common/hash.h"

namespace spark::engine {

PrefixCache::PrefixCache(std::vector<BlockPool*> whole, std::vector<BlockPool*> window)
    : whole_(std::move(whole)), window_(std::move(window)) {}

PrefixKey PrefixCache::root(uint64_t salt) {
  return sha256_hex("prefix " + std::to_string(salt));
}

PrefixKey PrefixCache::next(const PrefixKey& parent, std::span<const int64_t> contents) {
  std::string bytes = parent;
  bytes.append(reinterpret_cast<const char*>(contents.data()), contents.size_bytes());
  return sha256_hex(bytes);
}

PrefixCache::Node& PrefixCache::at(const PrefixKey& key) {
  const auto found = nodes_.find(key);
  SPARK_CHECK(found != nodes_.end());
  return found->second;
}

const PrefixCache::Node& PrefixCache::at(const PrefixKey& key) const {
  const auto found = nodes_.find(key);
  SPARK_CHECK(found != nodes_.end());
  return found->second;
}

bool PrefixCache::has_checkpoint(const PrefixKey& key) const {
  return !at(key).window.empty();
}

std::span<const int32_t> PrefixCache::whole(const PrefixKey& key) const {
  return at(key).whole;
}

const std::vector<std::vector<int32_t>>& PrefixCache::checkpoint(const PrefixKey& key) const {
  return at(key).window;
}

void PrefixCache::renew(Ages& ages, uint64_t& stamp, const PrefixKey& key) {
  ages.erase(stamp);
  stamp = ++clock_;
  ages.emplace(stamp, key);
}

void PrefixCache::insert(const PrefixKey& key, const PrefixKey& parent, std::vector<int32_t> whole) {
  SPARK_CHECK(!contains(key) && whole.size() == whole_.size());
  for (size_t group = 0; group < whole_.size(); ++group) whole_[group]->keep(whole[group]);
  const auto above = nodes_.find(parent);
  if (above != nodes_.end() && above->second.children++ == 0) leaves_by_age_.erase(above->second.used);
  Node& node = nodes_[key];
  node.parent = parent;
  node.whole = std::move(whole);
  renew(leaves_by_age_, node.used, key);
}

void PrefixCache::add_checkpoint(const PrefixKey& key, std::vector<std::vector<int32_t>> window) {
  Node& node = at(key);
  SPARK_CHECK(node.window.empty() && window.size() == window_.size());
  for (size_t group = 0; group < window_.size(); ++group) {
    for (const int32_t block : window[group]) window_[group]->keep(block);
  }
  node.window = std::move(window);
  renew(checkpoints_by_age_, node.checkpoint_used, key);
}

void PrefixCache::touch(const PrefixKey& key) {
  Node& node = at(key);
  if (!node.window.empty()) renew(checkpoints_by_age_, node.checkpoint_used, key);
  if (node.children == 0) {
    renew(leaves_by_age_, node.used, key);
  } else {
    node.used = ++clock_;  // its place when it becomes a leaf
  }
}

bool PrefixCache::held(const Node& node) const {
  for (size_t group = 0; group < whole_.size(); ++group) {
    if (whole_[group]->holders(node.whole[group]) > 0) return true;
  }
  return false;
}

bool PrefixCache::checkpoint_held(const Node& node) const {
  for (size_t group = 0; group < window_.size(); ++group) {
    for (const int32_t block : node.window[group]) {
      if (window_[group]->holders(block) == 0) return false;
    }
  }
  return true;
}

void PrefixCache::remove_checkpoint(Node& node) {
  if (node.window.empty()) return;
  for (size_t group = 0; group < window_.size(); ++group) {
    for (const int32_t block : node.window[group]) window_[group]->drop(block);
  }
  node.window.clear();
  checkpoints_by_age_.erase(node.checkpoint_used);
}

void PrefixCache::remove(const PrefixKey& key) {
  Node& node = at(key);
  SPARK_CHECK(node.children == 0);
  remove_checkpoint(node);
  for (size_t group = 0; group < whole_.size(); ++group) whole_[group]->drop(node.whole[group]);
  leaves_by_age_.erase(node.used);
  const auto above = nodes_.find(node.parent);
  if (above != nodes_.end() && --above->second.children == 0) {
    leaves_by_age_.emplace(above->second.used, above->first);
  }
  nodes_.erase(key);
}

bool PrefixCache::evict_whole() {
  // What is held is in use, so it counts as used now; each is looked at once.
  for (size_t left = leaves_by_age_.size(); left > 0; --left) {
    const PrefixKey key = leaves_by_age_.begin()->second;
    if (Node& node = at(key); held(node)) {
      renew(leaves_by_age_, node.used, key);
      continue;
    }
    remove(key);
    return true;
  }
  return false;
}

bool PrefixCache::evict_checkpoint() {
  for (size_t left = checkpoints_by_age_.size(); left > 0; --left) {
    const PrefixKey key = checkpoints_by_age_.begin()->second;
    Node& node = at(key);
    if (checkpoint_held(node)) {
      renew(checkpoints_by_age_, node.checkpoint_used, key);
      continue;
    }
    remove_checkpoint(node);
    return true;
  }
  return false;
}

}  // namespace spark::engine
