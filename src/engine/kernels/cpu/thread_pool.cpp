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
// Every piece is an exchange of a word: no more pieces than even out what a thread loses to other programs.
constexpr int64_t kPiecesPerThread = 8;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr uint64_t generation_of(uint64_t ticket) {
  return ticket >> 32;
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

ThreadPool::ThreadPool(int threads, double fork_ns)
    : shares_(static_cast<size_t>(
          threads > 0 ? threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency())))),
      fork_ns_(fork_ns) {
  try {
    for (int worker = 1; worker < static_cast<int>(shares_.size()); ++worker)
      workers_.emplace_back([this, worker] { work(worker); });
  } catch (...) {  // the system refuses one more; those that run use what goes away with this constructor
    end_workers();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  end_workers();
}

void ThreadPool::end_workers() {
  stop_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::fork(int64_t tasks, Call call, void* context) {
  // Before anybody can take a piece; nobody holds one of the job before, or fork() would not have returned.
  unfinished_.store(tasks, std::memory_order_relaxed);
  const auto threads = static_cast<int64_t>(shares_.size());
  for (int64_t i = threads - 1; i >= 0; --i) {
    Share& share = shares_[static_cast<size_t>(i)];
    const int64_t first = tasks * i / threads;
    const int64_t last = tasks * (i + 1) / threads;
    const int64_t count = last - first;
    const int64_t grain = std::max({int64_t{1}, (count + 0xFFFE) / 0xFFFF, count / kPiecesPerThread});
    share.call.store(call, std::memory_order_relaxed);
    share.context.store(context, std::memory_order_relaxed);
    share.first.store(first, std::memory_order_relaxed);
    share.last.store(last, std::memory_order_relaxed);
    share.grain.store(grain, std::memory_order_relaxed);
    const uint64_t generation = generation_of(share.ticket.load(std::memory_order_relaxed)) + 1;
    share.ticket.store((generation << 32) | (static_cast<uint64_t>((count + grain - 1) / grain) << 16));
  }
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

// Tasks done of one share.
int64_t ThreadPool::run_share(Share& share, int worker) {
  int64_t done = 0;
  uint64_t ticket = share.ticket.load(std::memory_order_acquire);
  while (has_work(ticket)) {
    // Read before the exchange: its success proves that these are the fields of this very job, because the
    // next job starts only after this piece is reported as done.
    const Call call = share.call.load(std::memory_order_relaxed);
    void* const context = share.context.load(std::memory_order_relaxed);
    const int64_t grain = share.grain.load(std::memory_order_relaxed);
    const int64_t begin = share.first.load(std::memory_order_relaxed);
    const int64_t end = share.last.load(std::memory_order_relaxed);
    if (!share.ticket.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel,
                                            std::memory_order_acquire))
      continue;
    const int64_t first = begin + static_cast<int64_t>(next_of(ticket)) * grain;
    const int64_t last = std::min(first + grain, end);
    for (int64_t task = first; task < last; ++task) call(context, task, worker);
    done += last - first;
    ticket = share.ticket.load(std::memory_order_acquire);
  }
  return done;
}

void ThreadPool::drain(int worker) {
  int64_t done = 0;
  const size_t threads = shares_.size();
  for (size_t i = 0; i < threads; ++i)
    done += run_share(shares_[(static_cast<size_t>(worker) + i) % threads], worker);
  // Once for all of them: the word is everybody's.
  if (done > 0) unfinished_.fetch_sub(done, std::memory_order_acq_rel);
}

void ThreadPool::work(int worker) {
  Share& own = shares_[static_cast<size_t>(worker)];
  uint64_t seen = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    const auto give_up = std::chrono::steady_clock::now() + kSpinTime;
    bool found = false;
    while (!found && std::chrono::steady_clock::now() < give_up) {
      for (int i = 0; i < kSpinsPerLook && !found; ++i) {
        found = generation_of(own.ticket.load(std::memory_order_relaxed)) != seen ||
                stop_.load(std::memory_order_relaxed);
        if (!found) pause();
      }
    }
    if (!found) sleep_until_work(own, seen);
    seen = generation_of(own.ticket.load(std::memory_order_acquire));
    drain(worker);
  }
}

// The order here and in fork() matters: whoever is late of "count me as a sleeper, look for work" and
// "publish work, look for sleepers" sees the other.
void ThreadPool::sleep_until_work(const Share& own, uint64_t seen) {
  sleepers_.fetch_add(1);
  const uint32_t epoch = epoch_.load();
  const bool busy = generation_of(own.ticket.load()) != seen || stop_.load();
  if (!busy) epoch_.wait(epoch);
  sleepers_.fetch_sub(1);
}

}  // namespace spark::engine::cpu
