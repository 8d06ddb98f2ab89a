#include "model/engram.h"

#include <limits>

#include "model/engram_primes.h"
#include "model/numpy_random.h"

namespace spark::model {

std::vector<int64_t> engram_multipliers(int64_t layer, int64_t compressed_vocab_size,
                                        int64_t max_ngram_size) {
  constexpr int64_t kSeedStride = 10007;
  NumpyGenerator generator(static_cast<uint32_t>(kSeedStride * layer));
  const int64_t bound = std::numeric_limits<int64_t>::max() / compressed_vocab_size / 2;
  std::vector<int64_t> multipliers;
  for (int64_t shift = 0; shift < max_ngram_size; ++shift) {
    multipliers.push_back(2 * static_cast<int64_t>(generator.below(static_cast<uint64_t>(bound))) + 1);
  }
  return multipliers;
}

EngramHash::EngramHash(const ModelConfig& config, int32_t pad_class)
    : shifts_(config.engram_max_ngram_size),
      heads_(config.engram_n_heads),
      columns_(config.engram_columns()),
      pad_class_(pad_class) {
  SPARK_CHECK(pad_class >= 0 && pad_class < config.engram_compressed_vocab_size);
  const EngramPrimes primes = engram_primes(config);
  for (size_t i = 0; i < primes.size(); ++i) {
    Table& table = tables_.emplace_back();
    table.multipliers =
        engram_multipliers(config.engram_layer_ids[i], config.engram_compressed_vocab_size, shifts_);
    for (const auto& order : primes[i]) {
      for (const int64_t prime : order) {
        table.primes.push_back(prime);
        table.offsets.push_back(table.rows);
        table.rows += prime;
      }
    }
  }
}

void EngramHash::row_ids(int64_t table_index, std::span<const int32_t> classes,
                         std::span<int64_t> ids) const {
  SPARK_CHECK(!classes.empty() && static_cast<int64_t>(ids.size()) == columns_);
  const Table& table = tables_[static_cast<size_t>(table_index)];
  bool blocked = false;  // sticky: nothing beyond the first gap is seen
  int64_t hash = 0;
  size_t column = 0;
  for (size_t shift = 0; shift < static_cast<size_t>(shifts_); ++shift) {
    blocked = blocked || shift >= classes.size() || classes[classes.size() - 1 - shift] == kDeadToken;
    const int64_t value = blocked ? pad_class_ : classes[classes.size() - 1 - shift];
    hash ^= value * table.multipliers[shift];
    if (shift == 0) continue;  // orders start at pairs
    for (int64_t head = 0; head < heads_; ++head, ++column) {
      ids[column] = hash % table.primes[column] + table.offsets[column];
    }
  }
}

}  // namespace spark::model
