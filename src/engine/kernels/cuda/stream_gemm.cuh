// The product of a streamed weight with a few activation rows: y[m][n] = sum_k x[m][k] w[n][k].
//
// The weight's rows are the M dimension of the matrix instruction, the rows of the step its N dimension. A
// warp owns one or two 16-row tiles and one shard of the columns; it streams them through a ring of its own
// in shared memory by asynchronous copies, started before it waits for the kernel that makes its inputs. (A
// ring in registers stalls: a warp has six scoreboards, so waiting for one load waits for some that were just
// issued.) Partial sums meet in shared memory, across the blocks of a cluster where the shards of a row lie
// in several blocks, and are added in shard order. Bound: weight bytes.
#pragma once

#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/weight_formats.cuh"

namespace spark::engine::cuda {

// A stage is what a warp waits for at once: one or two blocks of all its row tiles. All stages of a warp fill
// kRingBytes.
template <class Format, int kNTiles, int kRowTiles>
struct StreamGemmShape {
  static constexpr int kStageBlocks = Format::kBlockBytes * kRowTiles <= 1024 && kNTiles < 6 ? 2 : 1;
  static constexpr int kStageBytes = kStageBlocks * kRowTiles * Format::kBlockBytes;
  static constexpr int kStages = static_cast<int>(kRingBytes) / kStageBytes;
  // 48 rows: two blocks on a multiprocessor of an H200 are worth a few spilled bytes, and GB10 has no room
  // for two.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
  static constexpr int kMinBlocks = kNTiles * kRowTiles <= 2 ? 3 : kNTiles <= 3 ? 2 : 1;
#else
  static constexpr int kMinBlocks = kNTiles * kRowTiles <= 2 ? 3 : kNTiles <= 6 ? 2 : 1;
#endif
};

// The weight row of output `i` of a row group; outputs are numbered as the warps hold their sums.
template <int kNTiles, int kRowTiles>
__device__ __forceinline__ int64_t output_row(const StreamGemmParams& p, int group, int i) {
  constexpr int kWarpSums = kRowTiles * kNTiles * 128;
  const int owner = i / kWarpSums;
  if (owner >= p.row_warps) return p.out;
  const int within = i - owner * kWarpSums;
  const int r = (within >> 7) / kNTiles;
  return ((static_cast<int64_t>(group) * p.row_warps + owner) * kRowTiles + r) * kTileRows +
         ((within & 31) >> 2) + ((within >> 6) & 1) * 8;
}

template <class Format, int kNTiles, int kRowTiles>
__global__ void __launch_bounds__(kLinearThreads, (StreamGemmShape<Format, kNTiles, kRowTiles>::kMinBlocks))
    stream_gemm_kernel(const __grid_constant__ StreamGemmParams p) {
  using Shape = StreamGemmShape<Format, kNTiles, kRowTiles>;
  using Scale = typename Format::Scale;
  constexpr int kStageBlocks = Shape::kStageBlocks;
  constexpr int kStages = Shape::kStages;
  constexpr int kActivationBlock = kNTiles * (Format::kCodes ? 256 : 512);
  constexpr int kWarps = kLinearThreads / 32;
  SPARK_DYNAMIC_SHARED(uint8_t, shared);

  if (!p.settles) launch_dependents();
  const uint8_t* const weight_tiles = blockIdx.y == 0 ? p.tiles : p.second_tiles;
  const uint8_t* const weight_scales = blockIdx.y == 0 ? p.scales : p.second_scales;
  uint16_t* const y = blockIdx.y == 0 ? p.y : p.second_y;
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
  const int stages = (p.shard_blocks + kStageBlocks - 1) / kStageBlocks;
  const int group_stride = static_cast<int>(gridDim.x) / p.cluster;
  const int first_group = static_cast<int>(blockIdx.x) / p.cluster;

  // The tiles of a row group that this warp reads, or null beyond the last row.
  const auto tiles_of = [&](int group) -> const uint8_t* {
    const int tile = (group * p.row_warps + row_warp) * kRowTiles;
    return group < p.row_groups && tile < p.row_tiles
               ? weight_tiles + static_cast<size_t>(tile) * p.tile_stride
               : nullptr;
  };
  uint8_t* ring = shared + p.ring_offset + warp * kRingBytes;
  // Copies stage `stage` of a row group into its place and closes a group of copies, also when there is
  // nothing to copy: waiting counts groups.
  const auto fetch = [&](const uint8_t* tiles, int stage, int slot) {
    if (tiles != nullptr) {
#pragma unroll
      for (int u = 0; u < kStageBlocks; ++u) {
        const int block = block0 + stage * kStageBlocks + u;
        if (block >= block1) continue;
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          Format::copy(ring + slot * Shape::kStageBytes + (u * kRowTiles + r) * Format::kBlockBytes,
                       tiles + r * p.tile_stride + static_cast<size_t>(block) * Format::kBlockBytes, lane);
        }
      }
    }
    copy_async_commit();
  };
  const auto scale_of = [&](int group, int block) {
    const int tile = (group * p.row_warps + row_warp) * kRowTiles;
    const int at = block + lane;
    return at < block1 && tile < p.row_tiles
               ? Format::scale(__ldg(weight_scales + static_cast<size_t>(tile / 2) * p.blocks + at))
               : Scale{};
  };

