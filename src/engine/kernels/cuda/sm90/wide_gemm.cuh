// The product of a weight with nine to 48 rows by the matrix instruction of a warpgroup:
// y[m][n] = sum_k x[m][k] w[n][k].
//
// A warpgroup owns 128 weight rows (two 16-row tiles a warp, which share their scales and the reads of the
// rows') and one or more shards of the columns, and all its weights are on their way to shared memory before
// it waits for the kernel that makes its inputs. A block of the weight is converted once, in registers,
// whatever the number of rows; the rows are brought into the instruction's order once by the whole block. The
// sums are the streaming product's (stream_gemm.cuh), bit for bit: a block of 32 columns by the matrix unit,
// blocks ascending in a shard, then shard by shard. Where a row's shards lie in several blocks of a cluster,
// each block pushes its partial sums to the one that adds them.
//
// In a step this code runs once a layer and is fetched anew, at about three nanoseconds an instruction: every
// phase is a short loop, and what could be unrolled to have more under way is copied asynchronously instead.
#pragma once

#include "engine/kernels/cuda/sm90/wgmma.cuh"
#include "engine/kernels/cuda/stream_gemm.cuh"

namespace spark::engine::cuda {

// The rows' columns [first_block, first_block + count) as operand B in `operands`, and their scales. A warp
// takes eight rows of 64 (codes) or 32 columns at once: whole sectors of memory, and every bank once. They
// are copied to the rows' own places first and put in order there: a row's block is one warp's.
template <class Format, int kN>
__device__ __forceinline__ void stage_wide_rows(const StreamGemmParams& p, int group_of_rows, int first_block,
                                                int count, uint8_t* operands, float* scales) {
  constexpr int kUnitBlocks = Format::kCodes ? 2 : 1;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warps = static_cast<int>(blockDim.x >> 5);
  // Codes: half a block of a row a lane, two blocks in the two halves of the warp.
  const int block_of_lane = Format::kCodes ? lane >> 4 : 0;
  const int row_of_lane = Format::kCodes ? (lane >> 1) & 7 : lane >> 2;
  const int part = Format::kCodes ? lane & 1 : lane & 3;
  const int columns = (count + kUnitBlocks - 1) / kUnitBlocks;
  const size_t first = (static_cast<size_t>(group_of_rows) * static_cast<size_t>(p.cols) +
                        static_cast<size_t>(first_block) * 32) *
                           (Format::kCodes ? 1 : 2) +
                       static_cast<size_t>(part * 16);
  const uint8_t* const x = (Format::kCodes ? p.x_codes : reinterpret_cast<const uint8_t*>(p.x)) + first;
  const size_t row_bytes = static_cast<size_t>(p.x_stride) * (Format::kCodes ? 1 : 2);
  // Calls with a row, a block and whether they are there; whole warps.
  const auto each = [&](const auto& use) {
    int column = static_cast<int>(threadIdx.x >> 5), row0 = 0;
#pragma unroll 1
    while (true) {
      while (column >= columns) column -= columns, row0 += 8;
      if (row0 >= p.rows) break;
      const int block = column * kUnitBlocks + block_of_lane, row = row0 + row_of_lane;
      use(row, block, row < p.rows && block < count);
      column += warps;
    }
  };
  if (count <= 0) return;
  each([&](int row, int block, bool live) {
    if (live) {
      copy_async_16(operands + static_cast<uint32_t>(block) * wide_block_bytes(kN) + row * 64 + part * 16,
                    x + static_cast<size_t>(row) * row_bytes + block * (Format::kCodes ? 32 : 64));
    }
  });
  copy_async_commit();
  if constexpr (Format::kCodes) {
    // Four blocks' scales a thread where they lie in one word, else one's.
    const int width = p.blocks % 4 == 0 && first_block % 4 == 0 && count % 4 == 0 ? 4 : 1;
    const int words = count / width;
#pragma unroll 1
    for (int w = static_cast<int>(threadIdx.x); w < words * p.rows; w += static_cast<int>(blockDim.x)) {
      const int row = w / words, block = (w - row * words) * width;
      const uint8_t* const from =
          p.x_scales + static_cast<size_t>(row) * static_cast<size_t>(p.blocks) + first_block + block;
      uint32_t v = width == 4 ? *reinterpret_cast<const uint32_t*>(from) : *from;
      float* to = scales + block * wide_scale_stride(kN) + wide_scale_place(kN, row);
#pragma unroll 1
      for (int j = 0; j < width; ++j, v >>= 8, to += wide_scale_stride(kN)) *to = ue8m0_to_float(v & 0xFFu);
    }
  }
  copy_async_wait<0>();
  __syncwarp();
  each([&](int row, int block, bool live) {
    // The place of chunk c is that of chunk 0 with c in bits 4 and 5 turned over.
    uint8_t* const block_at = operands + static_cast<uint32_t>(block) * wide_block_bytes(kN);
    const uint32_t to = wide_chunk(row, 0) + static_cast<uint32_t>(part) * (Format::kCodes ? 8 : 4);
    uint4 v = make_uint4(0, 0, 0, 0);
    if (live) v = *reinterpret_cast<const uint4*>(block_at + row * 64 + part * 16);
    __syncwarp();
    if (!live) return;
    if constexpr (Format::kCodes) {
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (uint32_t c = 0; c < 4; ++c) {
        *reinterpret_cast<uint2*>(block_at + (to ^ (c << 4))) =
            make_uint2(e4m3x2_to_half2(words[c / 2] >> (16 * (c & 1))),
                       e4m3x2_to_half2(words[c / 2 + 2] >> (16 * (c & 1))));
      }
    } else {
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (uint32_t c = 0; c < 4; ++c) *reinterpret_cast<uint32_t*>(block_at + (to ^ (c << 4))) = words[c];
    }
  });
}

// The scales that a lane needs of a block's rows, times the weight's.
template <int kN>
__device__ __forceinline__ void read_wide_scales(const float* from, float weight_scale, float (&s)[kN * 2]) {
  constexpr int kWidth = kN % 2 == 0 ? 4 : 2;
#pragma unroll
  for (int i = 0; i < kN * 2; i += kWidth) {
    if constexpr (kWidth == 4) {
      const float4 v = *reinterpret_cast<const float4*>(from + i);
      s[i] = v.x, s[i + 1] = v.y, s[i + 2] = v.z, s[i + 3] = v.w;
    } else {
      const float2 v = *reinterpret_cast<const float2*>(from + i);
      s[i] = v.x, s[i + 1] = v.y;
    }
  }
#pragma unroll
  for (int i = 0; i < kN * 2; ++i) s[i] = weight_scale * s[i];
}

template <class Format, int kN>
__global__ void __launch_bounds__(kWideThreads, 1)
    wide_gemm_kernel(const __grid_constant__ StreamGemmParams p) {
  constexpr bool kBf16 = !Format::kCodes;
  constexpr uint32_t kBlock = wide_block_bytes(kN);
  constexpr int kTeamTiles = kWideRows / kTileRows;
  SPARK_OPERAND_SHARED(operands);  // the rows and their scales, barriers and weights, partial sums
  if (!p.settles) launch_dependents();
  const bool apart = p.reduce_offset != 0;  // else the partial sums take the place of the rows
  if (p.cluster > 1 && apart) cluster_arrive_relaxed();
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int t = lane & 3;
  const int rank = p.cluster > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int team = warp >> 2;  // warpgroup
  const int row_team = team % p.row_warps, shard_team = team / p.row_warps;
  const int shards_here = p.shard_warps * p.warp_shards;
  const int shards = p.cluster * shards_here;
  const int shard0 = rank * shards_here + shard_team * p.warp_shards;
  // Of grouped rows a cluster's lie in one group.
  const int cluster_index = static_cast<int>(blockIdx.x) / p.cluster;
  const int row_group = p.rows_per_group > 0 ? cluster_index / p.row_groups : 0;
  const int first_tile = (cluster_index - row_group * p.row_groups) * p.row_warps * kTeamTiles;
  const int group_tiles = p.rows_per_group > 0 ? p.rows_per_group / kTileRows : p.row_tiles;
  const int tile_here = row_team * kTeamTiles + (warp & 3) * 2;  // the first of this warp's two
  const bool has_tile = first_tile + tile_here < group_tiles;
  const int tile = row_group * group_tiles + first_tile + tile_here;
  const int block0 = min(shard0 * p.shard_blocks, p.blocks);
  const int most = p.warp_shards * p.shard_blocks;
  const int count = min(most, p.blocks - block0);

  // ---- the weights: two copies for each of the warp's tiles, so that the products may begin with the first.
  // Where there is no tile the sums are of whatever lies there, and nobody reads them.
  uint64_t* const arrived = reinterpret_cast<uint64_t*>(operands + p.ring_offset) + warp * 2;
  const uint8_t* next = operands + p.ring_offset + kWideBarrierBytes +
                        static_cast<size_t>(warp * most) * (2 * kTileBytes) + lane * 16;
  const int half = (count + 1) / 2;
  float scale_lane = 0.0f;
  if (has_tile) {
    if (lane == 0) {
      barrier_init(arrived, 2);
      barrier_init(arrived + 1, 2);
      barrier_init_done();
      uint8_t* const to = const_cast<uint8_t*>(next);
      const uint8_t* const from = (blockIdx.y == 0 ? p.tiles : p.second_tiles) +
                                  static_cast<size_t>(tile) * p.tile_stride +
                                  static_cast<size_t>(block0) * kTileBytes;
#pragma unroll 1
      for (int i = 0; i < 4; ++i) {
        const int first = i < 2 ? 0 : half, blocks = i < 2 ? half : count - half;
        if (blocks > 0) {
          copy_bulk(to + ((i & 1) * most + first) * kTileBytes, from + (i & 1) * p.tile_stride + first * kTileBytes,
                    static_cast<uint32_t>(blocks * kTileBytes), arrived + i / 2);
        }
      }
    }
    if (lane < count) {
      scale_lane = ue8m0_to_float(__ldg((blockIdx.y == 0 ? p.scales : p.second_scales) +
                                        static_cast<size_t>(tile / 2) * p.blocks + block0 + lane));
    }
  }

  wait_for_inputs();
  if (p.settles) launch_dependents();

  const int first_block = min(rank * shards_here * p.shard_blocks, p.blocks);
  const int blocks_here = min(shards_here * p.shard_blocks, p.blocks - first_block);
  float* const row_scales =
      reinterpret_cast<float*>(operands + static_cast<size_t>(shards_here * p.shard_blocks) * kBlock);
  stage_wide_rows<Format, kN>(p, row_group, first_block, blocks_here, operands, row_scales);
  wgmma_operands_written();
  __syncthreads();

  // ---- products
  uint8_t* const partial = operands + p.reduce_offset;
  uint64_t rows = wgmma_operand(operands + static_cast<size_t>(block0 - first_block) * kBlock);
  const float* scales = row_scales + (block0 - first_block) * wide_scale_stride(kN) + t * kN * 2;
  int at = 0;
#pragma unroll 1
  for (int shard = shard0; shard < shard0 + p.warp_shards; ++shard) {
    float sum[2][kN][4] = {};
    const int end = min(count, at + p.shard_blocks);
#pragma unroll 1
    while (at < end) {
      if (has_tile && (at == 0 || at == half)) barrier_wait(arrived + (at == 0 ? 0 : 1), 0);
      float d[2][kN][4];
      const uint4 words[2] = {*reinterpret_cast<const uint4*>(next),
                              *reinterpret_cast<const uint4*>(next + most * kTileBytes)};
      next += kTileBytes;
      uint32_t a[2][8];
      Format::operand(words[0], a[0]);
      Format::operand(words[1], a[1]);
      wgmma_fence();
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        wgmma<false, kBf16>(d[r], a[r][0], a[r][1], a[r][2], a[r][3], rows);
        wgmma<true, kBf16>(d[r], a[r][4], a[r][5], a[r][6], a[r][7], wgmma_operand_at(rows, kWideStepBytes));
      }
      wgmma_commit();
      const float weight_scale = __shfl_sync(~0u, scale_lane, at);
      float s[kN * 2] = {weight_scale};
      if constexpr (Format::kCodes) read_wide_scales<kN>(scales, weight_scale, s);
      rows = wgmma_operand_at(rows, kBlock);
      scales += wide_scale_stride(kN);
      ++at;
      wgmma_wait<0>(d[0]);
      wgmma_pin(d[1]);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int n = 0; n < kN; ++n) {
#pragma unroll
          for (int q = 0; q < 4; ++q)
            sum[r][n][q] = fmaf(d[r][n][q], s[Format::kCodes ? n * 2 + (q & 1) : 0], sum[r][n][q]);
        }
      }
    }

    // ---- the partial sums: the block's row tiles are dealt to the cluster's blocks
    if (shard == shard0) {
      if (p.cluster > 1) {
        // Apart: the others have started. Else: they are done with their rows.
        if (!apart) cluster_arrive_relaxed();
        cluster_wait();
      } else if (!apart) {
        __syncthreads();
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int local_tile = (tile_here + r) / p.cluster;
      uint8_t* const local = partial + ((local_tile * shards + shard) * kN * 512 + lane * 16);
      const ClusterAddress to = cluster_address(local, static_cast<uint32_t>((tile_here + r) & (p.cluster - 1)));
#pragma unroll
      for (int n = 0; n < kN; ++n)
        store_cluster_at(to, n * 512, make_float4(sum[r][n][0], sum[r][n][1], sum[r][n][2], sum[r][n][3]));
    }
  }
  if (p.cluster > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }

  // ---- a warp adds the shards of 16 weight rows and eight rows of the step
  const int local_tiles = p.row_warps * kTeamTiles / p.cluster;
