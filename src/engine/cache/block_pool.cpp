#include "engine/cache/block_pool.h"

#include <algorithm>

#include "common/error.h"

namespace spark::engine {

BlockPool::BlockPool(const BlockPoolShape& shape)
    : shape_(shape),
      state_(static_cast<size_t>(shape.blocks)),
      table_(static_cast<size_t>(shape.sequences) * static_cast<size_t>(shape.table_stride), -1),
      changed_(static_cast<size_t>(shape.sequences), 1) {
  for (int32_t block = shape.blocks - 1; block >= 0; --block) free_.push_back(block);
}

int32_t& BlockPool::at(int32_t sequence, int32_t place) {
  SPARK_CHECK(sequence >= 0 && sequence < shape_.sequences && place >= 0 && place < shape_.table_stride);
  return table_[static_cast<size_t>(sequence) * static_cast<size_t>(shape_.table_stride) +
                static_cast<size_t>(place)];
}

BlockPool::Block& BlockPool::of(int32_t block) {
  SPARK_CHECK(block >= 0 && block < shape_.blocks);
  return state_[static_cast<size_t>(block)];
}

const BlockPool::Block& BlockPool::of(int32_t block) const {
  SPARK_CHECK(block >= 0 && block < shape_.blocks);
  return state_[static_cast<size_t>(block)];
}

void BlockPool::hold(int32_t block) {
  if (of(block).holders++ == 0) ++held_;
}

void BlockPool::free_if_unused(int32_t block) {
  if (of(block).holders == 0 && of(block).kept == 0) free_.push_back(block);
}

std::span<const int32_t> BlockPool::table(int32_t sequence) const {
  const size_t stride = static_cast<size_t>(shape_.table_stride);
  return {table_.data() + static_cast<size_t>(sequence) * stride, stride};
}

int32_t BlockPool::blocks_missing(int32_t sequence, int32_t begin, int32_t end) const {
  if (begin >= end) return 0;
  SPARK_CHECK(begin >= 0 && end <= shape_.table_stride);
  const auto places = table(sequence).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  return static_cast<int32_t>(std::count(places.begin(), places.end(), -1));
}

int32_t BlockPool::blocks_held_alone(int32_t sequence) const {
  const auto places = table(sequence);
  return static_cast<int32_t>(std::count_if(
      places.begin(), places.end(), [this](int32_t block) { return block >= 0 && of(block).holders == 1; }));
}

void BlockPool::cover(int32_t sequence, int32_t begin, int32_t end) {
  for (int32_t place = begin; place < end; ++place) {
    int32_t& block = at(sequence, place);
    if (block >= 0) continue;
    SPARK_CHECK(!free_.empty());
    block = free_.back();
    free_.pop_back();
    hold(block);
    changed_[static_cast<size_t>(sequence)] = 1;
  }
}

void BlockPool::release(int32_t sequence, int32_t begin, int32_t end) {
  for (int32_t place = std::max(begin, 0); place < end; ++place) {
    int32_t& block = at(sequence, place);
    if (block < 0) continue;
    if (--of(block).holders == 0) --held_;
    free_if_unused(block);
    block = -1;
    changed_[static_cast<size_t>(sequence)] = 1;
  }
}

void BlockPool::share(int32_t sequence, int32_t place, int32_t block) {
  SPARK_CHECK(at(sequence, place) < 0 && (of(block).holders > 0 || of(block).kept > 0));
  at(sequence, place) = block;
  hold(block);
  changed_[static_cast<size_t>(sequence)] = 1;
}

void BlockPool::keep(int32_t block) {
  SPARK_CHECK(of(block).holders > 0 || of(block).kept > 0);
  ++of(block).kept;
}

void BlockPool::drop(int32_t block) {
  SPARK_CHECK(of(block).kept > 0);
  --of(block).kept;
  free_if_unused(block);
}

bool BlockPool::take_change(int32_t sequence) {
  uint8_t& mark = changed_[static_cast<size_t>(sequence)];
  const bool changed = mark != 0;
  mark = 0;
  return changed;
}

void BlockPool::check_accounting() const {
  std::vector<int32_t> holders(state_.size(), 0);
  for (const int32_t block : table_) {
    if (block >= 0) ++holders.at(static_cast<size_t>(block));
  }
  std::vector<uint8_t> is_free(state_.size(), 0);
  for (const int32_t block : free_) SPARK_CHECK(is_free.at(static_cast<size_t>(block))++ == 0);
  int32_t held = 0;
  for (size_t block = 0; block < state_.size(); ++block) {
    SPARK_CHECK(state_[block].holders == holders[block] && state_[block].kept >= 0);
    SPARK_CHECK((is_free[block] == 1) == (state_[block].holders == 0 && state_[block].kept == 0));
    held += holders[block] > 0;
  }
  SPARK_CHECK(held == held_);
}

}  // namespace spark::engine
