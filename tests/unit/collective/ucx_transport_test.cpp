#include "engine/collective/ucx_transport.h"

#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <thread>

#include "engine/collective/host_communicator.h"

#ifndef __SANITIZE_THREAD__  // UCX is not built for it, so it would see races inside UCX
namespace spark::engine {
namespace {

using Clock = std::chrono::steady_clock;

// Ranks as threads, each with a UCX worker of its own.
void on_ucx_ranks(int32_t ranks, bool shared_memory, const std::function<void(UcxTransport&)>& work) {
  std::vector<std::unique_ptr<UcxTransport>> transports;
  std::vector<std::vector<uint8_t>> addresses;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    transports.push_back(std::make_unique<UcxTransport>(
        rank, ranks,
        UcxOptions{
            .spin_us = 2, .shared_memory = shared_memory, .network = !shared_memory, .devices = "lo"}));
    addresses.push_back(transports.back()->address());
  }
  // As after a rendezvous, no rank goes before all are connected: their shared memory goes with them.
  std::barrier connected(ranks);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      UcxTransport& transport = *transports[static_cast<size_t>(rank)];
      transport.connect(addresses);
      connected.arrive_and_wait();
      work(transport);
      transports[static_cast<size_t>(rank)].reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(UcxTransport, CarriesSumsOfEverySize) {
  for (const bool shared_memory : {true, false}) {
    on_ucx_ranks(3, shared_memory, [](UcxTransport& transport) {
      HostCommunicator communicator(transport);
      for (const int32_t cols : {1, 100, 5120, 40000, 700001}) {
        std::vector<uint16_t> x(static_cast<size_t>(cols),
                                transport.rank() == 0 ? 0x3F80 : 0x4000);  // 1, 2, 2
        communicator.sum_rows(x.data(), 1, cols);
        EXPECT_EQ(x, std::vector<uint16_t>(x.size(), 0x40A0)) << cols;  // 5
      }
      EXPECT_EQ(communicator.meet({}), "");
    });
  }
}

TEST(UcxTransport, AnIdleRankSleepsAndAbortWakesIt) {
  UcxTransport transport(0, 2, {.spin_us = 2});
  std::vector<uint8_t> bytes(16);
  std::thread aborting([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    transport.abort("rank 1 was lost: its connection ended");
  });
  const auto begin = Clock::now();
  timespec cpu_begin{}, cpu_end{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu_begin);
  transport.receive(1, bytes);
  try {
    transport.wait();
    FAIL();
  } catch (const RankLost& lost) {
    EXPECT_STREQ(lost.what(), "rank 1 was lost: its connection ended");
  }
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu_end);
  aborting.join();
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(300));
  const double cpu_s = static_cast<double>(cpu_end.tv_sec - cpu_begin.tv_sec) +
                       static_cast<double>(cpu_end.tv_nsec - cpu_begin.tv_nsec) * 1e-9;
  EXPECT_LT(cpu_s, 0.1);  // of 0.3 s
  EXPECT_THROW(transport.wait(), RankLost);
}

TEST(UcxTransport, NoticesAMessageOfAnotherLength) {
  std::atomic<int> noticed{0};
  on_ucx_ranks(2, true, [&](UcxTransport& transport) {
    std::vector<uint8_t> bytes(100, 1);
    if (transport.rank() == 0) {
      transport.send(1, bytes);
      transport.wait();
    } else {
      std::vector<uint8_t> more(200);
      transport.receive(0, more);
      try {
        transport.wait();
      } catch (const RankLost&) {
        ++noticed;
      }
    }
  });
  EXPECT_EQ(noticed, 1);
}

}  // namespace
}  // namespace spark::engine
#endif
