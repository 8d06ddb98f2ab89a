// The functions of engine/kernels/cuda/instructions.cuh for the emulator.
#pragma once

#include "cuda_emulation/block_scaled_mma.h"
#include "cuda_runtime.h"
#include "engine/kernels/cuda/plan/block_scaled.h"
#include "engine/numeric/bf16.h"
#include "engine/numeric/e4m3.h"

namespace spark::engine::cuda {

inline uint16_t float_to_bf16(float v) {
  return engine::float_to_bf16(v);
}

inline uint32_t pack_bf16(float low, float high) {
  return engine::float_to_bf16(low) | static_cast<uint32_t>(engine::float_to_bf16(high)) << 16;
}

inline float min_or_nan(float a, float b) {
  return a != a || b != b ? NAN : std::fmin(a, b);
}
inline float max_or_nan(float a, float b) {
  return a != a || b != b ? NAN : std::fmax(a, b);
}

// FP16 bits to FP32, subnormals included.
inline float half_to_float(uint32_t bits) {
  const uint32_t exponent = (bits >> 10) & 31u, mantissa = bits & 1023u;
  float v = exponent == 31 ? (mantissa != 0 ? NAN : INFINITY)
            : exponent == 0
                ? std::ldexp(static_cast<float>(mantissa), -24)
                : std::ldexp(static_cast<float>(1024 + mantissa), static_cast<int>(exponent) - 25);
  return (bits & 0x8000u) != 0 ? -v : v;
}
inline float2 half2_to_float2(uint32_t h) {
  return {half_to_float(h & 0xFFFFu), half_to_float(h >> 16)};
}

// Exact: every E4M3 value is a normal FP16 value or zero.
inline uint32_t e4m3_to_half(uint32_t code) {
  const float v = engine::e4m3_to_float(static_cast<uint8_t>(code));
  const uint32_t sign = (code & 0x80u) << 8;
  if (v != v) return 0x7FFFu;
  if (v == 0) return sign;
  int exponent = 0;
  const float fraction = std::frexp(std::fabs(v), &exponent);  // [0.5, 1)
  return sign | static_cast<uint32_t>(exponent + 14) << 10 | static_cast<uint32_t>((fraction * 2 - 1) * 1024);
}
inline uint32_t e4m3x2_to_half2(uint32_t codes) {
  return e4m3_to_half(codes & 255u) | e4m3_to_half((codes >> 8) & 255u) << 16;
}

inline uint2 e4m3x4_to_half4(uint32_t codes) {
  return make_uint2(e4m3x2_to_half2(codes & 0xFFFFu), e4m3x2_to_half2(codes >> 16));
}
inline uint32_t floats_to_e4m3x2(float low, float high) {
  return engine::float_to_e4m3(low) | static_cast<uint32_t>(engine::float_to_e4m3(high)) << 8;
}
inline uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  const auto product = [](uint32_t x, uint32_t y) {
    return engine::float_to_bf16(engine::bf16_to_float(static_cast<uint16_t>(x)) *
                                 engine::bf16_to_float(static_cast<uint16_t>(y)));
  };
  return product(a & 0xFFFFu, b & 0xFFFFu) | static_cast<uint32_t>(product(a >> 16, b >> 16)) << 16;
}

inline uint32_t max_u16x2(uint32_t a, uint32_t b) {
  return std::max(a & 0xFFFFu, b & 0xFFFFu) | std::max(a >> 16, b >> 16) << 16;
}

inline uint32_t warp_total(uint32_t v) {
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(~0u, v, offset);
  return v;
}

struct MmaOperands {
  float c[4];
  uint32_t a[4], b[2];
};

// One m16n8k16 product: what every lane holds is as the instruction's documentation has it.
template <class ToFloat>
void emulated_mma(float (&d)[4], const MmaOperands& mine, const ToFloat& to_float) {
  const uint8_t* all = emulation::meet_warp(&mine, sizeof mine);
  const unsigned lane = emulation::lane();
  const unsigned g = lane / 4, t = lane % 4;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = g + 8 * (i / 2), col = 2 * t + (i & 1);
    double sum = static_cast<double>(mine.c[i]);
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned owner_a = (row % 8) * 4 + (k % 8) / 2;
      const unsigned owner_b = col * 4 + (k % 8) / 2;
      const uint32_t a =
          emulation::lane_value<MmaOperands>(all, owner_a).a[(k / 8) * 2 + row / 8] >> (16 * (k & 1));
      const uint32_t b = emulation::lane_value<MmaOperands>(all, owner_b).b[k / 8] >> (16 * (k & 1));
      sum += static_cast<double>(to_float(a & 0xFFFFu)) * static_cast<double>(to_float(b & 0xFFFFu));
    }
    d[i] = static_cast<float>(sum);
  }
}
inline void mma_f16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                    uint32_t b1) {
  emulated_mma(d, {{d[0], d[1], d[2], d[3]}, {a0, a1, a2, a3}, {b0, b1}}, half_to_float);
}
inline void mma_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                     uint32_t b1) {
  emulated_mma(d, {{d[0], d[1], d[2], d[3]}, {a0, a1, a2, a3}, {b0, b1}},
               [](uint32_t bits) { return engine::bf16_to_float(static_cast<uint16_t>(bits)); });
}

