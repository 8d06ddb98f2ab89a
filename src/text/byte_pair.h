// Byte-pair merging of one word: from its bytes' tokens, the pair with the best rank is joined until none is
// left; of equal pairs the leftmost goes first. O(n log n) for a word of n bytes.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "text/encode_bounds.h"

namespace spark::text {

struct Merge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t result = 0;
};

class BytePairEncoder {
 public:
  // Working memory of one caller at a time, kept between words: the merge queue and a cache of recent words.
  class Scratch {
   public:
    Scratch();
    // While it points somewhere, and that is true, encode_word throws EncodingStopped.
    const std::atomic<bool>* stop = nullptr;

   private:
    friend class BytePairEncoder;
    void check_stop() const;
    struct Symbol {
      int32_t id;
      int32_t previous;
      int32_t next;
    };
    struct Candidate {
      uint64_t order;  // rank, then position: smaller goes first
      int32_t left;
      int32_t right;
    };
    struct CachedWord {
      static constexpr size_t kMaxBytes = 26;
      static constexpr size_t kMaxIds = 8;
      uint32_t hash = 0;
      uint8_t length = 0;  // 0: empty slot
      uint8_t ids = 0;
      std::array<char, kMaxBytes> word{};
      std::array<int32_t, kMaxIds> id{};
    };
    static constexpr size_t kCacheBits = 14;

    std::vector<Symbol> symbols_;
    std::vector<Candidate> queue_;
    std::vector<CachedWord> cache_;
  };

  // `merges` in order of rank; `byte_ids` are the tokens of the 256 bytes. No pair may stand twice.
  BytePairEncoder(const std::array<int32_t, 256>& byte_ids, std::span<const Merge> merges);

  void encode_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;

 private:
  struct Slot {
    uint64_t pair = kNoPair;
    uint32_t rank = 0;
    int32_t result = 0;
  };
  static constexpr uint64_t kNoPair = UINT64_MAX;

  static uint64_t pair_key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t home_of(uint64_t pair) const {
    return (pair * 0x9E3779B97F4A7C15U ^ pair >> 29) * 0xBF58476D1CE4E5B9U >> shift_;
  }
  const Slot* find(int32_t left, int32_t right) const;
  void push(Scratch& scratch, int32_t position) const;
  void merge(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<Slot> slots_;
  unsigned shift_ = 0;
};

}  // namespace spark::text
