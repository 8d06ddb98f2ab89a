// Prefix caching against a ledger: every record that a row writes is noted with the text it stands for, and a
// sequence must find, wherever it reads, the records of its own text.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "common/error.h"
#include "engine/cache/cache_pool.h"
#include "engine/kernels/reference/reference_backend.h"

namespace spark::engine {
namespace {

using Text = std::vector<int64_t>;

uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

CacheShape small_shape(const CacheLimits& limits, int32_t window = 128) {
  return {.limits = limits,
          .window = window,
          .window_layers = 2,
          .drafter_layers = 1,
          .width = 32,
          .key_width = 32,
          .sources = {{.layer = 2, .ratio = 2}, {.layer = 5, .ratio = 1}}};
}

// A pool and what its blocks would hold.
class Ledger {
 public:
  explicit Ledger(const CacheShape& shape)
      : backend_(make_reference_backend()),
        pool_(*backend_, shape),
        texts_(slots(shape)),
        tags_(slots(shape)),
        salts_(slots(shape)) {}

  CachePool& pool() { return pool_; }
  const Text& text(int32_t s) const { return texts_[static_cast<size_t>(s)]; }

  int32_t open(int32_t s, const Text& known, uint64_t salt = 0) {
    const int32_t hit =
        pool_.open(s, {.contents = known, .most = static_cast<int32_t>(known.size()) - 1, .salt = salt});
    EXPECT_EQ(hit % kCacheBlockTokens, 0);
    EXPECT_LT(hit, static_cast<int32_t>(known.size()));
    salts_[static_cast<size_t>(s)] = salt;
    set_text(s, 0, {known.begin(), known.begin() + hit});
    check_readable(s, hit);
    return hit;
  }
  void close(int32_t s) { pool_.close(s); }

  // A step of one sequence; without `finishes` its rows are lost.
  void run(int32_t s, int32_t begin, const Text& rows, bool finishes = true) {
    pool_.append(s, begin, static_cast<int32_t>(rows.size()), 0, rows);
    set_text(s, static_cast<size_t>(begin), {});
    pool_.upload_tables();
    check_readable(s, begin);
    if (finishes) {
      set_text(s, static_cast<size_t>(begin), rows);
      for (int32_t p = begin; p < pool_.length(s); ++p) write(s, p);
    }
    if (finishes) {
      pool_.commit(s);
    } else {
      pool_.append(s, begin, 0);
    }
  }

 private:
  static size_t slots(const CacheShape& shape) { return static_cast<size_t>(shape.limits.max_sequences); }

  PagedCache cache(CacheGroup group) const {
    switch (group) {
      case CacheGroup::kWindow:
        return pool_.window(0);
      case CacheGroup::kDrafter:
        return pool_.window(2);
      case CacheGroup::kMain:
        return pool_.main(5);
      case CacheGroup::kKeys:
        return pool_.keys(5);
    }
    throw std::logic_error("group");
  }
  int32_t block_of(CacheGroup group, int32_t s, int32_t position) const {
    const PagedCache paged = cache(group);
    return paged.block_table[s * paged.table_stride + position / kCacheBlockTokens];  // host memory here
  }
  // Names the text up to this position.
  uint64_t tag(int32_t s, int32_t position) const {
    return tags_[static_cast<size_t>(s)][static_cast<size_t>(position)];
  }
  void set_text(int32_t s, size_t keep, const Text& more) {
    Text& text = texts_[static_cast<size_t>(s)];
    std::vector<uint64_t>& tags = tags_[static_cast<size_t>(s)];
    text.resize(keep);
    tags.resize(keep);
    for (const int64_t content : more) {
      const uint64_t before = tags.empty() ? salts_[static_cast<size_t>(s)] + 99 : tags.back();
      text.push_back(content);
      tags.push_back(mixed(before * 31 + static_cast<uint64_t>(content)));
    }
  }
  void write(int32_t s, int32_t position) {
    for (size_t g = 0; g < kCacheGroups; ++g) {
      const auto group = static_cast<CacheGroup>(g);
      const int32_t block = block_of(group, s, position);
      ASSERT_GE(block, 0);
      store_[{g, block, position % kCacheBlockTokens}] = tag(s, position);
    }
  }
  // What a row at `begin` reads: every whole record before it, and the window's.
  void check_readable(int32_t s, int32_t begin) {
    pool_.upload_tables();
    for (size_t g = 0; g < kCacheGroups; ++g) {
      const auto group = static_cast<CacheGroup>(g);
      const bool whole = group == CacheGroup::kMain || group == CacheGroup::kKeys;
      int32_t position = whole ? 0 : std::max(0, begin - pool_.shape().window + 1);
      // Every record would take long: the ends of each block, and the last ones.
      for (; position < begin;
           position += position % kCacheBlockTokens == 0 && position + 255 < begin ? 255 : 1) {
        const int32_t block = block_of(group, s, position);
        ASSERT_GE(block, 0) << name(group) << " at " << position << " of " << begin;
        const auto found = store_.find({g, block, position % kCacheBlockTokens});
        ASSERT_TRUE(found != store_.end()) << name(group) << " at " << position;
        ASSERT_EQ(found->second, tag(s, position)) << name(group) << " at " << position << " of " << begin;
      }
    }
  }

