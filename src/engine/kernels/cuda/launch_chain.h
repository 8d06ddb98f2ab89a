// The order in which kernels run: a main chain, whose kernels start while their predecessors drain, and
// streams beside it that fork off and join again.
//
//   const Launch on = chain.next();        // behind everything launched so far
//   chain.fork(side, early);
//   launch_x(chain.beside(side), ...);     // sees what the main chain has done, runs beside what it does
//   next chain.join(side);                      // what is launched from here on sees it
//
// **What is complete when a kernel starts.** A dependent kernel starts when all blocks of its predecessor
// have let it go, which they do first of all, so nothing is complete yet: only its wait_for_inputs() makes
// sure of that. A kernel that *settles* lets its successors go after its own wait; when one of them starts,
// everything before the settling kernel is complete, because completion goes down the chain: every kernel
// waits. `settled(n)` says so for launch n, and an operation that knows its inputs settled may read them
// before it waits.
#pragma once

#include <memory>

#include "engine/kernels/cuda/cuda_backend.h"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/memory.h"

namespace spark::engine::cuda {

class LaunchChain {
 public:
  // A place in the main chain: behind so many launches.
  struct Place {
    Event event;
    uint64_t launches = 0;
  };
  struct Side {
    std::unique_ptr<Stream> stream = std::make_unique<Stream>();
    Place forked;
    Event joined;
    uint64_t joined_before = 0;  // the launch that waited for what ran here
    bool busy = false;
    bool chained = false;
  };

  LaunchChain(const CudaOptions& options, const DeviceLimits& device)
      : dependent_(options.dependent_launch), beside_(options.side_stream), device_(device) {}

  const Stream& stream() const { return stream_; }
  bool has_sides() const { return beside_; }

  // The next launch on the main chain. It may overlap its predecessor unless that is a copy or a graph.
  Launch next();
  // The last launch settles.
  void settles() { settled_ = launches_ - 1; }
  uint64_t last() const { return launches_; }
  // Whether launch n of the main chain is complete when the next one starts.
  bool settled(uint64_t n) const { return !dependent_ || !chained_ || n <= settled_; }

  // The next launch beside the main chain; fork() comes first.
  Launch beside(Side& side);
  // What is launched beside from here on sees everything launched so far. `early`: it may start while the
  // last launch runs, and take the room of the next ones.
  void fork(Side& side, bool early);
  // The same for a place in the main chain that was noted before.
  void fork_at(Side& side, const Place& place, bool early);
  // What is launched from here on sees everything launched beside.
  void join(Side& side);

  // Behind a copy or a graph: the next launch may not start early.
  void interrupt() { chained_ = false; }
  void note(Place& place) const;

 private:
  static void forget_past(const Side& side);

  bool dependent_;
  bool beside_;
  DeviceLimits device_;
  Stream stream_;
  bool chained_ = false;
  uint64_t launches_ = 0;
  uint64_t settled_ = 0;
};

}  // namespace spark::engine::cuda
