#include "engine/kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

namespace spark::engine::cpu {
namespace {

TEST(ThreadPool, RunsEveryTaskOnce) {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads, 0);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t tasks : {0, 1, 2, 7, 1000}) {
      std::vector<int> runs(static_cast<size_t>(tasks));
      pool.run(tasks, 1, [&](int64_t task, int worker) {
        EXPECT_GE(worker, 0);
        EXPECT_LT(worker, threads);
        ++runs[static_cast<size_t>(task)];
      });
      for (const int count : runs) EXPECT_EQ(count, 1);
    }
  }
}

TEST(ThreadPool, TakesMoreTasksThanPieces) {
  ThreadPool pool(2, 0);
  std::vector<uint8_t> runs(200'000);
  pool.run(static_cast<int64_t>(runs.size()), 1,
           [&](int64_t task, int) { ++runs[static_cast<size_t>(task)]; });
  EXPECT_EQ(std::accumulate(runs.begin(), runs.end(), 0), 200'000);
}

TEST(ThreadPool, ManyShortJobs) {
  ThreadPool pool(3, 0);
  int64_t sum = 0;
  for (int job = 0; job < 20'000; ++job) {
    std::atomic<int64_t> part{0};
    pool.run(4, 1, [&](int64_t task, int) { part += task; });
    sum += part;
  }
  EXPECT_EQ(sum, 20'000 * 6);
}

TEST(ThreadPool, WakesSleepingWorkers) {
  ThreadPool pool(2, 0);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::atomic<int> runs{0};
    pool.run(8, 1, [&](int64_t, int) { ++runs; });
    EXPECT_EQ(runs, 8);
  }
}

TEST(ThreadPool, SmallWorkStaysOnTheCaller) {
  ThreadPool pool(4, 1000);
  const auto caller = std::this_thread::get_id();
  pool.run(50, 999, [&](int64_t, int worker) {
    EXPECT_EQ(worker, 0);
    EXPECT_EQ(std::this_thread::get_id(), caller);
  });
}

}  // namespace
}  // namespace spark::engine::cpu
