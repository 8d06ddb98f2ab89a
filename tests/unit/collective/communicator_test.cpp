#include <gtest/gtest.h>

#include <random>

#include "engine/collective/collective_dtype.h"
#include "engine/collective/host_communicator.h"
#include "engine/numeric/bf16.h"
#include "unit/collective/ranks_on_threads.h"

namespace spark::engine {
namespace {

std::vector<uint16_t> random_rows(int32_t rank, size_t count) {
  std::mt19937 random(static_cast<uint32_t>(rank) * 1000 + static_cast<uint32_t>(count));
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-12, 12);
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) value = float_to_bf16(std::ldexp(normal(random), exponent(random)));
  return values;
}

std::vector<uint16_t> expected_sum(int32_t ranks, size_t count) {
  std::vector<uint16_t> sum(count);
  std::vector<std::vector<uint16_t>> parts;
  for (int32_t rank = 0; rank < ranks; ++rank) parts.push_back(random_rows(rank, count));
  for (size_t i = 0; i < count; ++i) {
    float total = bf16_to_float(parts[0][i]);
    for (int32_t rank = 1; rank < ranks; ++rank) total += bf16_to_float(parts[static_cast<size_t>(rank)][i]);
    sum[i] = float_to_bf16(total);
  }
  return sum;
}

TEST(HostCommunicator, SumsInRankOrderWithOneRounding) {
  for (const int32_t ranks : {1, 2, 3, 4, 7}) {
    for (const int32_t rows : {1, 3, 50}) {
      const int32_t cols = 130;
      const auto count = static_cast<size_t>(rows * cols);
      const auto expected = ranks == 1 ? random_rows(0, count) : expected_sum(ranks, count);
      // One message per part, slices, and slices where the last ranks have none.
      for (const size_t one_shot : {size_t{1} << 30, size_t{0}}) {
        on_ranks(ranks, [&](Transport& transport) {
          HostCommunicator communicator(transport, one_shot);
          auto x = random_rows(transport.rank(), count);
          communicator.sum_rows(x.data(), rows, cols);
          if (x != expected) throw Error("another sum on rank " + std::to_string(transport.rank()));
        });
      }
    }
  }
}

TEST(HostCommunicator, SumsFewerValuesThanRanks) {
  on_ranks(4, [](Transport& transport) {
    HostCommunicator communicator(transport, 0);
    std::vector<uint16_t> x = {float_to_bf16(static_cast<float>(transport.rank()))};
    communicator.sum_rows(x.data(), 1, 1);
    if (bf16_to_float(x[0]) != 6.0F) throw Error("another sum");
    communicator.sum_rows(x.data(), 0, 1);
  });
}

std::vector<double> random_partials(int32_t rank, size_t count) {
  std::mt19937_64 random(static_cast<uint64_t>(rank) * 7919 + count);
  std::normal_distribution<double> normal;
  std::vector<double> values(count);
  for (double& value : values) value = std::ldexp(normal(random), static_cast<int>(random() % 8));
  return values;
}

