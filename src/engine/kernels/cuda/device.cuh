// Device-side vocabulary: number formats, block quantisers, reductions; instructions.cuh has the rest.
#pragma once

#include <cstdint>

#ifdef SPARK_CUDA_EMULATION
#include SPARK_CUDA_EMULATION  // names the emulator's instructions
#else
#include "engine/kernels/cuda/instructions.cuh"
#endif
#include "engine/kernels/cuda/plan/tiles.h"

namespace spark::engine::cuda {

// ---- number formats
// -------------------------------------------------------------------------------------------------

__device__ __forceinline__ float bf16_to_float(uint32_t bits) {
  return __uint_as_float(bits << 16);
}
__device__ __forceinline__ float bf16_low(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float bf16_high(uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000u);
}
__device__ __forceinline__ float round_to_bf16(float v) {
  return bf16_to_float(float_to_bf16(v));
}
// Two at once: one conversion, of which a multiprocessor does four times as many in a cycle.
__device__ __forceinline__ void round_two_to_bf16(float& a, float& b) {
  const uint32_t pair = pack_bf16(a, b);
  a = bf16_low(pair), b = bf16_high(pair);
}

// Byte b stands for 2^(b - 127); 0 is an FP32 subnormal, 255 is NaN.
__device__ __forceinline__ float ue8m0_to_float(uint32_t b) {
  return __uint_as_float(b == 0 ? 0x00400000u : b == 255 ? 0x7FC00000u : b << 23);
}

// The byte of the smallest power of two that is not below v (v > 0, normal).
__device__ __forceinline__ uint32_t ue8m0_ceil(float v) {
  const uint32_t bits = __float_as_uint(v);
  const uint32_t byte = (bits >> 23) + ((bits & 0x7FFFFFu) != 0 ? 1u : 0u);
  return byte > 254 ? 255 : byte;
}

// 1 / 2^(byte - 127) for byte 1..253.
__device__ __forceinline__ float ue8m0_inverse(uint32_t byte) {
  return __uint_as_float((254 - byte) << 23);
}

__device__ __forceinline__ float2 e4m3x2_to_float2(uint32_t codes) {
  return half2_to_float2(e4m3x2_to_half2(codes));
}

__device__ __forceinline__ float e4m3_to_float(uint32_t code) {
  return e4m3x2_to_float2(code & 0xFFu).x;
}

__device__ __forceinline__ uint32_t float_to_e4m3(float v) {
  return floats_to_e4m3x2(v, 0.0f) & 0xFFu;
}

// Ties go to the even code; NaN becomes +6 as the conversion instruction of newer devices does it.
__device__ __forceinline__ uint32_t float_to_e2m1(float v) {
  const float a = fabsf(v);
  const uint32_t code = uint32_t{a > 0.25f} + uint32_t{a >= 0.75f} + uint32_t{a > 1.25f} +
                        uint32_t{a >= 1.75f} + uint32_t{a > 2.5f} + uint32_t{a >= 3.5f} + uint32_t{a > 5.0f};
  return v != v ? 7u : code | ((__float_as_uint(v) >> 28) & 8u);
}

// The value of one E2M1 code through FP16: sign to bit 15, magnitude to bits 11..9 gives value * 2^-14.
__device__ __forceinline__ float e2m1_to_float(uint32_t code) {
  const uint32_t h = ((code & 8u) << 12) | ((code & 7u) << 9);
  return half_to_float(h) * 16384.0f;
}

// A word of fp4_place_code layout to four FP16 pairs, each value * 2^-14.
constexpr float kFp4EmbedScale = 16384.0f;
__device__ __forceinline__ void fp4_word_to_half2(uint32_t w, uint32_t (&pair)[4]) {
  const uint32_t seven = w << 7;
  pair[0] = w & kFp4Mask;
  pair[1] = (w << 3) & kFp4Mask;
  pair[2] = (seven ^ (w << 10)) & kFp4Mask;
  pair[3] = (seven ^ __funnelshift_l(w, w, 12)) & kFp4Mask;
}

// ---- block quantisers
// -----------------------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t fp8_block_scale(float amax) {
  if (!(amax < __uint_as_float(0x7F800000u))) return 255;
  return ue8m0_ceil(fmaxf(amax, 1e-4f) * __uint_as_float(0x3B124925u));  // FP32(1/448)
}
__device__ __forceinline__ uint32_t fp8_block_code(float v, uint32_t scale) {
  return scale == 255 ? 0u : float_to_e4m3(v * ue8m0_inverse(scale));
}
__device__ __forceinline__ uint32_t fp4_ue8m0_scale(float amax) {
  if (!(amax < __uint_as_float(0x7F800000u))) return 255;
  return ue8m0_ceil(fmaxf(amax, 0x1.8p-124f) * __uint_as_float(0x3E2AAAABu));  // FP32(1/6)
}
__device__ __forceinline__ uint32_t fp4_ue8m0_code(float v, uint32_t scale) {
  return scale == 255 ? 0u : float_to_e2m1(__fdiv_rn(v, ue8m0_to_float(scale)));
}
__device__ __forceinline__ uint32_t fp4_e4m3_scale(float amax) {
  if (!(amax < __uint_as_float(0x7F800000u))) return 0x7F;
  return float_to_e4m3(__fdiv_rn(fmaxf(amax, 0x1.8p-7f), 6.0f));
}
__device__ __forceinline__ uint32_t fp4_e4m3_code(float v, uint32_t scale) {
  return scale == 0x7F ? 0u : float_to_e2m1(__fdiv_rn(v, e4m3_to_float(scale)));
}

