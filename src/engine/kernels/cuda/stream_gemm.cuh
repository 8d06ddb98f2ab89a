// The product of a streamed weight with a few activation rows: y[m][n] = sum_k x[m][k] w[n][k].
//
// The weight's rows are the M dimension of the matrix instruction, the rows of the step its N dimension. A
// warp owns one or two 16-row tiles and one shard of the columns; it keeps kDepth 512-byte weight loads in
// flight in registers, issued before it waits for the kernel that makes its inputs. Partial sums meet in
// shared memory, across the blocks of a cluster where the shards of a row lie in several blocks, and are
// added in shard order. Bound: weight bytes.
#pragma once

#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"

namespace spark::engine::cuda {

// How a weight format is loaded and turned into the A operand. Word = what a lane holds of a 16x32 tile.
struct Fp8Format {
  using Word = uint4;
  static constexpr int kDepth = 8;  // blocks in flight for a warp of one row tile
  static constexpr int kDepthOfTwo = 4;
  static constexpr bool kCodes = true;  // activations are E4M3 codes with scales; FP16 operands
  static constexpr bool kWeightScale = true;
  static constexpr bool kPacked = false;
  static constexpr size_t kBlockBytes = kTileBytes;

  static __device__ __forceinline__ Word load(const uint8_t* tile, int lane) {
    return load_stream(reinterpret_cast<const uint4*>(tile) + lane);
  }
  static __device__ __forceinline__ void operand(const Word& w, uint32_t (&a)[8]) {
    a[0] = e4m3x2_to_half2(w.x), a[2] = e4m3x2_to_half2(w.x >> 16);
    a[4] = e4m3x2_to_half2(w.y), a[6] = e4m3x2_to_half2(w.y >> 16);
    a[1] = e4m3x2_to_half2(w.z), a[3] = e4m3x2_to_half2(w.z >> 16);
    a[5] = e4m3x2_to_half2(w.w), a[7] = e4m3x2_to_half2(w.w >> 16);
  }
};

// FP8 weight with unquantised BF16 activations (WO-A): E4M3 is exact in BF16.
struct Fp8Bf16Format {
  using Word = uint4;
  static constexpr int kDepth = 8;
  static constexpr int kDepthOfTwo = 3;
  static constexpr bool kCodes = false;
  static constexpr bool kWeightScale = true;
  static constexpr bool kPacked = false;
  static constexpr size_t kBlockBytes = kTileBytes;

  static __device__ __forceinline__ Word load(const uint8_t* tile, int lane) {
    return Fp8Format::load(tile, lane);
  }
  static __device__ __forceinline__ void operand(const Word& w, uint32_t (&a)[8]) {
    Fp8Format::operand(w, a);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 v = half2_to_float2(a[i]);
      a[i] = pack_bf16(v.x, v.y);
    }
  }
};

struct Bf16Format {
  struct Word {
    uint4 first, second;
  };
  static constexpr int kDepth = 4;
  static constexpr int kDepthOfTwo = 2;
  static constexpr bool kCodes = false;
  static constexpr bool kWeightScale = false;
  static constexpr bool kPacked = false;
  static constexpr size_t kBlockBytes = kBf16TileBytes;

  static __device__ __forceinline__ Word load(const uint8_t* tile, int lane) {
    const uint4* p = reinterpret_cast<const uint4*>(tile) + lane;
    return {load_stream(p), load_stream(p + 32)};
  }
  static __device__ __forceinline__ void operand(const Word& w, uint32_t (&a)[8]) {
    a[0] = w.first.x, a[1] = w.first.y, a[2] = w.first.z, a[3] = w.first.w;
    a[4] = w.second.x, a[5] = w.second.y, a[6] = w.second.z, a[7] = w.second.w;
  }
};

struct PackedFormat {
  struct Word {
    uint4 bytes;
    uint2 nibbles;
  };
  static constexpr int kDepth = 5;
  static constexpr int kDepthOfTwo = 2;
  static constexpr bool kCodes = false;
  static constexpr bool kWeightScale = false;
  static constexpr bool kPacked = true;
  static constexpr size_t kBlockBytes = kPackedTileBytes;

