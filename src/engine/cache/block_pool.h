// Which blocks of a cache group are free, which sequence holds which, and which are kept for a prefix:
// host-side bookkeeping only.
//
//   BlockPool pool({.blocks = 64, .sequences = 4, .table_stride = 16});
//   pool.cover(2, 0, 3);            // sequence 2 gets blocks for its places 0, 1, 2
//   pool.table(2)[1];               // the block in place 1, -1 where there is none
//   pool.keep(pool.table(2)[0]);    // the block outlives the sequence
//   pool.share(3, 0, pool.table(2)[0]);
//   pool.release(2, 0, 1);          // place 0 of sequence 2 is empty; the block is still held by sequence 3
//
// A place is a range of 256 token positions. A block is held by as many sequences as have it in their tables,
// and kept any number of times; it is free when neither. Whoever writes into a block must be its only holder.
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
  // Empties the places [begin, end).
  void release(int32_t sequence, int32_t begin, int32_t end);
  // Puts a block that is not free into an empty place.
  void share(int32_t sequence, int32_t place, int32_t block);

  // A block that is not free stays until it has been dropped as often as kept.
  void keep(int32_t block);
  void drop(int32_t block);

  int32_t blocks() const { return shape_.blocks; }
  int32_t blocks_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t blocks_in_use() const { return held_; }                           // held by sequences
  int32_t blocks_idle() const { return blocks() - blocks_free() - held_; }  // kept and not held
  int32_t holders(int32_t block) const { return of(block).holders; }
  int32_t blocks_missing(int32_t sequence, int32_t begin, int32_t end) const;
  // Blocks of the sequence that no other sequence holds: free or idle after a release of them all.
  int32_t blocks_held_alone(int32_t sequence) const;
  int32_t table_stride() const { return shape_.table_stride; }
  std::span<const int32_t> table(int32_t sequence) const;

  // Whether the table changed since the last call, which clears the mark.
  bool take_change(int32_t sequence);

  // Counts everything again, from the tables and the list of free blocks: a difference is a programming
  // error.
  void check_accounting() const;

 private:
  struct Block {
    int32_t holders = 0;  // sequences
    int32_t kept = 0;
  };
  int32_t& at(int32_t sequence, int32_t place);
  Block& of(int32_t block);
  const Block& of(int32_t block) const;
  void hold(int32_t block);
  void free_if_unused(int32_t block);

  BlockPoolShape shape_;
  std::vector<Block> state_;
  std::vector<int32_t> free_;     // the next one to hand out is at the back
  std::vector<int32_t> table_;    // [sequences][table_stride]
  std::vector<uint8_t> changed_;  // [sequences]
  int32_t held_ = 0;              // blocks with holders
};

}  // namespace spark::engine
