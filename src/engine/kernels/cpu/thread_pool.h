// Fork and join for operations that last microseconds.
//
//   ThreadPool pool(4);                                  // the caller and three workers
//   pool.run(tiles, cost_ns, [&](int tile, int worker) { ... });
//
// The caller takes part in the work. Each thread begins with its own part of the tasks, the same part at
// every call of a size, so that what it reads stays in its core's cache; who is done takes from the others.
// So which thread runs a task is not determined: a task must write only to places of its own, and use
// `worker` (0 .. threads-1) for scratch memory. Work below the price of a fork runs on the caller alone.
// Workers spin for a few tens of microseconds after a job and then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace spark::engine::cpu {

class ThreadPool {
 public:
  // 0 threads = one per core. Work estimated below `fork_ns` stays on the caller: a fork costs about 1 us
  // both ways while the workers spin.
  explicit ThreadPool(int threads, double fork_ns = 4000);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // fn(task, worker) for every task in 0 .. tasks-1; `cost_ns` estimates the whole on one thread.
  template <typename F>
  void run(int64_t tasks, double cost_ns, F&& fn) {
    if (tasks <= 1 || workers_.empty() || cost_ns < fork_ns_) {
      for (int64_t task = 0; task < tasks; ++task) fn(task, 0);
      return;
    }
    using Fn = std::remove_reference_t<F>;
    fork(
        tasks, [](void* context, int64_t task, int worker) { (*static_cast<Fn*>(context))(task, worker); },
        const_cast<std::remove_const_t<Fn>*>(&fn));
  }

 private:
  using Call = void (*)(void* context, int64_t task, int worker);

  // One thread's part of a job, in a cache line of its own: a worker that spins on the ticket has everything
  // with it when the line arrives.
  struct alignas(64) Share {
    // generation (32 bits), number of pieces (16), next piece (16): one word, so that a late thread can never
    // take a piece of another job than the one whose fields it has read.
    std::atomic<uint64_t> ticket{0};
    std::atomic<Call> call{nullptr};
    std::atomic<void*> context{nullptr};
    std::atomic<int64_t> first{0};
    std::atomic<int64_t> last{0};
    std::atomic<int64_t> grain{1};
  };

  void fork(int64_t tasks, Call call, void* context);
  void drain(int worker);
  static int64_t run_share(Share& share, int worker);
  void work(int worker);
  void end_workers();
  void sleep_until_work(const Share& own, uint64_t seen);

  std::vector<Share> shares_;
  alignas(64) std::atomic<int64_t> unfinished_{0};
  alignas(64) std::atomic<uint32_t> epoch_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  double fork_ns_;
  std::vector<std::thread> workers_;
};

}  // namespace spark::engine::cpu