#pragma unroll 1
  for (int unit = warp; unit < local_tiles * kN; unit += static_cast<int>(blockDim.x >> 5)) {
    const int local_tile = unit / kN, n = unit - local_tile * kN;
    const int unit_tile = first_tile + local_tile * p.cluster + rank;
    if (unit_tile >= group_tiles) continue;
    const uint8_t* from = partial + ((local_tile * shards * kN + n) * 512 + lane * 16);
    float total[4] = {};
#pragma unroll 4
    for (int s = 0; s < shards; ++s, from += kN * 512) {
      const float4 v = *reinterpret_cast<const float4*>(from);
      total[0] += v.x, total[1] += v.y, total[2] += v.z, total[3] += v.w;
    }
    const int64_t row = static_cast<int64_t>(row_group * group_tiles + unit_tile) * kTileRows + (lane >> 2);
    const int m = n * 8 + t * 2;
    uint16_t* const y = blockIdx.y == 0 ? p.y : p.second_y;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int64_t at_row = row + (q >> 1) * 8;
      if (m + (q & 1) >= p.rows || at_row >= p.out) continue;
      const size_t to =
          static_cast<size_t>(m + (q & 1)) * static_cast<size_t>(p.y_stride) + static_cast<size_t>(at_row);
      if (p.y_f32 != nullptr) {
        p.y_f32[to] = total[q];
      } else {
        y[to] = float_to_bf16(total[q]);
      }
    }
  }
}

template <class Format>
void launch_wide_gemm(const Launch& on, const WideLaunch& plan, const StreamGemmParams& params) {
  const auto with = [&](auto kernel) {
    launch_kernel(on, kernel, dim3(static_cast<unsigned>(plan.grid), params.second_tiles != nullptr ? 2 : 1),
                  128 * plan.row_teams * plan.shard_teams, plan.shared_bytes, plan.cluster, params);
  };
  switch (plan.n_tiles) {
    case 2:
      return with(wide_gemm_kernel<Format, 2>);
    case 3:
      return with(wide_gemm_kernel<Format, 3>);
    default:
      return with(wide_gemm_kernel<Format, 6>);
  }
}

}  // namespace spark::engine::cuda
