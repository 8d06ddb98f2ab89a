// Which blocks hold which beginning of which text, kept after the sequences that computed them have gone.
//
//   PrefixKey key = PrefixCache::root(salt);
//   key = PrefixCache::next(key, contents_of_256_positions);   // names the whole text up to here
//   cache.insert(key, parent, {main_block, keys_block});
//   cache.add_checkpoint(key, {{window_block}, {drafter_block}});
//   if (cache.contains(key)) use(cache.whole(key));
//
// A key is the SHA-256 of the key before it and of what stands at its 256 positions, so equal keys mean equal
// texts from the first token on: everything that a record depends on, for a model's caches hold one model's
// records, computed in one precision by one build.
//
// Two kinds of groups, two kinds of entries. "Whole" groups (compressed entries, index keys) need the records
// of every position: each key owns a block of each. "Window" groups need only the last records before the
// border where a sequence goes on, and theirs are large: a key may have a checkpoint, the window blocks that
// a sequence starting after it sees. A prefix can be taken up where a checkpoint is and all keys before it.
//
// What is least recently used goes first: among whole blocks the leaves of the tree, so that no entry loses
// its beginning; among checkpoints any. What a sequence holds is never given up.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/cache/block_pool.h"

namespace spark::engine {

using PrefixKey = std::string;

class PrefixCache {
 public:
  // The pools outlive the cache.
  PrefixCache(std::vector<BlockPool*> whole, std::vector<BlockPool*> window);

  static PrefixKey root(uint64_t salt);
  static PrefixKey next(const PrefixKey& parent, std::span<const int64_t> contents);

  bool contains(const PrefixKey& key) const { return nodes_.contains(key); }
  bool has_checkpoint(const PrefixKey& key) const;
  // Of a key that is there: a block of each whole group; for each window group the blocks of a checkpoint.
  std::span<const int32_t> whole(const PrefixKey& key) const;
  const std::vector<std::vector<int32_t>>& checkpoint(const PrefixKey& key) const;

  // Keeps blocks that a sequence holds, under a key that is not there. `parent` is a root or a key that is
  // there.
  void insert(const PrefixKey& key, const PrefixKey& parent, std::vector<int32_t> whole);
  // For a key that is there and has none.
  void add_checkpoint(const PrefixKey& key, std::vector<std::vector<int32_t>> window);
  // Makes a key, and its checkpoint when it has one, the most recently used.
  void touch(const PrefixKey& key);

  // Gives up one entry that no sequence uses; false when there is none.
  bool evict_whole();
  bool evict_checkpoint();

  size_t size() const { return nodes_.size(); }
  size_t checkpoints() const { return checkpoints_by_age_.size(); }

 private:
  struct Node {
    PrefixKey parent;
    std::vector<int32_t> whole;                // [whole groups]
    std::vector<std::vector<int32_t>> window;  // [window groups][blocks]; empty: no checkpoint
    int32_t children = 0;
    uint64_t used = 0;             // place among the leaves, when it is one
    uint64_t checkpoint_used = 0;  // place among the checkpoints, when it has one
  };
  using Ages = std::map<uint64_t, PrefixKey>;

  Node& at(const PrefixKey& key);
  const Node& at(const PrefixKey& key) const;
  void renew(Ages& ages, uint64_t& stamp, const PrefixKey& key);
  void remove(const PrefixKey& key);
  void remove_checkpoint(Node& node);
  bool held(const Node& node) const;
  bool checkpoint_held(const Node& node) const;  // all of it

  std::vector<BlockPool*> whole_;
  std::vector<BlockPool*> window_;
  std::map<PrefixKey, Node> nodes_;
  Ages leaves_by_age_;
  Ages checkpoints_by_age_;
  uint64_t clock_ = 0;
};

}  // namespace spark::engine
