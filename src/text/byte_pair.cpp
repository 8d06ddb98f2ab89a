#include "text/byte_pair.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/error.h"

namespace spark::text {
namespace {

uint32_t hash_word(std::string_view word) {
  uint64_t hash = 0xCBF29CE484222325U ^ word.size();
  for (; word.size() >= 8; word.remove_prefix(8)) {
    uint64_t eight = 0;
    std::memcpy(&eight, word.data(), 8);
    hash = (hash ^ eight) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 32;
  }
  uint64_t rest = 0;
  std::memcpy(&rest, word.data(), word.size());
  hash = (hash ^ rest) * 0x9E3779B97F4A7C15U;
  return static_cast<uint32_t>(hash >> 32);
}

}  // namespace

BytePairEncoder::Scratch::Scratch() : cache_(size_t{1} << kCacheBits) {}

void BytePairEncoder::Scratch::check_stop() const {
  if (stop != nullptr && stop->load(std::memory_order_relaxed)) throw EncodingStopped();
}

BytePairEncoder::BytePairEncoder(const std::array<int32_t, 256>& byte_ids, std::span<const Merge> merges)
    : byte_ids_(byte_ids) {
  const size_t capacity = std::bit_ceil(std::max<size_t>(16, merges.size() * 2));
  slots_.resize(capacity);
  shift_ = 64U - static_cast<unsigned>(std::countr_zero(capacity));
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t pair = pair_key(merges[rank].left, merges[rank].right);
    size_t at = home_of(pair);
    while (slots_[at].pair != kNoPair) {
      SPARK_CHECK(slots_[at].pair != pair);
      at = (at + 1) & (capacity - 1);
    }
    slots_[at] = {pair, static_cast<uint32_t>(rank), merges[rank].result};
  }
}

const BytePairEncoder::Slot* BytePairEncoder::find(int32_t left, int32_t right) const {
  const uint64_t pair = pair_key(left, right);
  for (size_t at = home_of(pair);; at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at].pair == pair) return &slots_[at];
    if (slots_[at].pair == kNoPair) return nullptr;
  }
}

void BytePairEncoder::encode_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const {
  if (word.empty()) return;
  if (word.size() == 1) {
    out.push_back(byte_ids_[static_cast<uint8_t>(word[0])]);
    return;
  }
  if (word.size() > Scratch::CachedWord::kMaxBytes) {
    scratch.check_stop();
    merge(word, scratch, out);
    return;
  }
  const uint32_t hash = hash_word(word);
  Scratch::CachedWord& cached = scratch.cache_[hash >> (32 - Scratch::kCacheBits)];
  if (cached.hash == hash && cached.length == word.size() &&
      std::memcmp(cached.word.data(), word.data(), word.size()) == 0) {
    out.insert(out.end(), cached.id.begin(), cached.id.begin() + cached.ids);
    return;
  }
  const size_t before = out.size();
  merge(word, scratch, out);
  const size_t count = out.size() - before;
  if (count > Scratch::CachedWord::kMaxIds) return;
  cached.hash = hash;
  cached.length = static_cast<uint8_t>(word.size());
  cached.ids = static_cast<uint8_t>(count);
  std::memcpy(cached.word.data(), word.data(), word.size());
  std::copy(out.end() - static_cast<ptrdiff_t>(count), out.end(), cached.id.begin());
}

// Queues the pair of the symbol at `position` and the one after it, if they can be joined.
void BytePairEncoder::push(Scratch& scratch, int32_t position) const {
  const Scratch::Symbol& left = scratch.symbols_[static_cast<size_t>(position)];
  if (left.next < 0) return;
  const int32_t right = scratch.symbols_[static_cast<size_t>(left.next)].id;
  const Slot* const slot = find(left.id, right);
  if (slot == nullptr) return;
  scratch.queue_.push_back(
      {static_cast<uint64_t>(slot->rank) << 32 | static_cast<uint32_t>(position), left.id, right});
  std::push_heap(scratch.queue_.begin(), scratch.queue_.end(),
                 [](const auto& a, const auto& b) { return a.order > b.order; });
}

void BytePairEncoder::merge(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const {
  constexpr int32_t kGone = -1;
  auto& symbols = scratch.symbols_;
  auto& queue = scratch.queue_;
  const auto length = static_cast<int32_t>(word.size());
  symbols.resize(word.size());
  queue.clear();
  for (int32_t i = 0; i < length; ++i) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(word[static_cast<size_t>(i)])];
    symbols[static_cast<size_t>(i)] = {id, i - 1, i + 1 < length ? i + 1 : -1};
  }
  for (int32_t i = 0; i < length; ++i) push(scratch, i);

  for (uint32_t steps = 1; !queue.empty(); ++steps) {
    if (steps % 4096 == 0) scratch.check_stop();
    const Scratch::Candidate best = queue.front();
    std::pop_heap(queue.begin(), queue.end(), [](const auto& a, const auto& b) { return a.order > b.order; });
    queue.pop_back();
    const auto position = static_cast<int32_t>(best.order & 0xFFFFFFFFU);
    Scratch::Symbol& left = symbols[static_cast<size_t>(position)];
    // Symbols only grow: the same two ids at the same place are the same pair, anything else is out of date.
    if (left.id != best.left || left.next < 0) continue;
    Scratch::Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (right.id != best.right) continue;
    left.id = find(best.left, best.right)->result;
    left.next = right.next;
    right.id = kGone;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = position;
    if (left.previous >= 0) push(scratch, left.previous);
    push(scratch, position);
  }
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next)
    out.push_back(symbols[static_cast<size_t>(i)].id);
}

}  // namespace spark::text
