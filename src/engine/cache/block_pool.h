// Which blocks of a cache group are free, and which sequence holds which: host-side bookkeeping only.
//
//   BlockPool pool({.blocks = 64, .sequences = 4, .table_stride = 16});
//   pool.cover(2, 0, 3);            // sequence 2 gets blocks for its places 0, 1, 2
//   pool.table(2)[1];               // the block in place 1, -1 where there is none
//   pool.release(2, 0, 1);          // place 0 is free again
//
// A place is a range of 256 token positions. Every block has one holder.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace spark::engine {

struct BlockPoolShape {
  int32_t blocks = 0;
  int32_t sequences = 0;
  int32_t table_stride = 0;  // places of one sequence
};

class BlockPool {
 public:
  explicit BlockPool(const BlockPoolShape& shape);

  // Gives every place of [begin, end) that has no block one; blocks_missing() of them must be free.
  void cover(int32_t sequence, int32_t begin, int32_t end);
  // Frees the blocks in the places [begin, end).
  void release(int32_t sequence, int32_t begin, int32_t end);

  int32_t blocks() const { return shape_.blocks; }
  int32_t blocks_in_use() const { return shape_.blocks - blocks_free(); }
  int32_t blocks_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t blocks_missing(int32_t sequence, int32_t begin, int32_t end) const;
  int32_t table_stride() const { return shape_.table_stride; }
  std::span<const int32_t> table(int32_t sequence) const;

  // Whether the table changed since the last call, which clears the mark.
  bool take_change(int32_t sequence);

 private:
  int32_t& at(int32_t sequence, int32_t place);

  BlockPoolShape shape_;
  std::vector<int32_t> free_;     // the next one to hand out is at the back
  std::vector<int32_t> table_;    // [sequences][table_stride]
  std::vector<uint8_t> changed_;  // [sequences]
};

}  // namespace spark::engine
