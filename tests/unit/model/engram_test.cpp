#include "model/engram.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/file.h"
#include "model/engram_primes.h"
#include "unit/model/published_config.h"

namespace spark::model {
namespace {

Json golden(const std::string& name) {
  const std::string path = std::string(SPARK_TEST_DATA) + "/golden/" + name;
  return parse_json(read_file(path), path);
}

// Only the Engram fields of the golden tiny checkpoint.
ModelConfig tiny_config() {
  ModelConfig config;
  config.engram_layer_ids = {1, 4};
  config.engram_max_ngram_size = 4;
  config.engram_vocab_size = 101;
  config.engram_n_heads = 2;
  config.engram_head_dim = 64;
  config.engram_compressed_vocab_size = 553;
  return config;
}

std::vector<int64_t> ids_of(const EngramHash& hash, int64_t table, const std::vector<int32_t>& classes) {
  std::vector<int64_t> ids(static_cast<size_t>(hash.columns()));
  hash.row_ids(table, classes, ids);
  return ids;
}

using Ids = std::vector<int64_t>;

Ids first_three(const Ids& ids) {
  return {ids.begin(), ids.begin() + 3};
}

TEST(Primes, AgreeWithTrialDivision) {
  std::vector<bool> composite(100000, false);
  for (size_t n = 2; n < composite.size(); ++n) {
    for (size_t m = 2 * n; !composite[n] && m < composite.size(); m += n) composite[m] = true;
    ASSERT_EQ(is_prime(static_cast<int64_t>(n)), !composite[n]) << n;
  }
  EXPECT_FALSE(is_prime(0));
  EXPECT_FALSE(is_prime(1));
  EXPECT_TRUE(is_prime(2147483647));
  EXPECT_FALSE(is_prime(2147483647 - 2));
  EXPECT_FALSE(is_prime(int64_t{46337} * 46337));
}

TEST(EngramMultipliers, FollowNumpysGenerator) {
  const Json cases = golden("engram.json")["multiplier_derivation"];
  ASSERT_GE(cases.size(), 48u);
  for (const Json& one : cases) {
    EXPECT_EQ(engram_multipliers(one["layer"], one["compressed_vocab_size"], 4),
              one["multipliers"].get<Ids>())
        << one.dump();
  }
}

TEST(EngramPrimes, ReproduceBothCheckpoints) {
  const Json data = golden("engram.json");
  EXPECT_EQ(engram_primes(published_config()), data["real"]["primes"].get<EngramPrimes>());
  EXPECT_EQ(engram_primes(tiny_config()), data["tiny"]["primes"].get<EngramPrimes>());
  const EngramHash real(published_config(), 2);
  EXPECT_EQ(real.rows(0), 384006168);
  EXPECT_EQ(real.rows(1), 384016682);
  const EngramHash tiny(tiny_config(), 2);
  EXPECT_EQ(tiny.rows(0), 660);
  EXPECT_EQ(tiny.rows(1), 864);
}

TEST(EngramHash, ReproducesThePublishedVectors) {
  const EngramHash hash(published_config(), 2);
  EXPECT_EQ(ids_of(hash, 0, {10, 20, 30, 40, 50}),
            (Ids{5457301,   26470289,  42926785,  62582378,  68079542,  85915763,  102834638, 114358063,
                 130605657, 156377119, 174550172, 181396638, 194477994, 217026077, 226856678, 250510400,
                 261515048, 274655344, 296704228, 307730068, 331081547, 342108941, 363969460, 377395685}));
  EXPECT_EQ(ids_of(hash, 1, {10, 20, 30, 40, 50}),
            (Ids{12112771,  17594806,  40177035,  60567362,  78763383,  80843792,  100677074, 126606474,
                 142726201, 145257379, 175637107, 180701399, 198428675, 221226053, 227233095, 255906954,
                 259419700, 284922264, 302986529, 306158514, 323132060, 342210866, 353939203, 380580960}));
  EXPECT_EQ(first_three(ids_of(hash, 0, {10, 20})), (Ids{11440887, 30331972, 33504180}));
  EXPECT_EQ(first_three(ids_of(hash, 0, {10, kDeadToken, 30, 40})), (Ids{1326936, 22120929, 40011923}));
}

TEST(EngramHash, StopsAtTheFirstGapForGood) {
  const EngramHash hash(published_config(), 2);
  EXPECT_EQ(ids_of(hash, 0, {10, kDeadToken, 30, 40}), ids_of(hash, 0, {77, kDeadToken, 30, 40}));
  EXPECT_EQ(ids_of(hash, 0, {30, 40}), ids_of(hash, 0, {2, 2, 30, 40}));
  EXPECT_EQ(ids_of(hash, 0, {99, 98, 97, 10, 20, 30, 40}), ids_of(hash, 0, {10, 20, 30, 40}));
}

void expect_ids(const EngramHash& hash, const std::vector<int32_t>& classes, const Json& expected) {
  ASSERT_EQ(expected.size(), classes.size());
  for (size_t p = 0; p < classes.size(); ++p) {
    const std::vector<int32_t> history(classes.begin(), classes.begin() + static_cast<std::ptrdiff_t>(p) + 1);
    for (int64_t table = 0; table < hash.tables(); ++table) {
      EXPECT_EQ(ids_of(hash, table, history), expected[p][static_cast<size_t>(table)].get<Ids>())
          << "position " << p << ", table " << table;
    }
  }
}

TEST(EngramHash, ReproducesTheGoldenSequences) {
  const Json data = golden("engram_ids.json");
  expect_ids(EngramHash(published_config(), 2), data["real.compressed"], data["real.ids"]);
  const auto map = data["tiny.token_map"].get<std::vector<int32_t>>();
  const EngramHash tiny(tiny_config(), map[2]);
  const auto collapsed = [&](const Json& tokens) {
    std::vector<int32_t> classes;
    for (const Json& token : tokens) classes.push_back(map[token.get<size_t>()]);
    return classes;
  };
  for (const char* n : {"0", "1", "2", "3"}) {
    expect_ids(tiny, collapsed(data[std::string("tiny.tokens") + n]), data[std::string("tiny.ids") + n]);
  }
  std::vector<int32_t> dead = collapsed(data["tiny.dead_tokens"]);
  std::fill(dead.begin() + 12, dead.begin() + 19, kDeadToken);
  expect_ids(tiny, dead, data["tiny.dead_ids"]);
}

}  // namespace
}  // namespace spark::model
