// Rotation and the quantisers of cache records, a warp a block of 32 channels.
#pragma once

#include "engine/kernels/attention.h"
#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/paged.cuh"

namespace spark::engine::cuda {

// One channel of a pair that is turned; `odd`: the second.
__device__ __forceinline__ float turned(float v, float partner, bool odd, float cosine, float sine) {
  return round_to_bf16(odd ? partner * sine + v * cosine : v * cosine - partner * sine);
}

// The rotated value of channel `c` of a vector whose last 2*pairs channels rotate; `v` and `partner` are this
// channel and its neighbour in the pair.
__device__ __forceinline__ float rotated(float v, float partner, int c, int width, int pairs,
                                         const float* cos_sin, bool inverse) {
  const int z = c - (width - 2 * pairs);
  if (z < 0) return v;
  const float cosine = cos_sin[z & ~1];
  const float sine = inverse ? -cos_sin[z | 1] : cos_sin[z | 1];
  return turned(v, partner, (z & 1) != 0, cosine, sine);
}

// Warp-wise quantisers of 32 channels, one a lane.
__device__ __forceinline__ void write_fp8_block(float v, uint8_t* codes, uint8_t* scale) {
  const uint32_t byte = fp8_block_scale(group_amax<32>(v));
  codes[threadIdx.x & 31] = static_cast<uint8_t>(fp8_block_code(v, byte));
  if ((threadIdx.x & 31) == 0) *scale = static_cast<uint8_t>(byte);
}
__device__ __forceinline__ void write_nibbles(uint32_t code, uint8_t* packed) {
  const uint32_t odd = __shfl_down_sync(~0u, code, 1);
  const int lane = static_cast<int>(threadIdx.x & 31);
  if ((lane & 1) == 0) packed[lane / 2] = static_cast<uint8_t>(code | odd << 4);
}
__device__ __forceinline__ void write_fp4_ue8m0_block(float v, uint8_t* packed, uint8_t* scale) {
  const uint32_t byte = fp4_ue8m0_scale(group_amax<32>(v));
  write_nibbles(fp4_ue8m0_code(v, byte), packed);
  if ((threadIdx.x & 31) == 0) *scale = static_cast<uint8_t>(byte);
}
// Two blocks of 16 at once.
__device__ __forceinline__ void write_fp4_e4m3_blocks(float v, uint8_t* packed, uint8_t* scales) {
  const uint32_t byte = fp4_e4m3_scale(group_amax<16>(v));
  write_nibbles(fp4_e4m3_code(v, byte), packed);
  const int lane = static_cast<int>(threadIdx.x & 31);
  if ((lane & 15) == 0) scales[lane / 16] = static_cast<uint8_t>(byte);
}

// Channel `block * 32 + lane` of a BF16 vector, rotated.
__device__ __forceinline__ float rotated_channel(const uint16_t* x, int block, int width, int pairs,
                                                 const float* cos_sin) {
  const int c = block * 32 + static_cast<int>(threadIdx.x & 31);
  const float v = bf16_to_float(x[c]);
  const float partner = __shfl_xor_sync(~0u, v, 1);
  return rotated(v, partner, c, width, pairs, cos_sin, false);
}

// Where a row's record goes, or null. Nothing that a kernel writes is read.
__device__ __forceinline__ uint8_t* window_record(const WindowWriteParams& p, int row) {
  if (p.sequence[row] < 0) return nullptr;
  return p.records != nullptr ? p.records + static_cast<int64_t>(row) * window_record_bytes(p.width)
                              : record_of(p.cache, p.sequence[row], p.position[row]);
}

// One 32-block of a row's record, by one warp.
__device__ __forceinline__ void write_window_block(const WindowWriteParams& p, int row, int block) {
  uint8_t* record = window_record(p, row);
  if (record == nullptr) return;
  const float v = rotated_channel(p.kv + static_cast<int64_t>(row) * p.width, block, p.width, p.pairs,
                                  p.cos_sin + static_cast<int64_t>(row) * p.pairs * 2);
  write_fp8_block(v, record + block * 32, record + p.width + block);
}

}  // namespace spark::engine::cuda
