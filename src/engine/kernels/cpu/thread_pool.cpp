#include "engine/kernels/cpu/thread_pool.h"

#include <algorithm>
#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace spark::engine::cpu {
namespace {

constexpr auto kSpinTime = std::chrono::microseconds(50);
constexpr int kSpinsPerLook = 32;
constexpr int kSpinsBeforeYield = 400;
// Neighbouring tasks read neighbouring memory, and every piece is an exchange of a word that all threads
// write: no more pieces than even out what a thread loses to other programs.
constexpr int64_t kPiecesPerThread = 8;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr uint64_t pieces_of(uint64_t ticket) {
  return (ticket >> 16) & 0xFFFFu;
}
constexpr uint64_t next_of(uint64_t ticket) {
  return ticket & 0xFFFFu;
}
constexpr bool has_work(uint64_t ticket) {
  return next_of(ticket) < pieces_of(ticket);
}

}  // namespace

ThreadPool::ThreadPool(int threads, double fork_ns) : fork_ns_(fork_ns) {
  if (threads <= 0) threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  for (int worker = 1; worker < threads; ++worker) workers_.emplace_back([this, worker] { work(worker); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::fork(int64_t tasks, Call call, void* context) {
  const int64_t grain = std::max((tasks + 0xFFFE) / 0xFFFF, tasks / (kPiecesPerThread * threads()));
  const auto pieces = static_cast<uint64_t>((tasks + grain - 1) / grain);
  call_.store(call, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  tasks_.store(tasks, std::memory_order_relaxed);
  grain_.store(grain, std::memory_order_relaxed);
  unfinished_.store(static_cast<int64_t>(pieces), std::memory_order_relaxed);
  const uint64_t generation = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  ticket_.store((generation << 32) | (pieces << 16));
  if (sleepers_.load() > 0) {
    epoch_.fetch_add(1);
    epoch_.notify_all();
  }
  drain(0);
  for (int spins = 0; unfinished_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpinsBeforeYield) {
      pause();
    } else {
      std::this_thread::yield();  // a worker lost its core
    }
  }
}

void ThreadPool::drain(int worker) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (has_work(ticket)) {
    // Read before the exchange: its success proves that these are the fields of this very job, because the
    // next job starts only after this piece is done.
    const Call call = call_.load(std::memory_order_relaxed);
    void* const context = context_.load(std::memory_order_relaxed);
    const int64_t grain = grain_.load(std::memory_order_relaxed);
    const int64_t tasks = tasks_.load(std::memory_order_relaxed);
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire))
      continue;
    const int64_t first = static_cast<int64_t>(next_of(ticket)) * grain;
    const int64_t last = std::min(first + grain, tasks);
    for (int64_t task = first; task < last; ++task) call(context, task, worker);
    unfinished_.fetch_sub(1, std::memory_order_acq_rel);
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadPool::work(int worker) {
  while (!stop_.load(std::memory_order_relaxed)) {
    drain(worker);
    const auto give_up = std::chrono::steady_clock::now() + kSpinTime;
    bool found = false;
    while (!found && std::chrono::steady_clock::now() < give_up) {
      for (int i = 0; i < kSpinsPerLook && !found; ++i) {
        found = has_work(ticket_.load(std::memory_order_relaxed)) || stop_.load(std::memory_order_relaxed);
        if (!found) pause();
      }
    }
    if (!found) sleep_until_work();
  }
}

// The order here and in fork() matters: whoever is late of "count me as a sleeper, look for work" and
// "publish work, look for sleepers" sees the other.
void ThreadPool::sleep_until_work() {
  sleepers_.fetch_add(1);
  const uint32_t epoch = epoch_.load();
  const bool busy = has_work(ticket_.load()) || stop_.load();
  if (!busy) epoch_.wait(epoch);
  sleepers_.fetch_sub(1);
}

}  // namespace spark::engine::cpu
