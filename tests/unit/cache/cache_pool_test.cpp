#include "engine/cache/cache_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "common/error.h"
#include "engine/kernels/reference/reference_backend.h"

namespace spark::engine {
namespace {

CacheShape shape(int32_t sequences, int32_t context, int32_t step_rows) {
  return {.limits = {.max_sequences = sequences, .max_context = context, .max_step_rows = step_rows},
          .window = 128,
          .window_layers = 3,
          .drafter_layers = 1,
          .width = 64,
          .key_width = 32,
          .sources = {{.layer = 2, .ratio = 2}, {.layer = 5, .ratio = 1}}};
}

int32_t used(const CachePool& pool, CacheGroup group) {
  return pool.usage().of(group).in_use;
}

class CachePoolTest : public testing::Test {
 protected:
  CachePool make(int32_t sequences, int32_t context, int32_t step_rows) {
    return CachePool(*backend_, shape(sequences, context, step_rows));
  }
  int32_t block_of(const PagedCache& cache, int32_t sequence, int32_t place) {
    int32_t block = 0;
    backend_->download(&block, cache.block_table + sequence * cache.table_stride + place, sizeof(block));
    return block;
  }

  std::unique_ptr<Backend> backend_ = make_reference_backend();
};

TEST_F(CachePoolTest, BlocksFollowTheSequence) {
  CachePool pool = make(2, 2048, 300);
  pool.open(0);
  EXPECT_EQ(used(pool, CacheGroup::kMain), 0);
  pool.append(0, 0, 250);
  EXPECT_EQ(used(pool, CacheGroup::kMain), 1);
  pool.append(0, 250, 7);
  EXPECT_EQ(used(pool, CacheGroup::kMain), 2);
  EXPECT_EQ(used(pool, CacheGroup::kWindow), 2);
  pool.append(0, 250, 1);  // a cut back gives the second block back
  EXPECT_EQ(pool.length(0), 251);
  EXPECT_EQ(used(pool, CacheGroup::kMain), 1);
  EXPECT_EQ(used(pool, CacheGroup::kWindow), 1);
  pool.close(0);
  EXPECT_EQ(used(pool, CacheGroup::kMain), 0);
  EXPECT_EQ(used(pool, CacheGroup::kWindow), 0);
  EXPECT_EQ(pool.usage().bytes_in_use, 0u);
}

TEST_F(CachePoolTest, WindowBlocksThatPassedAreFreed) {
  CachePool pool = make(1, 4096, 300);
  pool.open(0);
  for (int32_t p = 0; p < 4000; p += 200) {
    pool.append(0, p, 200);
    pool.commit(0);
    // The window and what may be cut back, across the border of a block at most once.
    EXPECT_LE(used(pool, CacheGroup::kWindow), 2) << p;
    EXPECT_EQ(used(pool, CacheGroup::kMain), (p + 200 + 255) / 256);
  }
  // The furthest cut still finds its window.
  pool.append(0, pool.lowest_restart(0), 1);
  pool.upload_tables();
  const PagedCache window = pool.window(0);
  for (int32_t p = pool.length(0) - shape(1, 1, 1).window; p < pool.length(0); ++p) {
    EXPECT_GE(block_of(window, 0, p / kCacheBlockTokens), 0);
  }
  EXPECT_EQ(block_of(window, 0, 0), -1);
}

TEST_F(CachePoolTest, BytesAreWhatTheRecordsNeed) {
  CachePool pool = make(1, 512, 64);
  pool.open(0);
  pool.append(0, 0, 1);
  const uint64_t window = 256u * 4 * (64 + 2);
  const uint64_t global = 128u * (32 + 4) + 128u * (16 + 1) + 256u * (32 + 4) + 256u * (16 + 1);
  EXPECT_EQ(pool.usage().bytes_in_use, window + global);
  EXPECT_GT(pool.usage().bytes, pool.usage().bytes_in_use);
  EXPECT_EQ(pool.main(2).records_per_block, 128);
  EXPECT_EQ(pool.keys(5).records_per_block, 256);
  EXPECT_NE(pool.pair_state(2), nullptr);
  EXPECT_EQ(pool.pair_state(5), nullptr);
}

// Random growth, cuts, restarts and closings: tables never share a block, accounting stays exact, and the
// sizes chosen from the limits always suffice.
TEST_F(CachePoolTest, RandomTraffic) {
  constexpr int32_t kSequences = 5, kContext = 3000, kStep = 700;
  CachePool pool = make(kSequences, kContext, kStep);
  std::mt19937 random(7);
  const auto pick = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  for (int32_t round = 0; round < 2000; ++round) {
    int32_t rows_left = kStep;
    std::vector<int32_t> touched;
    for (int32_t s = 0; s < kSequences; ++s) {
      if (!pool.is_open(s)) {
        pool.open(s);
      } else if (pick(0, 30) == 0) {
        pool.close(s);
        continue;
      }
      const int32_t begin = pick(0, 40) == 0 ? 0 : pick(pool.lowest_restart(s), pool.length(s));
      const int32_t rows = std::min({pick(0, pick(0, 3) == 0 ? kStep : 8), rows_left, kContext - begin});
      pool.append(s, begin, rows);
      rows_left -= rows;
      touched.push_back(s);
    }
    pool.upload_tables();
    pool.check_accounting();
    std::set<int32_t> window_blocks, global_blocks;
    int32_t window_count = 0, global_count = 0;
    for (int32_t s = 0; s < kSequences; ++s) {
      for (int32_t place = 0; place < pool.window(0).table_stride; ++place) {
        const int32_t window = block_of(pool.window(0), s, place);
        const int32_t global = block_of(pool.main(2), s, place);
        if (window >= 0) {
          window_blocks.insert(window);
          ++window_count;
        }
        if (global >= 0) {
          global_blocks.insert(global);
          ++global_count;
        }
        const bool within = pool.is_open(s) && place * kCacheBlockTokens < pool.length(s);
        EXPECT_EQ(global >= 0, within);
        if (!within) {
          EXPECT_EQ(window, -1);
        }
      }
    }
    EXPECT_EQ(static_cast<int32_t>(window_blocks.size()), window_count);
    EXPECT_EQ(static_cast<int32_t>(global_blocks.size()), global_count);
    EXPECT_EQ(used(pool, CacheGroup::kWindow), window_count);
    EXPECT_EQ(used(pool, CacheGroup::kMain), global_count);
    for (const int32_t s : touched) pool.commit(s);
  }
}

}  // namespace
}  // namespace spark::engine
