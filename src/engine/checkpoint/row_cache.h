// Records of table rows that were read lately, a bounded number of them. Which goes when a place is needed:
// the first, round and round, that nobody has asked for since the hand last passed it (CLOCK).
//
//   RowCache cache(1000, 264);
//   uint8_t* record = cache.insert(17);        // to be filled; null when every place is reserved
//   const uint8_t* again = cache.find(17);
//
// A reserved row has a place and no contents yet: find() does not see it and nothing evicts it until it is
// filled or dropped. Not thread-safe. Memory is touched as it fills.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace spark::engine {

class RowCache {
 public:
  RowCache(size_t places, size_t record_bytes);

  size_t places() const { return slots_.size(); }
  size_t record_bytes() const { return record_bytes_; }

  const uint8_t* find(int64_t row);
  bool is_reserved(int64_t row) const;

  uint8_t* insert(int64_t row);  // the row must not be in the cache
  bool reserve(int64_t row);     // false when there is no place
  uint8_t* fill(int64_t row);    // of a reserved row, which find() sees from now on
  void drop(int64_t row);        // of a reserved row

 private:
  enum class State : uint8_t { kEmpty, kReserved, kFilled };
  struct Slot {
    int64_t row = 0;
    State state = State::kEmpty;
    bool asked = false;
  };
  static constexpr uint32_t kNone = ~uint32_t{0};

  size_t home(int64_t row) const;
  uint32_t slot_of(int64_t row) const;
  uint32_t take_place(int64_t row, State state);
  void index(uint32_t slot);
  void unindex(int64_t row);
  uint8_t* record(uint32_t slot) { return records_.get() + size_t{slot} * record_bytes_; }

  size_t record_bytes_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> index_;  // open addressing by row, at most half full
  std::unique_ptr<uint8_t[]> records_;
  size_t hand_ = 0;
};

}  // namespace spark::engine
