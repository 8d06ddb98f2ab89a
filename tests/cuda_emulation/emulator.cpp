#include "emulator.h"

#include <ucontext.h>

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "cuda_runtime.h"
#include "launch_count.h"

namespace spark::emulation {
namespace {

constexpr size_t kStackBytes = size_t{96} << 10;

// A meeting of `expected` fibers; `round` counts the meetings that took place.
struct Meeting {
  unsigned expected = 0;
  unsigned arrived = 0;
  uint64_t round = 0;
};

// Deposits of a meeting stay until the one after the next: a lane that is late to read has not arrived at the
// next one, and nobody passes that without it.
struct Warp {
  Meeting meeting;
  alignas(16) uint8_t deposits[2][32 * kDepositBytes] = {};
};

struct Block {
  Index index;
  unsigned rank = 0;
  std::vector<uint8_t> shared;
  uint8_t* shared_base = nullptr;
  std::vector<Warp> warps;
  Meeting barrier;
};

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
  size_t group;
};

// Entered through its context once, then switched with _setjmp and _longjmp, which make no system calls.
struct Fiber {
  ucontext_t context = {};
  jmp_buf place = {};
  bool started = false;
  std::vector<Copy> copies;  // not yet done, oldest first
  size_t group = 0;          // of the next copy
  Block* block = nullptr;
  Index thread;
  bool done = false;
};

// The cluster in flight.
struct Machine {
  LaunchShape shape;
  const std::function<void()>* body = nullptr;
  std::vector<Block> blocks;
  std::vector<Fiber> fibers;
  std::vector<std::unique_ptr<uint8_t[]>> stacks;  // kept from launch to launch
  Meeting cluster;
  jmp_buf scheduler = {};
  Fiber* current = nullptr;
  bool progressed = false;
  uint64_t kernels = 0;
};

Machine& machine() {
  static Machine m;
  return m;
}

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "emulated kernel: %s\n", what);
  std::abort();
}

void yield() {
  Machine& m = machine();
  if (_setjmp(m.current->place) == 0) _longjmp(m.scheduler, 1);
}

void meet(Meeting& meeting) {
  Machine& m = machine();
  const uint64_t round = meeting.round;
  ++meeting.arrived;
  m.progressed = true;
  while (true) {
    if (meeting.round != round) return;
    if (meeting.arrived >= meeting.expected) {
      meeting.arrived = 0;
      ++meeting.round;
      m.progressed = true;
      return;
    }
    yield();
  }
}

void fiber_main() {
  Machine& m = machine();
  (*m.body)();
  Fiber& self = *m.current;
  self.done = true;
  m.progressed = true;
  // Who has left is no longer waited for.
  --self.block->warps[self.thread.x / 32].meeting.expected;
  --self.block->barrier.expected;
  --m.cluster.expected;
  _longjmp(m.scheduler, 1);
}

// Runs a fiber until it waits or ends.
void enter(Fiber& fiber) {
  Machine& m = machine();
  if (_setjmp(m.scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.place, 1);
  fiber.started = true;
  setcontext(&fiber.context);
}

void run_cluster(unsigned first_x, unsigned y, unsigned z) {
  Machine& m = machine();
  const unsigned threads = m.shape.block.x;
  m.blocks.clear();
  m.blocks.resize(m.shape.cluster);
  m.fibers.clear();
  m.fibers.resize(static_cast<size_t>(threads) * m.shape.cluster);
  m.cluster = {.expected = threads * m.shape.cluster};
  while (m.stacks.size() < m.fibers.size()) m.stacks.push_back(std::make_unique<uint8_t[]>(kStackBytes));
  for (unsigned b = 0; b < m.shape.cluster; ++b) {
    Block& block = m.blocks[b];
    block.index = {first_x + b, y, z};
    block.rank = b;
    block.shared.assign(m.shape.shared_bytes + 128, 0xDB);  // not zero: what is read must have been written
    block.shared_base =
        block.shared.data() + (128 - reinterpret_cast<uintptr_t>(block.shared.data()) % 128) % 128;
    block.warps.resize((threads + 31) / 32);
    for (unsigned w = 0; w < block.warps.size(); ++w) {
      const unsigned lanes = std::min(32u, threads - w * 32);
      block.warps[w].meeting.expected = lanes;
    }
    block.barrier.expected = threads;
    for (unsigned t = 0; t < threads; ++t) {
      Fiber& fiber = m.fibers[static_cast<size_t>(b) * threads + t];
      fiber.block = &block;
      fiber.thread = {t, 0, 0};
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = m.stacks[static_cast<size_t>(b) * threads + t].get();
      fiber.context.uc_stack.ss_size = kStackBytes;
      fiber.context.uc_link = nullptr;
      makecontext(&fiber.context, fiber_main, 0);
    }
  }
  size_t left = m.fibers.size();
  while (left > 0) {
    m.progressed = false;
    for (Fiber& fiber : m.fibers) {
      if (fiber.done) continue;
      m.current = &fiber;
      enter(fiber);
      if (fiber.done) --left;
    }
    if (!m.progressed && left > 0)
      fail("deadlock: some threads wait at a barrier or exchange that others do not reach");
  }
}

}  // namespace