  // The next stage to fetch: of which row group, which stage of it, into which slot.
  const uint8_t* tiles = tiles_of(first_group);
  const uint8_t* fetch_tiles = tiles;
  int fetch_group = first_group, fetch_stage = 0, fetch_slot = 0;
  const auto fetch_next = [&] {
    fetch(fetch_tiles, fetch_stage, fetch_slot);
    if (++fetch_slot == kStages) fetch_slot = 0;
    if (++fetch_stage == stages) {
      fetch_stage = 0;
      fetch_group += group_stride;
      fetch_tiles = tiles_of(fetch_group);
    }
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) fetch_next();
  Scale scale_lane = {};
  if constexpr (Format::kWeightScale) scale_lane = scale_of(first_group, block0);

  wait_for_inputs();
  if (p.settles) launch_dependents();

  // Activations of this block's shards, in the order in which the lanes read them.
  const int first_block = min(rank * p.shard_warps * p.shard_blocks, p.blocks);
  const int last_block = min(first_block + p.shard_warps * p.shard_blocks, p.blocks);
  Scale* activation_scales = reinterpret_cast<Scale*>(
      shared + static_cast<size_t>(p.shard_warps * p.shard_blocks) * kActivationBlock);
  const int group_of_rows =
      p.rows_per_group > 0
          ? min(first_group * p.row_warps * kRowTiles * kTileRows / p.rows_per_group, p.groups - 1)
          : 0;
  constexpr bool kMayQuantise = Format::kCodes && kNTiles <= 2;  // see kMaxQuantisingRows
  const bool from_bf16 = !Format::kCodes || (kMayQuantise && p.x != nullptr);
  // Few rows come by plain loads, several before the first is stored: copies would queue behind the weights.
  // Of more rows the loads do not fit into registers, and one after the other they take longer than the
  // weights; they are copied, all at once.
  constexpr bool kCopies = kNTiles >= 2;
  constexpr int kAtOnce = kNTiles >= 6 ? 1 : Format::kCodes ? 8 / kNTiles : 4 / kNTiles + 1;
  const auto x_at = [&](int block, int n) {
    return static_cast<size_t>(n * 8 + g) * p.x_stride + static_cast<size_t>(group_of_rows) * p.cols +
           block * 32 + t * 8;
  };
  const auto has_x = [&](int block, int n) { return n * 8 + g < p.rows && block * 32 + t * 8 < p.cols; };
  if (kCopies && from_bf16 != Format::kCodes) {
    for (int i = first_block + warp; i < last_block; i += kWarps) {
      uint8_t* to = shared + static_cast<size_t>(i - first_block) * kActivationBlock;
#pragma unroll
      for (int n = 0; n < kNTiles; ++n) {
        const bool live = has_x(i, n);
        const size_t at = live ? x_at(i, n) : 0;
        if constexpr (Format::kCodes) {
          copy_async_8(to + n * 256 + lane * 8, p.x_codes + at, live);
        } else {
          copy_async_16(to + n * 512 + lane * 16, p.x + at, live);
        }
      }
    }
    copy_async_commit();
  } else {
    for (int i = first_block + warp; i < last_block; i += kWarps * kAtOnce) {
      uint4 x[kAtOnce][kNTiles];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int block = i + j * kWarps;
#pragma unroll
        for (int n = 0; n < kNTiles; ++n) {
          x[j][n] = make_uint4(0, 0, 0, 0);
          if (block >= last_block || !has_x(block, n)) continue;
          if (from_bf16) {
            x[j][n] = *reinterpret_cast<const uint4*>(p.x + x_at(block, n));
          } else {
            const uint2 v = *reinterpret_cast<const uint2*>(p.x_codes + x_at(block, n));
            x[j][n].x = v.x, x[j][n].y = v.y;
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int block = i + j * kWarps;
        if (block >= last_block) continue;
        uint8_t* to = shared + static_cast<size_t>(block - first_block) * kActivationBlock;
#pragma unroll
        for (int n = 0; n < kNTiles; ++n) {
          if constexpr (Format::kCodes) {
            if (kMayQuantise && from_bf16) {
              // The quantiser's own arithmetic; a quad of lanes holds a block.
              const EightCodes q = quantise_eight(unpack_eight(x[j][n]));
              x[j][n].x = q.codes.x, x[j][n].y = q.codes.y;
              const int m = n * 8 + g;
              if (t == 0) activation_scales[(block - first_block) * kNTiles * 8 + m] = Format::scale(q.scale);
              if (first_group == 0 && m < p.rows) {
                const size_t at = static_cast<size_t>(m) * p.blocks + block;
                *reinterpret_cast<uint2*>(p.quantised_codes + at * 32 + t * 8) = q.codes;
                if (t == 0) p.quantised_scales[at] = q.scale;
              }
            }
            *reinterpret_cast<uint2*>(to + n * 256 + lane * 8) = make_uint2(x[j][n].x, x[j][n].y);
          } else {
            *reinterpret_cast<uint4*>(to + n * 512 + lane * 16) = x[j][n];
          }
        }
      }
    }
  }
  if constexpr (Format::kCodes) {
    // A warp takes four blocks of all rows, a lane a row: rows lie side by side in shared memory.
    constexpr int kLaneRows = (kNTiles * 8 + 31) / 32;
    constexpr int kAtOnceHere = kLaneRows == 1 ? 4 : 2;
    const int count = from_bf16 ? 0 : last_block - first_block;
    const bool words = p.blocks % 4 == 0 && first_block % 4 == 0;
    const auto four_scales = [&](int m, int b) -> uint32_t {
      if (m >= p.rows || b >= count) return 0u;
      const uint8_t* from = p.x_scales + static_cast<size_t>(m) * p.blocks + first_block + b;
      if (words) return *reinterpret_cast<const uint32_t*>(from);
      uint32_t v = from[0];
#pragma unroll
      for (int j = 1; j < 4; ++j) {
        if (b + j < count) v |= static_cast<uint32_t>(from[j]) << (8 * j);
      }
      return v;
    };
    for (int b0 = warp * 4; b0 < count; b0 += kWarps * 4 * kAtOnceHere) {
      uint32_t v[kAtOnceHere][kLaneRows];
#pragma unroll
      for (int j = 0; j < kAtOnceHere; ++j) {
#pragma unroll
        for (int r = 0; r < kLaneRows; ++r) v[j][r] = four_scales(r * 32 + lane, b0 + j * kWarps * 4);
      }
#pragma unroll
      for (int j = 0; j < kAtOnceHere; ++j) {
#pragma unroll
        for (int r = 0; r < kLaneRows; ++r) {
          const int m = r * 32 + lane;
#pragma unroll
          for (int u = 0; u < 4; ++u) {
            const int b = b0 + j * kWarps * 4 + u;
            if (m < p.rows && b < count)
              activation_scales[b * kNTiles * 8 + m] = Format::scale((v[j][r] >> (8 * u)) & 0xFFu);
          }
        }
      }
    }
  }
  if constexpr (kCopies) copy_async_wait<0>();
  __syncthreads();

  int slot = 0;
  for (int group = first_group; group < p.row_groups; group += group_stride) {
    const uint8_t* next_tiles = tiles_of(group + group_stride);
    float sum[kRowTiles][kNTiles][4] = {};
    // The output that this thread finishes first: its exceptions are looked up while the weights stream.
    uint32_t exception_first = 0, exception_last = 0, exception_entry = 0;
    if constexpr (Format::kPacked) {
      const int64_t row =
          output_row<kNTiles, kRowTiles>(p, group, rank * kLinearThreads + static_cast<int>(threadIdx.x));
      if (row < p.out) {
        exception_first = __ldg(p.exception_offsets + row);
        exception_last = __ldg(p.exception_offsets + row + 1);
        if (exception_first < exception_last) exception_entry = __ldg(p.exceptions + exception_first);
      }
    }

    for (int stage = 0; stage < stages; ++stage) {
      copy_async_wait<kStages - 2>();
      typename Format::Word words[kStageBlocks][kRowTiles];
#pragma unroll
      for (int u = 0; u < kStageBlocks; ++u) {
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          words[u][r] = Format::read(
              ring + slot * Shape::kStageBytes + (u * kRowTiles + r) * Format::kBlockBytes, lane);
        }
      }
      if (++slot == kStages) slot = 0;
      fetch_next();
#pragma unroll
      for (int u = 0; u < kStageBlocks; ++u) {
        const int block = block0 + stage * kStageBlocks + u;
        if (tiles != nullptr && block < block1) {
          uint32_t a[kRowTiles][8];
          if constexpr (!Format::kBlockScaled) {
#pragma unroll
            for (int r = 0; r < kRowTiles; ++r) Format::operand(words[u][r], a[r]);
          }

          Scale weight_scale = {};
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
            if constexpr (Format::kBlockScaled) {
              const uint2 codes = *reinterpret_cast<const uint2*>(b_block + n * 256 + lane * 8);
              const uint32_t x_scale = activation_scales[(block - first_block) * kNTiles * 8 + n * 8 + g];
#pragma unroll
              for (int r = 0; r < kRowTiles; ++r) {
                Format::multiply(sum[r][n], words[u][r], codes, weight_scale, x_scale);
              }
            } else if constexpr (Format::kCodes) {
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
    if constexpr (Format::kWeightScale) {
      if (next_tiles != nullptr) scale_lane = scale_of(group + group_stride, block0);
    }

    float* partial = reinterpret_cast<float*>(shared + p.reduce_offset);
    constexpr int kWarpSums = kRowTiles * kNTiles * 128;
    if (!p.persistent) __syncthreads();  // the sums take the place of the activations
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
      // All of a block's partial sums at once, then the additions in shard order; absent shards add zero.
      const float* first = partial + owner * kWarpSums + within;
      const int stride = p.row_warps * kWarpSums;
      float total = 0.0f;
      for (int c = 0; c < p.cluster; ++c) {
        float v[kWarps];
#pragma unroll
        for (int s = 0; s < kWarps; ++s) {
          v[s] = s >= p.shard_warps ? 0.0f
                 : p.cluster > 1    ? load_cluster(first + s * stride, static_cast<uint32_t>(c))
                                    : first[s * stride];
        }
#pragma unroll
        for (int s = 0; s < kWarps; ++s) total += v[s];
      }
      if constexpr (Format::kPacked) {
        const bool known = i < (rank + 1) * kLinearThreads;
        uint32_t e = known ? exception_first : p.exception_offsets[row];
        const uint32_t last = known ? exception_last : p.exception_offsets[row + 1];
        for (bool ready = known; e < last; ++e, ready = false) {
          const uint32_t entry = ready ? exception_entry : p.exceptions[e];
          total = fmaf(bf16_to_float(p.x[static_cast<size_t>(m) * p.x_stride + (entry >> 16)]),
                       bf16_to_float(entry & 0xFFFFu), total);
        }
      }
      const size_t at = static_cast<size_t>(m) * p.y_stride + static_cast<size_t>(row);
      if (p.y_f32 != nullptr) {
        p.y_f32[at] = total;
      } else {
        y[at] = float_to_bf16(total);
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