// In double, rounded once, whether in one message, in slices or for a rank's own rows.
TEST(HostCommunicator, SumsPartialsInDouble) {
  const int32_t cols = 131;
  for (const int32_t ranks : {1, 2, 3, 4, 7}) {
    for (const int32_t rows : {1, 3, 50}) {
      const auto count = static_cast<size_t>(rows * cols);
      std::vector<double> sum(count, 0.0);
      for (int32_t rank = 0; rank < ranks; ++rank) {
        const auto part = random_partials(rank, count);
        for (size_t i = 0; i < count; ++i) sum[i] += part[i];
      }
      std::vector<uint16_t> expected(count);
      for (size_t i = 0; i < count; ++i) expected[i] = double_to_bf16(sum[i]);
      for (const size_t one_shot : {size_t{1} << 30, size_t{0}}) {
        on_ranks(ranks, [&](Transport& transport) {
          HostCommunicator communicator(transport, one_shot);
          const auto x = random_partials(transport.rank(), count);
          std::vector<uint16_t> y(count, 7);
          communicator.sum_partials({.x = x.data(), .rows = rows, .cols = cols, .y = y.data()});
          if (y != expected) throw Error("another sum on rank " + std::to_string(transport.rank()));
          std::fill(y.begin(), y.end(), uint16_t{7});
          communicator.sum_partials(
              {.x = x.data(), .rows = rows, .cols = cols, .y = y.data(), .own_rows_only = true});
          const RowRange own = own_rows(rows, transport.rank(), ranks);
          for (size_t i = 0; i < count; ++i) {
            const auto row = static_cast<int32_t>(i) / cols;
            const bool is_own = row >= own.first && row < own.first + own.rows;
            if (y[i] != (is_own ? expected[i] : 7)) throw Error("another own row");
          }
        });
      }
      std::vector<uint16_t> alone(count);
      if (ranks == 1) {
        const auto x = random_partials(0, count);
        SoloCommunicator().sum_partials({.x = x.data(), .rows = rows, .cols = cols, .y = alone.data()});
        EXPECT_EQ(alone, expected);
      }
    }
  }
}

// Many columns are rounded together: zeros, middles between two values and their neighbours, what a BF16
// keeps as a subnormal or as infinity, NaN, and any bits.
TEST(HostCommunicator, RoundsEveryDoubleAsOneAlone) {
  std::vector<double> x = {0.0,
                           -0.0,
                           0x1p-126,
                           -0x1.FFp-127,
                           0x1p-133,
                           0x1p-1000,
                           0x1.FEp127,
                           0x1.FFp127,
                           -0x1p300,
                           std::numeric_limits<double>::infinity(),
                           -std::numeric_limits<double>::quiet_NaN()};
  uint64_t state = 7;
  for (uint32_t i = 0; i < 20000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const uint64_t bits = state ^ (state >> 29);
    const auto value = static_cast<double>(bf16_to_float(static_cast<uint16_t>(bits >> 40)));
    const auto next = static_cast<double>(bf16_to_float(static_cast<uint16_t>((bits >> 40) + 1)));
    const double middle = value / 2 + next / 2;
    x.push_back(i % 4 == 0 ? std::bit_cast<double>(bits)
                           : std::nextafter(middle, i % 4 == 1   ? value
                                                    : i % 4 == 2 ? next
                                                                 : middle));
  }
  // Once among others of its kind, once among usual ones, which decides how a stretch of columns is rounded.
  for (const bool usual : {false, true}) {
    std::vector<double> row = x;
    for (size_t i = 0; usual && i < row.size(); ++i) {
      const double size = std::fabs(row[i]);
      if (!(size == 0 || (size > 0x1p-120 && size < 0x1p120))) row[i] = 1.0 + 0x1p-8;
    }
    std::vector<uint16_t> y(row.size());
    add_partials(std::vector<const double*>{row.data()}, 1, 1, std::ssize(row), y.data());
    for (size_t i = 0; i < row.size(); ++i) ASSERT_EQ(y[i], double_to_bf16(row[i])) << row[i];
  }
}