// The block-scaled products of SM121: this lane's part of the model in block_scaled_mma.h.
template <int kByteA, int kByteB>
void emulated_block_scaled(float (&d)[4], emulation::Element a, const emulation::BlockScaledLane& mine) {
  const uint8_t* all = emulation::meet_warp(&mine, sizeof mine);
  emulation::BlockScaledLane lanes[32];
  for (unsigned i = 0; i < 32; ++i) lanes[i] = emulation::lane_value<emulation::BlockScaledLane>(all, i);
  emulation::block_scaled_lane(lanes, a, emulation::Element::kE4m3, {kByteA, 0}, {kByteB, 0},
                               emulation::lane(), d);
}
template <int kByteA, int kByteB>
void mma_block_scaled_e4m3(float (&d)[4], const BlockScaledOperand& a, const uint2& b, uint32_t scale_a,
                           uint32_t scale_b) {
  emulated_block_scaled<kByteA, kByteB>(d, emulation::Element::kE4m3,
                                        {{}, {a.a[0], a.a[1], a.a[2], a.a[3]}, {b.x, b.y}, scale_a, scale_b});
}
template <int kByteA, int kByteB>
void mma_block_scaled_e2m1(float (&d)[4], const BlockScaledOperand& a, const uint2& b, uint32_t scale_a,
                           uint32_t scale_b) {
  emulated_block_scaled<kByteA, kByteB>(d, emulation::Element::kE2m1,
                                        {{}, {a.a[0], a.a[1], a.a[2], a.a[3]}, {b.x, b.y}, scale_a, scale_b});
}

// Lanes 8i .. 8i+7 give the rows of 8x8 matrix i; register i of lane 4g + t gets elements 2t, 2t+1 of its row
// g, or of its column g when transposed.
inline void emulated_ldmatrix(uint32_t (&r)[4], const void* row, bool transposed) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) std::abort();
  const auto address = reinterpret_cast<uintptr_t>(row);
  const uint8_t* all = emulation::meet_warp(&address, sizeof address);
  const unsigned lane = emulation::lane();
  const unsigned g = lane / 4, t = lane % 4;
  for (unsigned i = 0; i < 4; ++i) {
    const auto element = [&](unsigned y, unsigned x) -> uint32_t {
      return reinterpret_cast<const uint16_t*>(emulation::lane_value<uintptr_t>(all, i * 8 + y))[x];
    };
    r[i] = transposed ? element(2 * t, g) | element(2 * t + 1, g) << 16
                      : element(g, 2 * t) | element(g, 2 * t + 1) << 16;
  }
}
inline void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  emulated_ldmatrix(r, row, false);
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  emulated_ldmatrix(r, row, true);
}

template <class T>
T opaque(T v) {
  return v;
}

inline uint4 load_stream(const uint4* p) {
  return __ldg(p);
}
inline uint2 load_stream(const uint2* p) {
  return __ldg(p);
}
inline uint32_t load_stream(const uint32_t* p) {
  return __ldg(p);
}

// The emulator copies at the wait, as late as the hardware may.
inline void copy_async(void* to, const void* from, size_t bytes) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % bytes != 0) std::abort();
  emulation::copy_later(to, from, bytes);
}
inline void copy_async_4(void* to, const void* from) {
  copy_async(to, from, 4);
}
inline void copy_async_8(void* to, const void* from, bool valid = true) {
  static const uint8_t zero[8] = {};
  if (valid) {
    copy_async(to, from, 8);
  } else {
    emulation::copy_later(to, zero, 8);
  }
}
template <class T>
T load_shared_by_blocks(const T* p) {
  return __ldg(p);
}
inline void copy_async_16(void* to, const void* from, bool valid = true) {
  static const uint8_t zero[16] = {};
  if (valid) {
    copy_async(to, from, 16);
  } else {
    emulation::copy_later(to, zero, 16);
  }
}
inline uint8_t* apart(uint8_t* p) {
  return p;
}
inline uint64_t weight_policy(bool = false) {
  return 0;
}
inline void copy_weights_16(void* to, const void* from, bool valid = true, bool = false) {
  copy_async_16(to, from, valid);
}
inline float load_weight(const float* p) {
  return *p;
}
inline void copy_async_16_if(bool run, void* to, const void* from, bool valid) {
  if (run) copy_async_16(to, from, valid);
}
inline void copy_async_8_if(bool run, void* to, const void* from, bool valid) {
  if (run) copy_async_8(to, from, valid);
}
inline void copy_async_4_if(bool run, void* to, const void* from) {
  if (run) copy_async(to, from, 4);
}
inline uint32_t arrive(uint32_t* counter) {
  emulation::note_progress();
  return (*counter)++;
}
inline void store_relaxed(uint64_t* p, uint64_t v) {
  *p = v;
  emulation::note_progress();
}
inline uint64_t load_relaxed(const uint64_t* p) {
  return *p;
}
inline uint4 load_relaxed_pair(const uint64_t* p) {
  return make_uint4(static_cast<uint32_t>(p[0]), static_cast<uint32_t>(p[0] >> 32),
                    static_cast<uint32_t>(p[1]), static_cast<uint32_t>(p[1] >> 32));
}
inline void pause_thread() {
  emulation::pause();
}

