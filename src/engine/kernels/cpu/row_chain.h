// Operations that handle every row of a step on its own, one after another and without a meeting in between.
//
//   RowChain chain(pool);
//   chain.add(rows, cost_ns, [=](int64_t row, int worker) { ... });      // does not run yet
//   chain.add(rows, cost_ns, [=](int64_t row, int worker) { ... });
//   chain.run();                                                         // one fork for both
//
// At sixteen rows most of them take a few microseconds, about the price of a fork: alone each would leave the
// other threads waiting. In a chain a thread takes its rows through all of them, while they lie in its cache.
//
// A link may read and write what belongs to its own row, shared inputs that were complete before the chain
// began, and its worker's scratch memory. Whoever wants to see a result calls run() first; a link with
// another number of rows does so by itself. Links are copied: they hold pointers, not references to the
// call's arguments.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>

#include "engine/kernels/cpu/thread_pool.h"

namespace spark::engine::cpu {

class RowChain {
 public:
  explicit RowChain(ThreadPool& pool) : pool_(pool) {}
  RowChain(const RowChain&) = delete;
  RowChain& operator=(const RowChain&) = delete;

  // fn(row, worker) for every row in 0 .. rows-1.
  template <typename F>
  void add(int64_t rows, double cost_ns, F fn) {
    add_groups(rows, 1, cost_ns, [fn](int64_t first, int64_t count, int worker) {
      for (int64_t row = first; row < first + count; ++row) fn(row, worker);
    });
  }

  // fn(first, count, worker) for stretches of rows, `wanted` of them together where enough rows are left for
  // every thread. Stretches may be longer or shorter: results must not depend on them.
  template <typename F>
  void add_groups(int64_t rows, int64_t wanted, double cost_ns, F fn) {
    static_assert(std::is_trivially_copyable_v<F> && sizeof(F) <= kLinkBytes);
    if (rows <= 0) return;
    if (rows != rows_ || count_ == kLinks) run();
    Link& link = links_[count_++];
    new (link.storage) F(fn);
    link.call = [](const void* storage, int64_t first, int64_t count, int worker) {
      (*static_cast<const F*>(storage))(first, count, worker);
    };
    rows_ = rows;
    group_ = wanted > group_ ? wanted : group_;
    cost_ns_ += cost_ns;
  }

  void run();

 private:
  static constexpr size_t kLinks = 24;
  static constexpr size_t kLinkBytes = 320;
  struct Link {
    void (*call)(const void* storage, int64_t first, int64_t count, int worker) = nullptr;
    alignas(std::max_align_t) std::byte storage[kLinkBytes];
  };

  ThreadPool& pool_;
  std::array<Link, kLinks> links_{};
  size_t count_ = 0;
  int64_t rows_ = 0;
  int64_t group_ = 1;
  double cost_ns_ = 0;
};

}  // namespace spark::engine::cpu