// Each term is rounded once, then their sum in order.
TEST(HostCommunicator, SumsTermsOfPartialsInOrder) {
  const int32_t terms = 4, cols = 33;
  for (const int32_t ranks : {1, 2, 3, 4}) {
    for (const int32_t rows : {1, 2, 9}) {
      const auto values = static_cast<size_t>(rows * terms * cols);
      std::vector<double> sum(values, 0.0);
      for (int32_t rank = 0; rank < ranks; ++rank) {
        const auto part = random_partials(rank, values);
        for (size_t i = 0; i < values; ++i) sum[i] += part[i];
      }
      std::vector<uint16_t> expected(static_cast<size_t>(rows * cols));
      for (size_t i = 0; i < expected.size(); ++i) {
        const size_t row = i / static_cast<size_t>(cols);
        float total = 0;
        for (size_t term = 0; term < static_cast<size_t>(terms); ++term) {
          const size_t at = (row * static_cast<size_t>(terms) + term) * static_cast<size_t>(cols);
          total += bf16_to_float(double_to_bf16(sum[at + i % static_cast<size_t>(cols)]));
        }
        expected[i] = float_to_bf16(total);
      }
      for (const size_t one_shot : {size_t{1} << 30, size_t{0}}) {
        on_ranks(ranks, [&](Transport& transport) {
          HostCommunicator communicator(transport, one_shot);
          const auto x = random_partials(transport.rank(), values);
          std::vector<uint16_t> y(expected.size(), 7);
          communicator.sum_partials(
              {.x = x.data(), .rows = rows, .terms = terms, .cols = cols, .y = y.data()});
          if (y != expected) throw Error("another sum on rank " + std::to_string(transport.rank()));
        });
      }
    }
  }
}

TEST(CollectiveDtype, AutoIsWhatTheBackendCan) {
  using enum CollectiveDtype;
  EXPECT_EQ(resolve(kAuto, true), kFp64);
  EXPECT_EQ(resolve(kAuto, false), kBf16);
  EXPECT_EQ(resolve(kBf16, true), kBf16);
  EXPECT_EQ(resolve(kFp64, true), kFp64);
  EXPECT_THROW(resolve(kFp64, false), Error);
}

// Adding the ranks' values in another order gives other bits: the order is what the test above checks.
TEST(HostCommunicator, OrderShows) {
  const std::vector<uint16_t> big = {float_to_bf16(65536.0F)};
  std::vector<uint16_t> x = {float_to_bf16(1.0F / 1024)};
  std::vector<uint16_t> parts = {big[0], float_to_bf16(-65536.0F)};
  add_in_rank_order(x, parts, 0, 3);
  EXPECT_EQ(bf16_to_float(x[0]), 0.0F);  // (small + big) - big
  x = {float_to_bf16(1.0F / 1024)};
  add_in_rank_order(x, parts, 2, 3);
  EXPECT_EQ(bf16_to_float(x[0]), 1.0F / 1024);  // (big - big) + small
}

TEST(HostCommunicator, GathersColumnsAndDropsPadding) {
  for (const bool first_only : {false, true}) {
    on_ranks(3, [&](Transport& transport) {
      HostCommunicator communicator(transport);
      const int32_t rows = 5, part_cols = 4, all_cols = 10;  // 2 of the last rank's are padding
      std::vector<float> part;
      for (int32_t r = 0; r < rows; ++r) {
        for (int32_t c = 0; c < part_cols; ++c) {
          part.push_back(static_cast<float>(r * 100 + transport.rank() * part_cols + c));
        }
      }
      std::vector<float> all(static_cast<size_t>(rows * all_cols), -1.0F);
      communicator.gather_columns({.part = part.data(),
                                   .rows = rows,
                                   .part_cols = part_cols,
                                   .all_cols = all_cols,
                                   .element_bytes = 4,
                                   .all = all.data(),
                                   .first_rank_only = first_only});
      for (int32_t r = 0; r < rows; ++r) {
        for (int32_t c = 0; c < all_cols; ++c) {
          const float expected =
              first_only && transport.rank() != 0 ? -1.0F : static_cast<float>(r * 100 + c);
          if (all[static_cast<size_t>(r * all_cols + c)] != expected) throw Error("another column");
        }
      }
    });
  }
}

