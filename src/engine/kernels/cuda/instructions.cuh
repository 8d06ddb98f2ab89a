// The device's own instructions, as functions. tests/cuda_emulation has the same functions in plain C++.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace spark::engine::cuda {

#define SPARK_DYNAMIC_SHARED(type, name) extern __shared__ __align__(16) type name[]

__device__ __forceinline__ uint16_t float_to_bf16(float v) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(v));
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

// Two E4M3 codes (low byte first) to two FP16, exactly.
__device__ __forceinline__ uint32_t e4m3x2_to_half2(uint32_t codes) {
  uint32_t d;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(d) : "h"(static_cast<uint16_t>(codes)));
  return d;
}

// Four at once. The assembler takes the upper pair where it is; shifted down first it costs an instruction.
__device__ __forceinline__ uint2 e4m3x4_to_half4(uint32_t codes) {
  uint2 d;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high; }"
      : "=r"(d.x), "=r"(d.y)
      : "r"(codes));
  return d;
}

__device__ __forceinline__ float2 half2_to_float2(uint32_t h) {
  return __half22float2(*reinterpret_cast<const __half2*>(&h));
}

__device__ __forceinline__ float half_to_float(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
}

// Products of two pairs of BF16, rounded.
__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  const __nv_bfloat162 v =
      __hmul2_rn(*reinterpret_cast<const __nv_bfloat162*>(&a), *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const uint32_t*>(&v);
}

// A NaN stays one, which fminf and fmaxf would drop.
__device__ __forceinline__ float min_or_nan(float a, float b) {
  float d;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
  return d;
}
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float d;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
  return d;
}

// The larger of two pairs of 16-bit numbers without sign.
__device__ __forceinline__ uint32_t max_u16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("max.u16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// The sum over the warp.
__device__ __forceinline__ uint32_t warp_total(uint32_t v) {
  return __reduce_add_sync(~0u, v);
}

// Round to nearest even, saturating; NaN stays NaN.
__device__ __forceinline__ uint32_t floats_to_e4m3x2(float low, float high) {
  uint16_t d;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(d) : "f"(high), "f"(low));
  return d;
}

// ---- matrix instruction
// ---------------------------------------------------------------------------------------------

// d += a (16x16, row) * b (16x8, col). Lane 4g + t: a = rows g, g+8 of slots 2t, 2t+1, then of slots 2t+8,
// 2t+9; b = the same slots of column g; d = (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1).
__device__ __forceinline__ void mma_f16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                        uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                         uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// The same value, of which the compiler knows nothing; it is made here, and not later. Loads of what nobody
// writes and all arithmetic may otherwise move behind wait_for_inputs().
__device__ __forceinline__ uint32_t opaque(uint32_t v) {
  asm volatile("mov.b32 %0, %0;" : "+r"(v));
  return v;
}
__device__ __forceinline__ int opaque(int v) {
  return static_cast<int>(opaque(static_cast<uint32_t>(v)));
}
__device__ __forceinline__ float opaque(float v) {
  return __uint_as_float(opaque(__float_as_uint(v)));
}
// A place in memory stays one: what reads through it need not ask whether it lies in shared memory.
template <class T>
__device__ __forceinline__ T* opaque(T* p) {
  size_t at = __cvta_generic_to_global(p);
  asm volatile("mov.b64 %0, %0;" : "+l"(at));
  return static_cast<T*>(__cvta_global_to_generic(at));
}

// ---- memory
// ---------------------------------------------------------------------------------------------------------