  std::unique_ptr<Backend> backend_;
  CachePool pool_;
  std::vector<Text> texts_;
  std::vector<std::vector<uint64_t>> tags_;  // of the text up to each position
  std::vector<uint64_t> salts_;
  std::map<std::tuple<size_t, int32_t, int32_t>, uint64_t> store_;
};

Text text_of(int32_t length, int64_t first = 1) {
  Text text;
  for (int32_t i = 0; i < length; ++i) text.push_back(first + i % 7 + i / 50);
  return text;
}
Text slice(const Text& text, int32_t begin, int32_t end) {
  return {text.begin() + begin, text.begin() + end};
}

TEST(PrefixCaching, TakesUpWhatAnotherComputed) {
  Ledger ledger(small_shape({.max_sequences = 2, .max_context = 4096, .prefix_caching = true}));
  const Text text = text_of(1300);
  EXPECT_EQ(ledger.open(0, text), 0);
  ledger.run(0, 0, slice(text, 0, 512));
  ledger.run(0, 512, slice(text, 512, 1300));
  // While the first still runs: its blocks are shared. 1280 is the last border before the prompt's end, and a
  // checkpoint, but within reach of a cut; 1024 is a multiple of the retention.
  EXPECT_EQ(ledger.open(1, text), 1024);
  EXPECT_EQ(ledger.pool().usage().of(CacheGroup::kMain).in_use, 6);
  ledger.run(1, 1024, slice(text, 1024, 1300));
  ledger.close(1);
  ledger.close(0);
  for (const CacheGroupUsage& group : ledger.pool().usage().groups) EXPECT_EQ(group.in_use, 0);
  EXPECT_EQ(ledger.pool().usage().of(CacheGroup::kMain).idle, 5);
  ledger.pool().check_accounting();

  EXPECT_EQ(ledger.open(0, text), 1280);
  ledger.close(0);
  // One token must be left to compute.
  EXPECT_EQ(ledger.open(0, slice(text, 0, 1280)), 1024);
  ledger.close(0);
  Text other = text;
  other[700] = 12345;
  EXPECT_EQ(ledger.open(0, other), 512);
  ledger.close(0);
  other = text;
  other[0] = 12345;
  EXPECT_EQ(ledger.open(0, other), 0);
  ledger.close(0);
  EXPECT_EQ(ledger.open(0, text, 7), 0) << "another salt";
  ledger.close(0);
}

TEST(PrefixCaching, OffByDefault) {
  Ledger ledger(small_shape({.max_sequences = 1, .max_context = 2048}));
  const Text text = text_of(600);
  EXPECT_EQ(ledger.open(0, text), 0);
  ledger.run(0, 0, text);
  ledger.close(0);
  EXPECT_EQ(ledger.open(0, text), 0);
  EXPECT_EQ(ledger.pool().cached_prefixes(), 0u);
}

TEST(PrefixCaching, NothingThatDidNotRunIsKept) {
  Ledger ledger(small_shape({.max_sequences = 1, .max_context = 2048, .prefix_caching = true}));
  const Text text = text_of(600);
  ledger.open(0, text);
  ledger.run(0, 0, slice(text, 0, 300));
  ledger.pool().append(0, 300, 300, 0, slice(text, 300, 600));  // and the step never comes to its end
  ledger.close(0);
  EXPECT_EQ(ledger.pool().cached_prefixes(), 1u);
  EXPECT_EQ(ledger.open(0, text), 256);
}

TEST(PrefixCaching, RestartWritesIntoFreshBlocks) {
  Ledger ledger(small_shape({.max_sequences = 2, .max_context = 2048, .prefix_caching = true}));
  const Text text = text_of(800);
  ledger.open(0, text);
  ledger.run(0, 0, text);
  ledger.run(0, 0, text_of(800, 1000));
  EXPECT_EQ(ledger.open(1, text), 768);
  ledger.close(0);
  ledger.close(1);
  EXPECT_EQ(ledger.open(0, text_of(800, 1000)), 768);
}

TEST(PrefixCaching, GivesUpTheLeastRecentlyUsedLeafFirst) {
  // Eight blocks beside the windows.
  const CacheLimits limits = {
      .max_sequences = 1, .max_context = 2048, .prefix_caching = true, .retention = 256};
  Ledger ledger(small_shape(limits));
  const auto run_once = [&](const Text& text) {
    const int32_t hit = ledger.open(0, text);
    ledger.run(0, hit, slice(text, hit, static_cast<int32_t>(text.size())));
    ledger.close(0);
    return hit;
  };
  Text a = text_of(600, 1), b = text_of(600, 1000), c = text_of(1100, 2000);
  EXPECT_EQ(run_once(a), 0);
  EXPECT_EQ(run_once(b), 0);
  EXPECT_EQ(run_once(a), 512);
  EXPECT_EQ(run_once(c), 0);  // five places; four free, so b's end has to go
  EXPECT_EQ(run_once(slice(a, 0, 300)), 256);
  EXPECT_EQ(run_once(a), 512);
  ledger.pool().check_accounting();
}

TEST(PrefixCaching, RoomCountsWhatCanBeGivenUp) {
  const CacheLimits limits = {.max_sequences = 2, .max_context = 2048, .prefix_caching = true};
  CacheShape shape = small_shape(limits);
  // Five blocks for both.
  const auto backend = make_reference_backend();
  const uint64_t everything = CachePool(*backend, shape).usage().bytes;
  shape.limits.budget_bytes = static_cast<int64_t>(everything) / 2;
  Ledger ledger(shape);
  const int32_t blocks = ledger.pool().usage().of(CacheGroup::kMain).blocks;
  ASSERT_GE(blocks, 3);
  ASSERT_LE(blocks, 15);
  const int32_t most = std::min(blocks * kCacheBlockTokens, 2048);
  EXPECT_EQ(ledger.pool().longest_sequence(), most);
  EXPECT_LE(ledger.pool().usage().bytes, everything / 2);
  const auto room = [&](std::vector<int32_t> slots, std::vector<int32_t> lengths) {
    return ledger.pool().has_room(slots, lengths);
  };
  const int32_t all = blocks * kCacheBlockTokens;
  EXPECT_TRUE(room({0, 1}, {all - 256, 256}));
  EXPECT_FALSE(room({0, 1}, {all - 256, 257}));
  const Text text = text_of(700);
  ledger.open(0, text);
  ledger.run(0, 0, text);
  EXPECT_TRUE(room({1}, {all - 768}));
  EXPECT_FALSE(room({1}, {all - 767}));
  EXPECT_TRUE(room({0, 1}, {768, all - 768}));
  EXPECT_FALSE(room({0, 1}, {769, all - 768}));
  ledger.close(0);
  EXPECT_EQ(ledger.pool().usage().of(CacheGroup::kMain).idle, 2);
  EXPECT_TRUE(room({0, 1}, {all - 256, 256}));
}

TEST(PrefixCaching, TheSmallestBudgetIsSaid) {
  CacheShape shape = small_shape({.max_sequences = 2, .max_context = 2048, .budget_bytes = 1000});
  const auto backend = make_reference_backend();
  std::string hint;
  try {
    CachePool pool(*backend, shape);
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    hint = error.hint();
  }
  const size_t digit = hint.find_first_of("0123456789");
  ASSERT_NE(digit, std::string::npos) << hint;
  shape.limits.budget_bytes = std::stoll(hint.substr(digit));
  const CachePool pool(*backend, shape);
  EXPECT_EQ(pool.usage().of(CacheGroup::kMain).blocks, 1);
  EXPECT_EQ(pool.usage().bytes, static_cast<uint64_t>(shape.limits.budget_bytes));
  --shape.limits.budget_bytes;
  EXPECT_THROW(CachePool(*backend, shape), Error);
}

// Texts that branch from one another, cuts, restarts, lost steps, closings, a cache much smaller than the
// traffic.
TEST(PrefixCaching, RandomTraffic) {
  int64_t hits = 0, opened = 0;
  for (const int32_t window : {128, 17, 400}) {
    constexpr int32_t kSequences = 3, kContext = 2048;
    CacheShape shape = small_shape({.max_sequences = kSequences,
                                    .max_context = kContext,
                                    .max_step_rows = 600,
                                    .prefix_caching = true,
                                    .retention = window == 17 ? 256 : 512},
                                   window);
    const auto backend = make_reference_backend();
    shape.limits.budget_bytes = static_cast<int64_t>(CachePool(*backend, shape).usage().bytes) * 6 / 10;
    Ledger ledger(shape);
    std::mt19937 random(static_cast<unsigned>(window));
    const auto pick = [&](int32_t low, int32_t high) {
      return std::uniform_int_distribution<int32_t>(low, high)(random);
    };
    std::vector<Text> library = {text_of(1500, 1)};
    std::vector<Text> known(kSequences);
    CachePool& pool = ledger.pool();
    for (int32_t round = 0; round < 1500; ++round) {
      const int32_t s = pick(0, kSequences - 1);
      if (!pool.is_open(s)) {
        // A text that was there, up to somewhere, and then something new.
        Text text = library[static_cast<size_t>(pick(0, static_cast<int32_t>(library.size()) - 1))];
        text.resize(static_cast<size_t>(pick(1, static_cast<int32_t>(text.size()))));
        const int32_t more = pick(0, 1) == 0 ? 0 : pick(1, kContext - 1 - static_cast<int32_t>(text.size()));
        for (int32_t i = 0; i < more; ++i) text.push_back(pick(0, 3));
        if (library.size() < 12) library.push_back(text);
        hits += ledger.open(s, text, static_cast<uint64_t>(pick(0, 9) == 0)) > 0;
        ++opened;
        known[static_cast<size_t>(s)] = text;
        continue;
      }
      const auto left = static_cast<int32_t>(known[static_cast<size_t>(s)].size()) - pool.length(s);
      if (pick(0, 8) == 0) {
        ledger.close(s);
      } else {
        // On with the known text, or something of its own from a place that may be cut.
        const bool on = left > 0 && pick(0, 4) > 0;
        const int32_t begin = on                 ? pool.length(s)
                              : pick(0, 20) == 0 ? 0
                                                 : pick(pool.lowest_restart(s), pool.length(s));
        const int32_t rows =
            std::min({pick(1, pick(0, 2) == 0 ? 600 : 40), kContext - begin, on ? left : 600});
        Text text;
        for (int32_t i = 0; i < rows; ++i) {
          text.push_back(on ? known[static_cast<size_t>(s)][static_cast<size_t>(begin + i)] : pick(0, 3));
        }
        if (!on) known[static_cast<size_t>(s)].clear();
        const bool room = pool.has_room(std::vector{s}, std::vector{begin + rows});
        if (room) {
          ledger.run(s, begin, text, pick(0, 9) > 0);
        } else if (begin > 0) {
          EXPECT_THROW(ledger.run(s, begin, text), Error);
          ledger.close(s);
        }
      }
      if (HasFatalFailure()) return;
      pool.check_accounting();
    }
    for (int32_t s = 0; s < kSequences; ++s) {
      if (pool.is_open(s)) ledger.close(s);
    }
    pool.check_accounting();
    EXPECT_EQ(pool.usage().bytes_in_use, 0u);
  }
  EXPECT_GE(hits, 40) << "of " << opened;
}

}  // namespace
}  // namespace spark::engine