TEST(HostCommunicator, SpreadRowsAreSummedAndJoinedAsWholeOnesAre) {
  for (const int32_t ranks : {2, 3, 4}) {
    for (const int32_t rows : {1, 2, 7, 64}) {
      const int32_t cols = 33;
      const auto count = static_cast<size_t>(rows * cols);
      const auto expected = expected_sum(ranks, count);
      on_ranks(ranks, [&](Transport& transport) {
        HostCommunicator communicator(transport);
        auto x = random_rows(transport.rank(), count);
        const auto before = x;
        communicator.sum_own_rows(x.data(), rows, cols);
        const RowRange own = own_rows(rows, transport.rank(), ranks);
        for (size_t i = 0; i < count; ++i) {
          const auto row = static_cast<int32_t>(i / static_cast<size_t>(cols));
          const bool is_own = row >= own.first && row < own.first + own.rows;
          if (x[i] != (is_own ? expected : before)[i]) throw Error("another row");
        }
        std::vector<uint8_t> small(static_cast<size_t>(rows) * 3);
        for (int32_t i = own.first * 3; i < (own.first + own.rows) * 3; ++i) {
          small[static_cast<size_t>(i)] = static_cast<uint8_t>(i);
        }
        const SpreadRows arrays[] = {{x.data(), cols * 2}, {small.data(), 3}};
        communicator.gather_rows(arrays, rows);
        if (x != expected) throw Error("rows were not joined");
        for (size_t i = 0; i < small.size(); ++i) {
          if (small[i] != static_cast<uint8_t>(i)) throw Error("bytes were not joined");
        }
      });
    }
  }
}

TEST(OwnRows, CoverAllRowsInOrder) {
  for (int32_t ranks = 1; ranks <= 8; ++ranks) {
    for (int32_t rows = 0; rows < 40; ++rows) {
      int32_t next = 0;
      for (int32_t rank = 0; rank < ranks; ++rank) {
        const RowRange own = own_rows(rows, rank, ranks);
        EXPECT_EQ(own.first, next);
        EXPECT_GE(own.rows, 0);
        next += own.rows;
      }
      EXPECT_EQ(next, rows);
    }
  }
}

TEST(HostCommunicator, MeetingTellsAllWhoCannotGoOn) {
  on_ranks(3, [](Transport& transport) {
    HostCommunicator communicator(transport);
    if (!communicator.meet({}).empty()) throw Error("nobody had failed");
    const std::string said = communicator.meet(transport.rank() == 1 ? "the disk broke" : "");
    if (said.find("the disk broke") == std::string::npos) throw Error("nobody was told");
    if (communicator.meet(std::string(10000, 'x')).empty()) throw Error("a long failure was lost");
  });
}

TEST(HostCommunicator, MeetingFindsRanksThatWereToldOtherThings) {
  const std::vector<uint8_t> call = {1, 2, 3};
  const std::vector<uint8_t> other = {1, 2, 4};
  on_ranks(2, [&](Transport& transport) {
    HostCommunicator communicator(transport);
    communicator.note(call);
    communicator.meet({});
    communicator.note(transport.rank() == 0 ? call : other);
    try {
      communicator.meet({});
    } catch (const RankLost& lost) {
      if (std::string(lost.what()).find("rank 1 was told") == std::string::npos) throw;
      return;
    }
    throw Error("the difference was not noticed");
  });
}

TEST(ExtendDigest, DependsOnEveryByteAndOnTheCuts) {
  std::vector<uint8_t> bytes(37, 7);
  const uint64_t whole = extend_digest(0, bytes);
  for (uint8_t& byte : bytes) {
    byte ^= 1;
    EXPECT_NE(extend_digest(0, bytes), whole);
    byte ^= 1;
  }
  const std::span<const uint8_t> all(bytes);
  EXPECT_NE(extend_digest(extend_digest(0, all.first(16)), all.subspan(16)), whole);
  EXPECT_NE(extend_digest(0, {}), 0U);
}

TEST(InProcessTransport, AbortEndsAWait) {
  InProcessHub hub(2);
  std::thread waiting([&] {
    std::vector<uint8_t> bytes(4);
    hub.transport(1).receive(0, bytes);
    EXPECT_THROW(hub.transport(1).wait(), RankLost);
  });
  hub.abort("rank 0 was lost");
  waiting.join();
}

}  // namespace
}  // namespace spark::engine