// Barriers in shared memory: arrivals still expected in this phase, of how many, the phase's parity, bytes
// under way. (Copies by the copy engine are done at once; who reads too early is not caught here.)
struct SharedBarrier {
  uint32_t left : 12, count : 12, phase : 8;
  int32_t bytes;  // below zero: there before they were announced
};
inline void barrier_init(uint64_t* barrier, uint32_t count) {
  if (count == 0 || count > 1024) std::abort();
  SharedBarrier b = {};
  b.left = b.count = count & 0xFFF;
  *barrier = std::bit_cast<uint64_t>(b);
}
inline void barrier_init_done() {}
inline void barrier_count(uint64_t* barrier, uint32_t arrivals, int64_t bytes) {
  auto b = std::bit_cast<SharedBarrier>(*barrier);
  if (b.count == 0 || b.left < arrivals) std::abort();
  b.left = (b.left - arrivals) & 0xFFF;
  b.bytes = static_cast<int32_t>(b.bytes + bytes);
  if (b.left == 0 && b.bytes == 0) b.left = b.count, b.phase = (b.phase + 1) & 0xFF;
  *barrier = std::bit_cast<uint64_t>(b);
  emulation::note_progress();
}
inline void barrier_arrive(uint64_t* barrier) {
  barrier_count(barrier, 1, 0);
}
inline void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  barrier_count(barrier, 1, bytes);
}
inline bool barrier_passed(uint64_t* barrier, uint32_t parity) {
  return (std::bit_cast<SharedBarrier>(*barrier).phase & 1) != parity;
}
inline void barrier_wait(uint64_t* barrier, uint32_t parity) {
  while (!barrier_passed(barrier, parity)) emulation::pause();
}
inline void copy_bulk(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes) % 16 != 0) std::abort();
  std::memcpy(to, from, bytes);
  barrier_arrive(barrier);
}
inline void copy_bulk_with(uint64_t, void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  copy_bulk(to, from, bytes, barrier);
}
inline void copy_async_commit() {
  emulation::close_copies();
}
template <int kPending>
void copy_async_wait() {
  emulation::finish_copies(kPending);
}
inline void launch_dependents() {}
inline void wait_for_inputs() {}

inline uint32_t cluster_rank() {
  return emulation::cluster_rank();
}
inline void cluster_sync() {
  emulation::cluster_barrier();
}
// Halves of the barrier: all meet at the second.
inline void cluster_arrive() {}
inline void cluster_arrive_relaxed() {}
inline void cluster_wait() {
  emulation::cluster_barrier();
}
template <typename T>
void store_cluster(T* local, uint32_t rank, T v) {
  const auto offset = reinterpret_cast<uint8_t*>(local) - emulation::dynamic_shared();
  if (static_cast<size_t>(offset) % sizeof(T) != 0) std::abort();
  std::memcpy(emulation::dynamic_shared_of(rank) + offset, &v, sizeof v);
}
// A launch that is no cluster has no such stores: an illegal instruction on an H200.
template <typename T>
void store_cluster_async(T* local, uint64_t* barrier, uint32_t rank, T v) {
  if (emulation::cluster_size() < 2) std::abort();
  store_cluster(local, rank, v);
  const auto offset = reinterpret_cast<uint8_t*>(barrier) - emulation::dynamic_shared();
  barrier_count(reinterpret_cast<uint64_t*>(emulation::dynamic_shared_of(rank) + offset), 0,
                -int64_t{sizeof v});
}
template <typename T>
T load_cluster(const T* local, uint32_t rank) {
  const auto offset = reinterpret_cast<const uint8_t*>(local) - emulation::dynamic_shared();
  if (static_cast<size_t>(offset) % sizeof(T) != 0) std::abort();
  T v;
  std::memcpy(&v, emulation::dynamic_shared_of(rank) + offset, sizeof v);
  return v;
}

}  // namespace spark::engine::cuda

#include "cuda_emulation/wgmma.h"