// Largest magnitude over aligned groups of `kLanes` lanes; a NaN counts as larger than everything.
template <int kLanes>
__device__ __forceinline__ float group_amax(float v) {
  uint32_t bits = __float_as_uint(v) & 0x7FFFFFFFu;
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) bits = max(bits, __shfl_xor_sync(~0u, bits, offset));
  return __uint_as_float(bits);
}

// ---- rows of BF16
// -------------------------------------------------------------------------------------------------

// A thread owns eight adjacent channels, four threads a block of 32.
struct Eight {
  float v[8];
};

__device__ __forceinline__ Eight unpack_eight(const uint4& w) {
  return {{bf16_low(w.x), bf16_high(w.x), bf16_low(w.y), bf16_high(w.y), bf16_low(w.z), bf16_high(w.z),
           bf16_low(w.w), bf16_high(w.w)}};
}

__device__ __forceinline__ Eight load_eight(const uint16_t* p) {
  return unpack_eight(*reinterpret_cast<const uint4*>(p));
}

__device__ __forceinline__ uint4 pack_eight(const Eight& e) {
  return make_uint4(pack_bf16(e.v[0], e.v[1]), pack_bf16(e.v[2], e.v[3]), pack_bf16(e.v[4], e.v[5]),
                    pack_bf16(e.v[6], e.v[7]));
}

__device__ __forceinline__ void store_eight(uint16_t* p, const Eight& e) {
  *reinterpret_cast<uint4*>(p) = pack_eight(e);
}

// Rounds to BF16, and returns the same as it is stored.
__device__ __forceinline__ uint4 round_eight(Eight& e) {
  const uint4 words = pack_eight(e);
  e = unpack_eight(words);
  return words;
}

// Quantises the 32-block of which this quad of lanes holds eight BF16-rounded channels each. Whole warps must
// call.
struct EightCodes {
  uint2 codes;
  uint8_t scale;
};

__device__ __forceinline__ EightCodes quantise_eight(const Eight& e) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = max(largest, __float_as_uint(e.v[i]) & 0x7FFFFFFFu);
  largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
  largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
  const uint32_t byte = fp8_block_scale(__uint_as_float(largest));
  uint32_t packed[2] = {0, 0};
  if (byte != 255) {
    const float inverse = ue8m0_inverse(byte);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      packed[i / 2] |= floats_to_e4m3x2(e.v[2 * i] * inverse, e.v[2 * i + 1] * inverse) << (16 * (i & 1));
    }
  }
  return {make_uint2(packed[0], packed[1]), static_cast<uint8_t>(byte)};
}

// ---- reductions: fixed trees, the same for every thread that asks
// ---------------------------------------------------

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(~0u, v, offset);
  return v;
}

// Sum over the block, returned to every thread. `scratch` holds 32 floats and may be reused after the next
// barrier.
__device__ __forceinline__ float block_sum(float v, float* scratch) {
  v = warp_sum(v);
  const int warps = static_cast<int>(blockDim.x + 31) / 32;
  if ((threadIdx.x & 31) == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x & 31);
  return warp_sum(lane < warps ? scratch[lane] : 0.0f);
}

__device__ __forceinline__ float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

}  // namespace spark::engine::cuda
