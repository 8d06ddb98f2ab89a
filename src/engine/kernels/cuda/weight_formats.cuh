// The formats of streamed weights: how a warp copies a 16x32 block into its ring and reads it back as the A
// operand of the matrix instruction, and what its activations are.
#pragma once

#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"

namespace spark::engine::cuda {

struct FloatScales {
  static constexpr bool kBlockScaled = false;  // the instruction takes codes and scale bytes as they are
  using Scale = float;
  static __device__ __forceinline__ float scale(uint32_t byte) { return ue8m0_to_float(byte); }
};

// How a weight format becomes the A operand. A lane copies its part of a 16x32 block into the ring and reads
// it back; no other lane touches it, so waiting for its own copies is enough. Word = what a lane holds of a
// block.
struct Fp8Format : FloatScales {
  using Word = uint4;
  static constexpr bool kCodes = true;  // activations are E4M3 codes with scales; FP16 operands
  static constexpr bool kWeightScale = true;
  static constexpr bool kPacked = false;
  static constexpr int kBlockBytes = kTileBytes;

  static __device__ __forceinline__ void copy(uint8_t* to, const uint8_t* from, int lane) {
    copy_weights_16(to + lane * 16, from + lane * 16);
  }
  static __device__ __forceinline__ Word read(const uint8_t* block, int lane) {
    return reinterpret_cast<const uint4*>(block)[lane];
  }
  static __device__ __forceinline__ void operand(const Word& w, uint32_t (&a)[8]) {
    const uint2 x = e4m3x4_to_half4(w.x), y = e4m3x4_to_half4(w.y);
    const uint2 z = e4m3x4_to_half4(w.z), v = e4m3x4_to_half4(w.w);
    a[0] = x.x, a[2] = x.y, a[4] = y.x, a[6] = y.y;
    a[1] = z.x, a[3] = z.y, a[5] = v.x, a[7] = v.y;
  }
};

// FP8 weight with unquantised BF16 activations (WO-A): E4M3 is exact in BF16.
struct Fp8Bf16Format : Fp8Format {
  static constexpr bool kCodes = false;

  static __device__ __forceinline__ void operand(const Word& w, uint32_t (&a)[8]) {
    Fp8Format::operand(w, a);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 v = half2_to_float2(a[i]);
      a[i] = pack_bf16(v.x, v.y);
    }
  }
};

struct Bf16Format : FloatScales {
  struct Word {
    uint4 first, second;
  };
  static constexpr bool kCodes = false;
  static constexpr bool kWeightScale = false;
  static constexpr bool kPacked = false;
  static constexpr int kBlockBytes = kBf16TileBytes;

  static __device__ __forceinline__ void copy(uint8_t* to, const uint8_t* from, int lane) {
    copy_weights_16(to + lane * 16, from + lane * 16);
    copy_weights_16(to + kTileBytes + lane * 16, from + kTileBytes + lane * 16);
  }
  static __device__ __forceinline__ Word read(const uint8_t* block, int lane) {
    const uint4* p = reinterpret_cast<const uint4*>(block) + lane;
    return {p[0], p[32]};
  }
  static __device__ __forceinline__ void operand(const Word& w, uint32_t (&a)[8]) {
    a[0] = w.first.x, a[1] = w.first.y, a[2] = w.first.z, a[3] = w.first.w;
    a[4] = w.second.x, a[5] = w.second.y, a[6] = w.second.z, a[7] = w.second.w;
  }
};

struct PackedFormat : FloatScales {
  struct Word {
    uint4 bytes;
    uint2 nibbles;
  };
  static constexpr bool kCodes = false;
  static constexpr bool kWeightScale = false;
  static constexpr bool kPacked = true;
  static constexpr int kBlockBytes = kPackedTileBytes;

  static __device__ __forceinline__ void copy(uint8_t* to, const uint8_t* from, int lane) {
    copy_weights_16(to + lane * 16, from + lane * 16);
    copy_async_8(to + kTileBytes + lane * 8, from + kTileBytes + lane * 8);
  }
  static __device__ __forceinline__ Word read(const uint8_t* block, int lane) {
    return {reinterpret_cast<const uint4*>(block)[lane],
            reinterpret_cast<const uint2*>(block + kTileBytes)[lane]};
  }
  // Leaves value * 2^-base (base: StreamGemmParams::unpack_scale).
  static __device__ __forceinline__ void operand(const Word& w, uint32_t (&a)[8]) {
    const uint32_t bytes[4] = {w.bytes.x, w.bytes.y, w.bytes.z, w.bytes.w};
    const uint32_t words[2] = {w.nibbles.x, w.nibbles.y};
#pragma unroll
    for (int pair = 0; pair < 8; ++pair) {
      const uint32_t low = __byte_perm(bytes[pair / 2], 0, pair % 2 == 0 ? 0x4140 : 0x4342);
      const uint32_t turned = __funnelshift_l(words[pair / 4], words[pair / 4], 4 * (pair % 4));
      a[pair] = low | (turned & 0x87008700u);
    }
  }
};

}  // namespace spark::engine::cuda