// Weights are read once per step by one block: keep them out of L1.
__device__ __forceinline__ uint4 load_stream(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ __forceinline__ uint2 load_stream(const uint2* p) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
__device__ __forceinline__ uint32_t load_stream(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}

// Copies 8 bytes, or writes 8 zero bytes when `valid` is false.
__device__ __forceinline__ void copy_async_8(void* to_shared, const void* from, bool valid = true) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(to_shared)), "l"(from),
               "r"(valid ? 8 : 0)
               : "memory");
}
// Copies 16 bytes, or writes 16 zero bytes when `valid` is false.
__device__ __forceinline__ void copy_async_16(void* to_shared, const void* from, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to_shared)), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
// What is read once in a step goes first out of L2, and the next kernels' code and rows stay; what `stays` is
// read again in the same step. (The values of the descriptors that createpolicy makes for L2::evict_first and
// L2::evict_normal; the assembler makes them anew, in seven instructions, at every copy.)
__device__ __forceinline__ uint64_t weight_policy(bool stays = false) {
  return stays ? 0x1000000000000000 : 0x12F0000000000000;
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr bool kWeightPolicies = false;  // nobody has measured them on GB10
#else
constexpr bool kWeightPolicies = true;
#endif
// A value of a weight that is read once in a step.
__device__ __forceinline__ float load_weight(const float* p) {
  if constexpr (!kWeightPolicies) return __ldg(p);
  float v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.f32 %0, [%1], %2;"
               : "=f"(v)
               : "l"(p), "l"(weight_policy()));
  return v;
}
// A place in shared memory of which the assembler does not know that only an offset differs between lanes: a
// copy with a policy to "register + uniform register" it encodes with uniform register 0 for both, whichever
// hold them (ptxas 13.0).
__device__ __forceinline__ uint8_t* apart(uint8_t* p) {
  const uint32_t at = __shfl_sync(~0u, shared_address(p), static_cast<int>(threadIdx.x & 31));
  return static_cast<uint8_t*>(__cvta_shared_to_generic(at));
}
// copy_async_16 of weights that one block reads; to an address that is apart().
__device__ __forceinline__ void copy_weights_16(void* to_shared, const void* from, bool valid = true,
                                                bool stays = false) {
  if constexpr (!kWeightPolicies) return copy_async_16(to_shared, from, valid);
  asm volatile(
      "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(shared_address(to_shared)),
      "l"(from), "r"(valid ? 16 : 0), "l"(weight_policy(stays))
      : "memory");
}
__device__ __forceinline__ void copy_async_4(void* to_shared, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to_shared)), "l"(from)
               : "memory");
}
// The same if `run`, without a branch: compilers put dummy loads before every group of copies that a branch
// separates.
__device__ __forceinline__ void copy_async_16_if(bool run, void* to_shared, const void* from, bool valid) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16, %3; }" ::"r"(
          shared_address(to_shared)),
      "l"(from), "r"(static_cast<int>(run)), "r"(valid ? 16 : 0)
      : "memory");
}
__device__ __forceinline__ void copy_async_8_if(bool run, void* to_shared, const void* from, bool valid) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.ca.shared.global [%0], [%1], 8, %3; }" ::"r"(
          shared_address(to_shared)),
      "l"(from), "r"(static_cast<int>(run)), "r"(valid ? 8 : 0)
      : "memory");
}
__device__ __forceinline__ void copy_async_4_if(bool run, void* to_shared, const void* from) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.ca.shared.global [%0], [%1], 4; }" ::"r"(
                   shared_address(to_shared)),
               "l"(from), "r"(static_cast<int>(run))
               : "memory");
}
// Copies of a thread since its last commit form a group; groups end in order.
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most kPending of this thread's groups are under way.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Data of other blocks of the same kernel: from L2, past this multiprocessor's L1.
template <class T>
__device__ __forceinline__ T load_shared_by_blocks(const T* p) {
  return __ldcg(p);
}

