// Whether a warpgroup's matrix instruction returns what the warp's does, bit for bit, for the same numbers:
// the wide products (sm90/wide_gemm.cuh) rest on it, because a row's bits must not depend on how many rows
// there are. Operands are E4M3 as FP16 and BF16, over all their exponents and with few huge among many tiny
// ones, where a difference in alignment or order would show; sums start from zero and go on from earlier
// ones.
#include <cuda_runtime.h>

#include <cstdio>

#include "engine/kernels/cuda/sm90/wgmma.cuh"
#include "harness.h"

namespace spark::bench_gpu {
namespace {

[[maybe_unused]] constexpr int kN = 6;
constexpr int kModes = 3;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
using namespace engine::cuda;

__device__ uint32_t draw(uint32_t& state) {
  state = state * 1664525u + 1013904223u;
  uint32_t x = state;
  x ^= x >> 16, x *= 0x7FEB352Du, x ^= x >> 15, x *= 0x846CA68Bu, x ^= x >> 16;
  return x;
}

// 0: any code, or 41 exponents; 1: few huge among tiny; 2: huge ones that cancel, and tiny.
template <bool kBf16>
__device__ uint32_t draw_operand(uint32_t& state, int mode) {
  const uint32_t r = draw(state), q = draw(state);
  if constexpr (kBf16) {
    const uint32_t exponent = mode == 0      ? 107 + q % 41
                              : mode == 1    ? 70 + q % 107
                              : (q & 7) == 0 ? 142u
                                             : 127 - (q >> 8) % 30;
    return (r & 0x807Fu) | exponent << 7;
  }
  uint32_t code = r & 0xFFu;
  if (mode == 1) code = q % 16 == 0 ? (r & 0x87u) | 0x70u : (r & 0x87u) | (q >> 8) % 3 << 3;
  if (mode == 2) code = q % 4 == 0 ? r & 0x8Fu : (r & 0x80u) | 0x7Eu;
  if ((code & 0x7Fu) == 0x7Fu) code ^= 1u;  // NaN
  return e4m3x2_to_half2(code) & 0xFFFFu;
}
#endif

template <bool kBf16>
__global__ void __launch_bounds__(128) compare_kernel(int rounds, int mode, unsigned long long* counts) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ __align__(1024) uint8_t operand[wide_block_bytes(kN)];
  const int lane = static_cast<int>(threadIdx.x & 31), g = lane >> 2, t = lane & 3;
  uint32_t state = (blockIdx.x * 1000003u + threadIdx.x) * 2654435761u + static_cast<uint32_t>(mode);
  float wide[kN][4] = {}, narrow[kN][4] = {};
  unsigned long long differ = 0;
  for (int round = 0; round < rounds; ++round) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kN * 8 * 32; i += 128) {
      *reinterpret_cast<uint16_t*>(operand + wide_operand_offset(i / 32, i % 32)) =
          static_cast<uint16_t>(draw_operand<kBf16>(state, mode));
    }
    uint32_t a[8];
    for (uint32_t& pair : a) {
      pair = draw_operand<kBf16>(state, mode);
      pair |= draw_operand<kBf16>(state, mode) << 16;
    }
    wgmma_operands_written();
    __syncthreads();
    const uint64_t rows = wgmma_operand(operand);
    wgmma_pin(wide);
    wgmma_fence();
    // Even rounds start from zero, odd ones go on.
    if (round % 2 == 0) {
      wgmma<false, kBf16>(wide, a[0], a[1], a[2], a[3], rows);
    } else {
      wgmma<true, kBf16>(wide, a[0], a[1], a[2], a[3], rows);
    }
    wgmma<true, kBf16>(wide, a[4], a[5], a[6], a[7], wgmma_operand_at(rows, kWideStepBytes));
    wgmma_commit();
    wgmma_wait<0>(wide);
    for (int n = 0; n < kN; ++n) {
      uint32_t b[4];
      for (int i = 0; i < 4; ++i)
        b[i] = *reinterpret_cast<const uint32_t*>(operand + wide_operand_offset(n * 8 + g, t * 8 + i * 2));
      if (round % 2 == 0) narrow[n][0] = narrow[n][1] = narrow[n][2] = narrow[n][3] = 0.0f;
      if constexpr (kBf16) {
        mma_bf16(narrow[n], a[0], a[1], a[2], a[3], b[0], b[1]);
        mma_bf16(narrow[n], a[4], a[5], a[6], a[7], b[2], b[3]);
      } else {
        mma_f16(narrow[n], a[0], a[1], a[2], a[3], b[0], b[1]);
        mma_f16(narrow[n], a[4], a[5], a[6], a[7], b[2], b[3]);
      }
      for (int q = 0; q < 4; ++q) {
        if (__float_as_uint(narrow[n][q]) != __float_as_uint(wide[n][q])) ++differ;
        narrow[n][q] = wide[n][q];  // each round is a test of its own
      }
    }
  }
  atomicAdd(counts, differ);
  atomicAdd(counts + 1, static_cast<unsigned long long>(rounds) * kN * 4);
#endif
}

}  // namespace

int check_wgmma_bits() {
  int device = 0, major = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess || major != 9)
    return 0;  // no such instruction, and no product that uses it
  unsigned long long* counts = nullptr;
  unsigned long long host[2] = {};
  bool ok =
      cudaMalloc(&counts, sizeof host) == cudaSuccess && cudaMemset(counts, 0, sizeof host) == cudaSuccess;
  for (int mode = 0; ok && mode < kModes; ++mode) {
    compare_kernel<false><<<132, 128>>>(200, mode, counts);
    compare_kernel<true><<<132, 128>>>(200, mode, counts);
  }
  ok = ok && cudaMemcpy(host, counts, sizeof host, cudaMemcpyDeviceToHost) == cudaSuccess;
  cudaFree(counts);
  // Nothing compared proves nothing.
  ok = ok && host[0] == 0 && host[1] > 0;
  std::printf("wgmma and mma: %llu of %llu results differ%s\n", host[0], host[1], ok ? "" : "  FAILED");
  return ok ? 0 : 1;
}

}  // namespace spark::bench_gpu
