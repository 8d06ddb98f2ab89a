#include "engine/checkpoint/row_cache.h"

#include <bit>

#include "common/error.h"

namespace spark::engine {

RowCache::RowCache(size_t places, size_t record_bytes)
    : record_bytes_(record_bytes),
      slots_(places),
      index_(std::bit_ceil(places * 2 + 2), kNone),
      records_(std::make_unique_for_overwrite<uint8_t[]>(places * record_bytes)) {
  SPARK_CHECK(places < kNone);
}

size_t RowCache::home(int64_t row) const {
  return static_cast<size_t>((static_cast<uint64_t>(row) * 0x9E3779B97F4A7C15u) >> 20) & (index_.size() - 1);
}

uint32_t RowCache::slot_of(int64_t row) const {
  for (size_t at = home(row); index_[at] != kNone; at = (at + 1) & (index_.size() - 1)) {
    if (slots_[index_[at]].row == row) return index_[at];
  }
  return kNone;
}

void RowCache::index(uint32_t slot) {
  size_t at = home(slots_[slot].row);
  while (index_[at] != kNone) at = (at + 1) & (index_.size() - 1);
  index_[at] = slot;
}

// Closes the gap: whoever stands behind it and could have stood in it moves up.
void RowCache::unindex(int64_t row) {
  const size_t mask = index_.size() - 1;
  size_t gap = home(row);
  while (slots_[index_[gap]].row != row) gap = (gap + 1) & mask;
  for (size_t at = (gap + 1) & mask; index_[at] != kNone; at = (at + 1) & mask) {
    const size_t from_home = (at - home(slots_[index_[at]].row)) & mask;
    if (from_home < ((at - gap) & mask)) continue;
    index_[gap] = index_[at];
    gap = at;
  }
  index_[gap] = kNone;
}

uint32_t RowCache::take_place(int64_t row, State state) {
  SPARK_CHECK(slot_of(row) == kNone);
  // Two rounds: the first may only clear the marks.
  for (size_t step = 0; step < 2 * slots_.size(); ++step) {
    const size_t at = hand_;
    hand_ = (hand_ + 1) % slots_.size();
    Slot& slot = slots_[at];
    if (slot.state == State::kReserved) continue;
    if (slot.state == State::kFilled && slot.asked) {
      slot.asked = false;
      continue;
    }
    if (slot.state == State::kFilled) unindex(slot.row);
    slot = {.row = row, .state = state, .asked = true};
    index(static_cast<uint32_t>(at));
    return static_cast<uint32_t>(at);
  }
  return kNone;
}

const uint8_t* RowCache::find(int64_t row) {
  const uint32_t slot = slot_of(row);
  if (slot == kNone || slots_[slot].state != State::kFilled) return nullptr;
  slots_[slot].asked = true;
  return record(slot);
}

bool RowCache::is_reserved(int64_t row) const {
  const uint32_t slot = slot_of(row);
  return slot != kNone && slots_[slot].state == State::kReserved;
}

uint8_t* RowCache::insert(int64_t row) {
  const uint32_t slot = take_place(row, State::kFilled);
  return slot == kNone ? nullptr : record(slot);
}

bool RowCache::reserve(int64_t row) {
  return take_place(row, State::kReserved) != kNone;
}

uint8_t* RowCache::fill(int64_t row) {
  const uint32_t slot = slot_of(row);
  SPARK_CHECK(slot != kNone && slots_[slot].state == State::kReserved);
  slots_[slot].state = State::kFilled;
  return record(slot);
}

void RowCache::drop(int64_t row) {
  const uint32_t slot = slot_of(row);
  SPARK_CHECK(slot != kNone && slots_[slot].state == State::kReserved);
  unindex(row);
  slots_[slot].state = State::kEmpty;
}

}  // namespace spark::engine
