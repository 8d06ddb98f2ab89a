#include "engine/cache/block_pool.h"

#include <algorithm>

#include "common/error.h"

namespace spark::engine {

BlockPool::BlockPool(const BlockPoolShape& shape)
    : shape_(shape),
      table_(static_cast<size_t>(shape.sequences) * static_cast<size_t>(shape.table_stride), -1),
      changed_(static_cast<size_t>(shape.sequences), 1) {
  for (int32_t block = shape.blocks - 1; block >= 0; --block) free_.push_back(block);
}

int32_t& BlockPool::at(int32_t sequence, int32_t place) {
  SPARK_CHECK(sequence >= 0 && sequence < shape_.sequences && place >= 0 && place < shape_.table_stride);
  return table_[static_cast<size_t>(sequence) * static_cast<size_t>(shape_.table_stride) +
                static_cast<size_t>(place)];
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

void BlockPool::cover(int32_t sequence, int32_t begin, int32_t end) {
  for (int32_t place = begin; place < end; ++place) {
    int32_t& block = at(sequence, place);
    if (block >= 0) continue;
    SPARK_CHECK(!free_.empty());
    block = free_.back();
    free_.pop_back();
    changed_[static_cast<size_t>(sequence)] = 1;
  }
}

void BlockPool::release(int32_t sequence, int32_t begin, int32_t end) {
  for (int32_t place = std::max(begin, 0); place < end; ++place) {
    int32_t& block = at(sequence, place);
    if (block < 0) continue;
    free_.push_back(block);
    block = -1;
    changed_[static_cast<size_t>(sequence)] = 1;
  }
}

bool BlockPool::take_change(int32_t sequence) {
  uint8_t& mark = changed_[static_cast<size_t>(sequence)];
  const bool changed = mark != 0;
  mark = 0;
  return changed;
}

}  // namespace spark::engine
