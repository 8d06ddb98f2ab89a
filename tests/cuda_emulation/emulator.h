// Runs CUDA kernels on the CPU: every thread of a block (or of a cluster's blocks) is a fiber; barriers,
// shuffles, matrix instructions and cluster exchanges are meetings of fibers. Slow, and exact about who sees
// what when: a thread that misses a meeting stops the program instead of hanging it.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

namespace spark::emulation {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

struct LaunchShape {
  Index grid, block;
  size_t shared_bytes = 0;
  unsigned cluster = 1;  // blocks side by side in x
  // What the device has: a kernel that needs more ends the program, as a defect of whoever chose it.
  size_t most_shared_bytes = 0;
  bool warpgroups = false;  // their matrix instruction
};

void run_kernel(const LaunchShape& shape, const std::function<void()>& body);

// Of the running fiber.
const Index& thread_index();
const Index& block_index();
const Index& block_size();
const Index& grid_size();
unsigned cluster_rank();
unsigned cluster_size();
uint8_t* dynamic_shared();
uint8_t* dynamic_shared_of(unsigned rank);
void require_warpgroups();

// Asynchronous copies of the running thread, done at the wait that needs them.
void copy_later(void* to, const void* from, size_t bytes);
void close_copies();
void finish_copies(size_t pending_groups);

// For threads that wait in a loop of their own: lets the others run, and says that something changed for
// them.
void pause();
void note_progress();

void block_barrier();
void cluster_barrier();

// Meets the other lanes of the warp: every lane deposits up to 64 bytes and gets all 32 deposits. Lanes that
// have left the kernel count as absent.
const uint8_t* meet_warp(const void* deposit, size_t bytes);
constexpr size_t kDepositBytes = 64;

template <typename T>
T lane_value(const uint8_t* deposits, unsigned lane) {
  T value;
  std::memcpy(&value, deposits + (lane & 31) * kDepositBytes, sizeof value);
  return value;
}

inline unsigned lane() {
  return thread_index().x & 31;
}

}  // namespace spark::emulation

#define threadIdx (spark::emulation::thread_index())
#define blockIdx (spark::emulation::block_index())
#define blockDim (spark::emulation::block_size())
#define gridDim (spark::emulation::grid_size())
#define SPARK_DYNAMIC_SHARED(type, name) \
  type* name = reinterpret_cast<type*>(spark::emulation::dynamic_shared())

inline void __syncthreads() {
  spark::emulation::block_barrier();
}

template <typename T>
T __shfl_sync(unsigned, T value, int source) {
  return spark::emulation::lane_value<T>(spark::emulation::meet_warp(&value, sizeof value),
                                         static_cast<unsigned>(source));
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return spark::emulation::lane_value<T>(spark::emulation::meet_warp(&value, sizeof value),
                                         spark::emulation::lane() ^ static_cast<unsigned>(mask));
}
template <typename T>
T __shfl_up_sync(unsigned, T value, int by) {
  const unsigned lane = spark::emulation::lane();
  const uint8_t* all = spark::emulation::meet_warp(&value, sizeof value);
  return lane < static_cast<unsigned>(by)
             ? value
             : spark::emulation::lane_value<T>(all, lane - static_cast<unsigned>(by));
}
template <typename T>
T __shfl_down_sync(unsigned, T value, int by) {
  const unsigned from = spark::emulation::lane() + static_cast<unsigned>(by);
  const uint8_t* all = spark::emulation::meet_warp(&value, sizeof value);
  return from > 31 ? value : spark::emulation::lane_value<T>(all, from);
}
inline unsigned __ballot_sync(unsigned, bool predicate) {
  const uint8_t* all = spark::emulation::meet_warp(&predicate, sizeof predicate);
  unsigned mask = 0;
  for (unsigned i = 0; i < 32; ++i) mask |= spark::emulation::lane_value<bool>(all, i) ? 1u << i : 0u;
  return mask;
}

inline void __syncwarp() {
  const bool here = true;
  spark::emulation::meet_warp(&here, sizeof here);
}

inline void __threadfence() {}

inline float __uint_as_float(uint32_t v) {
  return std::bit_cast<float>(v);
}
inline uint32_t __float_as_uint(float v) {
  return std::bit_cast<uint32_t>(v);
}
inline int __popc(unsigned v) {
  return std::popcount(v);
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline float __frsqrt_rn(float v) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(v)));
}
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i)
    result |= static_cast<uint32_t>(both >> (8 * ((selector >> (4 * i)) & 7)) & 255u) << (8 * i);
  return result;
}
inline uint32_t __funnelshift_l(uint32_t low, uint32_t high, int by) {
  return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> (32 - (by & 31)));
}
template <typename T>
T __ldg(const T* p) {
  // The hardware faults on a misaligned vector.
  if (reinterpret_cast<uintptr_t>(p) % alignof(T) != 0) std::abort();
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <typename T>
T atomicAdd(T* p, T v) {
  const T old = *p;
  *p = static_cast<T>(old + v);
  return old;
}
inline uint32_t atomicOr(uint32_t* p, uint32_t v) {
  const uint32_t old = *p;
  *p |= v;
  return old;
}
template <typename T>
unsigned __match_any_sync(unsigned, T value) {
  const uint8_t* all = spark::emulation::meet_warp(&value, sizeof value);
  unsigned mask = 0;
  for (unsigned i = 0; i < 32; ++i) mask |= spark::emulation::lane_value<T>(all, i) == value ? 1u << i : 0u;
  return mask;
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  const uint8_t* all = spark::emulation::meet_warp(&value, sizeof value);
  unsigned most = 0;
  for (unsigned i = 0; i < 32; ++i) most = std::max(most, spark::emulation::lane_value<unsigned>(all, i));
  return most;
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value) {
  return ~__reduce_max_sync(mask, ~value);
}
inline int __ffs(unsigned v) {
  return v == 0 ? 0 : std::countr_zero(v) + 1;
}
using std::max;
using std::min;
inline uint32_t max(uint32_t a, int b) {
  return std::max(a, static_cast<uint32_t>(b));
}
