#include "engine/kernels/cpu/row_chain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <vector>

namespace spark::engine::cpu {
namespace {

// Every link multiplies and adds, so that a wrong order, a link left out or one run twice shows in the value.
void add_step(RowChain& chain, std::vector<uint64_t>& values, int64_t rows, int64_t number, int64_t group) {
  uint64_t* const x = values.data();
  chain.add_groups(rows, group, 100, [=](int64_t first, int64_t count, int) {
    for (int64_t row = first; row < first + count; ++row)
      x[row] = x[row] * 3 + static_cast<uint64_t>(number + row);
  });
}

TEST(RowChain, LinksRunInOrderForEveryRow) {
  for (const int threads : {1, 2, 3}) {
    // A fork costs nothing here: every chain is worth one.
    ThreadPool pool(threads, 0);
    RowChain chain(pool);
    for (const int64_t rows : {1, 2, 3, 7, 16, 65}) {
      for (const int64_t group : {1, 4, 8}) {
        std::vector<uint64_t> values(static_cast<size_t>(rows), 0), expected(values);
        for (int64_t number = 1; number <= 40; ++number) {  // more than a chain holds
          add_step(chain, values, rows, number, number % 3 == 0 ? group : 1);
          for (int64_t row = 0; row < rows; ++row) {
            uint64_t& e = expected[static_cast<size_t>(row)];
            e = e * 3 + static_cast<uint64_t>(number + row);
          }
          if (number == 20) chain.run();
        }
        chain.run();
        chain.run();  // nothing runs twice
        EXPECT_EQ(values, expected) << threads << " threads, " << rows << " rows, group " << group;
      }
    }
  }
}

TEST(RowChain, NothingRunsBeforeItIsAskedFor) {
  ThreadPool pool(2, 0);
  RowChain chain(pool);
  std::vector<uint64_t> values(16, 0);
  add_step(chain, values, 16, 1, 1);
  EXPECT_EQ(values, std::vector<uint64_t>(16, 0));
  chain.run();
  EXPECT_EQ(values[5], 6u);
}

TEST(RowChain, AnotherNumberOfRowsRunsWhatCameBefore) {
  ThreadPool pool(2, 0);
  RowChain chain(pool);
  std::vector<uint64_t> values(16, 0), others(8, 0);
  add_step(chain, values, 16, 1, 1);
  add_step(chain, others, 8, 1, 1);
  EXPECT_EQ(values[3], 4u);
  EXPECT_EQ(others[3], 0u);
  chain.run();
  EXPECT_EQ(others[3], 4u);
}

// A thread keeps a stretch of rows together only as long as every thread has some.
TEST(RowChain, StretchesLeaveRowsForEveryThread) {
  ThreadPool pool(2, 0);
  RowChain chain(pool);
  for (const auto& [rows, longest] : {std::pair{16, 8}, {8, 4}, {3, 2}, {2, 1}, {100, 8}}) {
    std::atomic<int64_t> most{0};
    std::atomic<int64_t>* const seen = &most;
    chain.add_groups(rows, 8, 100, [=](int64_t, int64_t count, int) {
      int64_t before = seen->load();
      while (before < count && !seen->compare_exchange_weak(before, count)) {
      }
    });
    chain.run();
    EXPECT_EQ(most.load(), longest) << rows << " rows";
  }
}

}  // namespace
}  // namespace spark::engine::cpu