const Index& thread_index() {
  return machine().current->thread;
}
const Index& block_index() {
  return machine().current->block->index;
}
const Index& block_size() {
  return machine().shape.block;
}
const Index& grid_size() {
  return machine().shape.grid;
}
unsigned cluster_rank() {
  return machine().current->block->rank;
}
unsigned cluster_size() {
  return static_cast<unsigned>(machine().blocks.size());
}
uint8_t* dynamic_shared() {
  return machine().current->block->shared_base;
}
uint8_t* dynamic_shared_of(unsigned rank) {
  if (rank >= machine().blocks.size()) fail("access to a block outside the cluster");
  return machine().blocks[rank].shared_base;
}
void copy_later(void* to, const void* from, size_t bytes) {
  Fiber& self = *machine().current;
  self.copies.push_back({to, from, bytes, self.group});
}
void close_copies() {
  ++machine().current->group;
}
void finish_copies(size_t pending_groups) {
  Fiber& self = *machine().current;
  size_t done = 0;
  while (done < self.copies.size() && self.copies[done].group + pending_groups < self.group) {
    std::memcpy(self.copies[done].to, self.copies[done].from, self.copies[done].bytes);
    ++done;
  }
  self.copies.erase(self.copies.begin(), self.copies.begin() + static_cast<std::ptrdiff_t>(done));
}

void pause() {
  yield();
}
void note_progress() {
  machine().progressed = true;
}

void block_barrier() {
  meet(machine().current->block->barrier);
}
void cluster_barrier() {
  meet(machine().cluster);
}

const uint8_t* meet_warp(const void* deposit, size_t bytes) {
  if (bytes > kDepositBytes) fail("deposit too large");
  Warp& warp = machine().current->block->warps[machine().current->thread.x / 32];
  uint8_t* deposits = warp.deposits[warp.meeting.round & 1];
  std::memcpy(deposits + lane() * kDepositBytes, deposit, bytes);
  meet(warp.meeting);
  return deposits;
}

void require_warpgroups() {
  if (!machine().shape.warpgroups) fail("the device has no matrix instruction of a warpgroup");
}

uint64_t kernels_run() {
  return machine().kernels;
}

void run_kernel(const LaunchShape& shape, const std::function<void()>& body) {
  Machine& m = machine();
  ++m.kernels;
  if (m.current != nullptr) fail("a kernel launched from a kernel");
  if (shape.shared_bytes > shape.most_shared_bytes)
    fail("a kernel asks for more shared memory than the device has");
  if (shape.grid.x % shape.cluster != 0) fail("the grid is no multiple of the cluster");
  m.shape = shape;
  m.body = &body;
  for (unsigned z = 0; z < shape.grid.z; ++z) {
    for (unsigned y = 0; y < shape.grid.y; ++y) {
      for (unsigned x = 0; x < shape.grid.x; x += shape.cluster) run_cluster(x, y, z);
    }
  }
  m.current = nullptr;
}

}  // namespace spark::emulation