  static __device__ __forceinline__ Word load(const uint8_t* tile, int lane) {
    return {load_stream(reinterpret_cast<const uint4*>(tile) + lane),
            load_stream(reinterpret_cast<const uint2*>(tile + kTileBytes) + lane)};
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

template <class Format, int kNTiles, int kRowTiles>
struct StreamGemmShape {
  // Two row tiles make each block in flight twice as large; with 96 rows the sums need the registers.
  static constexpr int kDepth =
      kRowTiles == 2 ? Format::kDepthOfTwo : Format::kDepth / (kNTiles == 12 ? 2 : 1);
  static constexpr int kMinBlocks = kNTiles == 1 ? 3 : kNTiles <= 3 ? 2 : 1;
};

template <class Format, int kNTiles, int kRowTiles>
__global__ void __launch_bounds__(kLinearThreads, (StreamGemmShape<Format, kNTiles, kRowTiles>::kMinBlocks))
    stream_gemm_kernel(const __grid_constant__ StreamGemmParams p) {
  constexpr int kDepth = StreamGemmShape<Format, kNTiles, kRowTiles>::kDepth;
  constexpr int kActivationBlock = kNTiles * (Format::kCodes ? 256 : 512);
  constexpr int kWarps = kLinearThreads / 32;
  SPARK_DYNAMIC_SHARED(uint8_t, shared);

  launch_dependents();
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int g = lane >> 2;
  const int t = lane & 3;
  const int rank = p.cluster > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int row_warp = warp % p.row_warps;
  const int shard_warp = warp / p.row_warps;
  const int shard = rank * p.shard_warps + shard_warp;
  const int block0 = min(shard * p.shard_blocks, p.blocks);
  const int block1 = min(block0 + p.shard_blocks, p.blocks);
  const int batches = (p.shard_blocks + kDepth - 1) / kDepth;
  const int group_stride = static_cast<int>(gridDim.x) / p.cluster;
  const int first_group = static_cast<int>(blockIdx.x) / p.cluster;

  // The tiles of a row group that this warp reads, or null beyond the last row.
  const auto tiles_of = [&](int group) -> const uint8_t* {
    const int tile = (group * p.row_warps + row_warp) * kRowTiles;
    return group < p.row_groups && tile < p.row_tiles ? p.tiles + static_cast<size_t>(tile) * p.tile_stride
                                                      : nullptr;
  };
  typename Format::Word ring[kDepth][kRowTiles];
  const auto fetch = [&](typename Format::Word(&slot)[kRowTiles], const uint8_t* tiles, int block) {
    if (tiles == nullptr || block >= block1) return;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      slot[r] =
          Format::load(tiles + r * p.tile_stride + static_cast<size_t>(block) * Format::kBlockBytes, lane);
    }
  };
  const auto scale_of = [&](int group, int block) {
    const int tile = (group * p.row_warps + row_warp) * kRowTiles;
    const int at = block + lane;
    return at < block1 && tile < p.row_tiles
               ? ue8m0_to_float(__ldg(p.scales + static_cast<size_t>(tile / 2) * p.blocks + at))
               : 0.0f;
  };

  const uint8_t* tiles = tiles_of(first_group);
#pragma unroll
  for (int u = 0; u < kDepth; ++u) fetch(ring[u], tiles, block0 + u);
  float scale_lane = 0.0f;
  if constexpr (Format::kWeightScale) scale_lane = scale_of(first_group, block0);

  wait_for_inputs();

  // Activations of this block's shards, in the order in which the lanes read them.
  const int first_block = min(rank * p.shard_warps * p.shard_blocks, p.blocks);
  const int last_block = min(first_block + p.shard_warps * p.shard_blocks, p.blocks);
  float* activation_scales = reinterpret_cast<float*>(
      shared + static_cast<size_t>(p.shard_warps * p.shard_blocks) * kActivationBlock);
  const int group_of_rows =
      p.rows_per_group > 0
          ? min(first_group * p.row_warps * kRowTiles * kTileRows / p.rows_per_group, p.groups - 1)
          : 0;
  for (int i = first_block + warp; i < last_block; i += kWarps) {
#pragma unroll
    for (int n = 0; n < kNTiles; ++n) {
      const int m = n * 8 + g;
      uint8_t* to = shared + static_cast<size_t>(i - first_block) * kActivationBlock;
      if constexpr (Format::kCodes) {
        if (m < p.rows) {
          copy_async_8(to + n * 256 + lane * 8,
                       p.x_codes + static_cast<size_t>(m) * p.x_stride + i * 32 + t * 8);
        }
      } else {
        if (m < p.rows) {
          const int column = i * 32 + t * 8;
          const bool valid = column < p.cols;
          const uint16_t* from = p.x + static_cast<size_t>(m) * p.x_stride +
                                 static_cast<size_t>(group_of_rows) * p.cols + (valid ? column : 0);
          copy_async_16(to + n * 512 + lane * 16, from, valid);
        }
      }
    }
  }
  if constexpr (Format::kCodes) {
    const int count = last_block - first_block;
    for (int i = static_cast<int>(threadIdx.x); i < count * p.rows; i += kLinearThreads) {
      const int m = i / count;
      const int b = i - m * count;
      activation_scales[b * kNTiles * 8 + m] =
          ue8m0_to_float(p.x_scales[static_cast<size_t>(m) * p.blocks + first_block + b]);
    }
  }
  copy_async_wait();
  __syncthreads();

  for (int group = first_group; group < p.row_groups; group += group_stride) {
    const uint8_t* next_tiles = tiles_of(group + group_stride);
    float sum[kRowTiles][kNTiles][4] = {};

    for (int batch = 0; batch < batches; ++batch) {
#pragma unroll
      for (int u = 0; u < kDepth; ++u) {
        const int block = block0 + batch * kDepth + u;
        if (tiles != nullptr && block < block1) {
          uint32_t a[kRowTiles][8];
#pragma unroll
          for (int r = 0; r < kRowTiles; ++r) Format::operand(ring[u][r], a[r]);
          if (batch + 1 < batches) fetch(ring[u], tiles, block + kDepth);

          float weight_scale = 1.0f;
          if constexpr (Format::kWeightScale) {
            const int at = block - block0;
            if (at != 0 && (at & 31) == 0) scale_lane = scale_of(group, block);
            weight_scale = __shfl_sync(~0u, scale_lane, at & 31);
          }
          if constexpr (Format::kPacked) {
            const uint32_t unpack = p.unpack_scale * 0x10001u;
#pragma unroll
            for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
              for (int i = 0; i < 8; ++i) a[r][i] = multiply_bf16x2(a[r][i], unpack);
            }
          }
          const uint8_t* b_block = shared + static_cast<size_t>(block - first_block) * kActivationBlock;
#pragma unroll
          for (int n = 0; n < kNTiles; ++n) {
            if constexpr (Format::kCodes) {
              const uint2 codes = *reinterpret_cast<const uint2*>(b_block + n * 256 + lane * 8);
              const float2 x_scale = *reinterpret_cast<const float2*>(
                  activation_scales + (block - first_block) * kNTiles * 8 + n * 8 + t * 2);
              const uint32_t b0 = e4m3x2_to_half2(codes.x), b1 = e4m3x2_to_half2(codes.x >> 16);
              const uint32_t b2 = e4m3x2_to_half2(codes.y), b3 = e4m3x2_to_half2(codes.y >> 16);
              const float s0 = weight_scale * x_scale.x;
              const float s1 = weight_scale * x_scale.y;
#pragma unroll
              for (int r = 0; r < kRowTiles; ++r) {
                float d[4] = {};
                mma_f16(d, a[r][0], a[r][1], a[r][2], a[r][3], b0, b1);
                mma_f16(d, a[r][4], a[r][5], a[r][6], a[r][7], b2, b3);
                sum[r][n][0] = fmaf(d[0], s0, sum[r][n][0]);
                sum[r][n][1] = fmaf(d[1], s1, sum[r][n][1]);
                sum[r][n][2] = fmaf(d[2], s0, sum[r][n][2]);
                sum[r][n][3] = fmaf(d[3], s1, sum[r][n][3]);
              }
            } else {
              const uint4 x = *reinterpret_cast<const uint4*>(b_block + n * 512 + lane * 16);
#pragma unroll
              for (int r = 0; r < kRowTiles; ++r) {
                if constexpr (Format::kWeightScale) {
                  float d[4] = {};
                  mma_bf16(d, a[r][0], a[r][1], a[r][2], a[r][3], x.x, x.y);
                  mma_bf16(d, a[r][4], a[r][5], a[r][6], a[r][7], x.z, x.w);
#pragma unroll
                  for (int q = 0; q < 4; ++q) sum[r][n][q] = fmaf(d[q], weight_scale, sum[r][n][q]);
                } else {
                  mma_bf16(sum[r][n], a[r][0], a[r][1], a[r][2], a[r][3], x.x, x.y);
                  mma_bf16(sum[r][n], a[r][4], a[r][5], a[r][6], a[r][7], x.z, x.w);
                }
              }
            }
          }
        }
      }
    }
    // The next group's first weights travel while this one's sums meet.
    if (next_tiles != nullptr) {
#pragma unroll
      for (int u = 0; u < kDepth; ++u) fetch(ring[u], next_tiles, block0 + u);
      if constexpr (Format::kWeightScale) scale_lane = scale_of(group + group_stride, block0);
    }

    float* partial = reinterpret_cast<float*>(shared + p.reduce_offset);
    constexpr int kWarpSums = kRowTiles * kNTiles * 128;
    if (p.reduce_offset == 0) __syncthreads();  // the sums take the place of the activations
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
        for (int q = 0; q < 4; ++q)
          partial[warp * kWarpSums + ((r * kNTiles + n) * 4 + q) * 32 + lane] = sum[r][n][q];
      }
    }
    if (p.cluster > 1) {
      cluster_sync();
    } else {
      __syncthreads();
    }
    const int outputs = p.row_warps * kWarpSums;
    for (int i = rank * kLinearThreads + static_cast<int>(threadIdx.x); i < outputs;
         i += p.cluster * kLinearThreads) {
      const int owner = i / kWarpSums;
      const int within = i - owner * kWarpSums;
      const int source = within & 31;
      const int q = (within >> 5) & 3;
      const int n = (within >> 7) % kNTiles;
      const int r = (within >> 7) / kNTiles;
      const int m = n * 8 + (source & 3) * 2 + (q & 1);
      const int64_t row = ((static_cast<int64_t>(group) * p.row_warps + owner) * kRowTiles + r) * kTileRows +
                          (source >> 2) + (q >> 1) * 8;
      if (m >= p.rows || row >= p.out) continue;
      float total = 0.0f;
      for (int c = 0; c < p.cluster; ++c) {
        for (int s = 0; s < p.shard_warps; ++s) {
          const float* at = partial + (s * p.row_warps + owner) * kWarpSums + within;
          total += p.cluster > 1 ? load_cluster(at, static_cast<uint32_t>(c)) : *at;
        }
      }
      if constexpr (Format::kPacked) {
        const uint32_t first = p.exception_offsets[row];
        const uint32_t last = p.exception_offsets[row + 1];
        for (uint32_t e = first; e < last; ++e) {
          const uint32_t entry = p.exceptions[e];
          total = fmaf(bf16_to_float(p.x[static_cast<size_t>(m) * p.x_stride + (entry >> 16)]),
                       bf16_to_float(entry & 0xFFFFu), total);
        }
      }
      const size_t at = static_cast<size_t>(m) * p.y_stride + static_cast<size_t>(row);
      if (p.y_f32 != nullptr) {
        p.y_f32[at] = total;
      } else {
        p.y[at] = float_to_bf16(total);
      }
    }
    if (p.cluster > 1) {
      cluster_sync();  // the others may still read this block's sums
    } else if (group + group_stride < p.row_groups) {
      __syncthreads();
    }
    tiles = next_tiles;
  }
}

}  // namespace spark::engine::cuda
