// Engram addressing: which table rows a token reads, from the n-grams that end at it.
//
//   const EngramHash hash(config, token_map[config.engram_pad_token_id]);
//   std::vector<int64_t> ids(hash.columns());
//   hash.row_ids(0, compressed, ids);        // Engram table 0, the position of the last entry of
//   `compressed`
//
// Token ids are first collapsed to classes (0 .. engram_compressed_vocab_size - 1) by the tokenizer's token
// map; the positions of an image span are kDeadToken. A look-back stops at the start of the sequence and at
// the first dead position, and everything beyond counts as the pad class: the n-gram never reaches across.
// With t_s the class s positions back and m_s the layer's multipliers, order n hashes to t_0 m_0 xor ... xor
// t_(n-1) m_(n-1), and column (n - 2) * heads + head is that value modulo the column's prime, plus the
// column's offset. Source: DeepSeek V4.1 Flash technical report, section 2.4.2.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"

namespace spark::model {

inline constexpr int32_t kDeadToken = -1;

// Hash multipliers of one layer, one per look-back shift: odd, and small enough that class times multiplier
// fits 63 bits. 2 v + 1 with v drawn by numpy's default generator seeded with 10007 * layer.
std::vector<int64_t> engram_multipliers(int64_t layer, int64_t compressed_vocab_size, int64_t max_ngram_size);

class EngramHash {
 public:
  // `pad_class` is the token map's value for engram_pad_token_id.
  EngramHash(const ModelConfig& config, int32_t pad_class);

  int64_t tables() const { return static_cast<int64_t>(tables_.size()); }
  int64_t columns() const { return columns_; }   // rows read per token and table
  int64_t look_back() const { return shifts_; }  // entries of `classes` that matter, the current one included
  int64_t rows(int64_t table) const { return tables_[static_cast<size_t>(table)].rows; }

  // Row ids of the last position of `classes` (its history up to itself; older entries than look_back() are
  // ignored, fewer mean the sequence starts there). `ids` takes columns() values in 0 .. rows(table) - 1.
  void row_ids(int64_t table, std::span<const int32_t> classes, std::span<int64_t> ids) const;

 private:
  struct Table {
    std::vector<int64_t> multipliers;  // [shift]
    std::vector<int64_t> primes;       // [column]
    std::vector<int64_t> offsets;      // [column], running sum of the primes
    int64_t rows = 0;
  };

  std::vector<Table> tables_;
  int64_t shifts_ = 0;
  int64_t heads_ = 0;
  int64_t columns_ = 0;
  int32_t pad_class_ = 0;
};

}  // namespace spark::model