// Adds one and returns the count before. What this thread's warp wrote before its last __syncwarp() is seen
// by whoever counts later, and what earlier ones wrote by this warp after its next exchange.
__device__ __forceinline__ uint32_t arrive(uint32_t* counter) {
  uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

// Words that say by themselves that they are there: 64 bits are written and read whole, so neither side needs
// a fence. (A pair: each word for itself, its low half first.)
__device__ __forceinline__ void store_relaxed(uint64_t* p, uint64_t v) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
__device__ __forceinline__ uint64_t load_relaxed(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ uint4 load_relaxed_pair(const uint64_t* p) {
  uint64_t a, b;
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0,%1}, [%2];" : "=l"(a), "=l"(b) : "l"(p) : "memory");
  return make_uint4(static_cast<uint32_t>(a), static_cast<uint32_t>(a >> 32), static_cast<uint32_t>(b),
                    static_cast<uint32_t>(b >> 32));
}
// In a loop that waits for another thread.
__device__ __forceinline__ void pause_thread() {
  __nanosleep(64);
}

// ---- barriers in shared memory, and copies that complete on them
// ---------------------------------------------------------------------------------------------------------

// A phase ends when `count` arrivals and all bytes that were announced are there. Whoever waits names the
// parity of the phase: 0 for the first, then alternating.
__device__ __forceinline__ void barrier_init(uint64_t* barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
               : "memory");
}
// After the initialisations, before the block's barrier.
__device__ __forceinline__ void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives, and the phase waits for so many bytes more.
__device__ __forceinline__ void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ bool barrier_passed(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done)
               : "r"(shared_address(barrier)), "r"(parity)
               : "memory");
  return done != 0;
}
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
  while (!barrier_passed(barrier, parity)) {
  }
}
// One thread: arrives, announces `bytes` (a multiple of 16) and starts their copy by the copy engine, with a
// weight_policy().
__device__ __forceinline__ void copy_bulk_with(uint64_t policy, void* to_shared, const void* from,
                                               uint32_t bytes, uint64_t* barrier) {
  barrier_expect(barrier, bytes);
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], %4;" ::"r"(shared_address(to_shared)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}
// The same of what is read once in a step.
__device__ __forceinline__ void copy_bulk(void* to_shared, const void* from, uint32_t bytes,
                                          uint64_t* barrier) {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  copy_bulk_with(policy, to_shared, from, bytes, barrier);
}

// ---- programmatic dependent launch
// ---------------------------------------------------------------------------------- Every kernel of this
// backend starts with launch_dependents() and calls wait_for_inputs() before it touches anything that an
// earlier kernel wrote or still reads. Before that it may read weights, rows of the step, block tables, and
// what has settled (launch_chain.h). Both are no-ops in a launch without the attribute.

__device__ __forceinline__ void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// The wait stands in a loop that runs once, of which the assembler does not know it: it moves loads of what
// nobody writes, and all arithmetic, behind a wait in straight code, and then what was meant to be there
// before the inputs comes from memory after them.
__device__ __forceinline__ void wait_for_inputs() {
  asm volatile(
      "{ .reg .pred again;\n"
      "WAIT: griddepcontrol.wait;\n"
      "setp.eq.u32 again, %0, 0; @again bra WAIT; }" ::"r"(blockDim.y)
      : "memory");
}

// ---- clusters
// -------------------------------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// The barrier in two halves: what is written before the first is seen after the second.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
}
// The first half where nothing that was written matters: the others have started, or are done reading.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
// To the same place of another block's dynamic shared memory, which must have started.
__device__ __forceinline__ void store_cluster(float* local, uint32_t rank, float v) {
  uint32_t at;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(local)), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
}
__device__ __forceinline__ void store_cluster(float2* local, uint32_t rank, float2 v) {
  uint32_t at;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(local)), "r"(rank));
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1,%2};" ::"r"(at), "f"(v.x), "f"(v.y) : "memory");
}
__device__ __forceinline__ void store_cluster(float4* local, uint32_t rank, float4 v) {
  uint32_t at;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(local)), "r"(rank));
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z),
               "f"(v.w)
               : "memory");
}
// The same, counted by that block's barrier (barrier_expect): whoever waits for it sees the value. The
// cluster's own barrier in its releasing form waits for all that the block has written to memory, this does
// not.
__device__ __forceinline__ void store_cluster_async(float4* local, uint64_t* barrier, uint32_t rank,
                                                    float4 v) {
  uint32_t at, counted;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(local)), "r"(rank));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(counted)
               : "r"(shared_address(barrier)), "r"(rank));
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(
          at),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(counted)
      : "memory");
}
__device__ __forceinline__ void store_cluster_async(float* local, uint64_t* barrier, uint32_t rank, float v) {
  uint32_t at, counted;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(local)), "r"(rank));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(counted)
               : "r"(shared_address(barrier)), "r"(rank));
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(at),
               "f"(v), "r"(counted)
               : "memory");
}
// The value at the same place of another block's dynamic shared memory. Volatile keeps it behind the
// cluster's barrier; several may be under way at once.
__device__ __forceinline__ float load_cluster(const float* local, uint32_t rank) {
  uint32_t at;
  float v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(local)), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(at));
  return v;
}
__device__ __forceinline__ float4 load_cluster(const float4* local, uint32_t rank) {
  uint32_t at;
  float4 v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(local)), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(at));
  return v;
}

}  // namespace spark::engine::cuda
