// The product of a weight with 9 to 48 rows by the matrix instruction of a warpgroup:
// y[m][n] = sum_k x[m][k] w[n][k].
//
// A warpgroup owns 128 weight rows (two 16-row tiles a warp, which share their scales and the reads of the
// rows') and one or more shards of the columns, and all its weights are on their way to shared memory before
// it waits for the kernel that makes its inputs. A block of the weight is converted once, in registers,
// whatever the number of rows; the rows are brought into the instruction's order once by the whole block. The
// sums are the streaming product's (stream_gemm.cuh), bit for bit: a block of 32 columns by the matrix unit,
// blocks ascending in a shard, then shard by shard. Where a row's shards lie in several blocks of a cluster,
// each block pushes its partial sums to the one that adds them.
#pragma once

#include "engine/kernels/cuda/sm90/wgmma.cuh"
#include "engine/kernels/cuda/stream_gemm.cuh"

namespace spark::engine::cuda {

// The rows' columns [first_block, first_block + count) on their way into `operands` as operand B, and their
// scales. A warp takes units of eight rows by 64 (codes) or 32 columns: whole sectors of memory, and every
// bank once. All that a thread reads is under way before it uses any of it, as a rule, and where it reads is
// known before the rows exist.
template <class Format, int kN>
struct WideRows {
  static constexpr int kAtOnce = 8;
  static constexpr int kScales = 2;  // words of four
  static constexpr int kUnitBlocks = Format::kCodes ? 2 : 1;
  int first_block, count, columns, eights, quads, words;
  int column, eight, word;         // this thread's next unit and word of scales
  int from[kAtOnce], to[kAtOnce];  // of the next units: elements of the rows, bytes of the operand or -1
  int scale_from[kScales], scale_to[kScales];

  __device__ __forceinline__ WideRows(const StreamGemmParams& p, int group_of_rows, int first, int blocks)
      : first_block(first), count(blocks) {
    columns = (count + kUnitBlocks - 1) / kUnitBlocks;
    eights = count > 0 ? (p.rows + 7) >> 3 : 0;
    quads = max(1, (count + 3) >> 2);
    words = Format::kCodes && count > 0 ? quads * p.rows : 0;
    column = static_cast<int>(threadIdx.x >> 5), eight = 0, word = static_cast<int>(threadIdx.x);
    place(p, group_of_rows);
  }

  // Where the next units lie, and on to those behind.
  __device__ __forceinline__ void place(const StreamGemmParams& p, int group_of_rows) {
    const int lane = static_cast<int>(threadIdx.x & 31);
    // Codes: half a block of a row a lane, two blocks in the two halves of the warp.
    const int block_of_lane = Format::kCodes ? lane >> 4 : 0;
    const int row_of_lane = Format::kCodes ? (lane >> 1) & 7 : lane >> 2;
    const int part = Format::kCodes ? (lane & 1) * 16 : (lane & 3) * 8;
    const int stride = static_cast<int>(p.x_stride);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      while (column >= columns && eight < eights) column -= columns, ++eight;
      const int row = eight * 8 + row_of_lane, block = column * kUnitBlocks + block_of_lane;
      to[i] = eight < eights && row < p.rows && block < count
                  ? static_cast<int>(static_cast<uint32_t>(block) * wide_block_bytes(kN) + wide_chunk(row, 0))
                  : -1;
      // What is not needed is read all the same, from a place that exists: no branch between the loads.
      from[i] = static_cast<int>(
          opaque(static_cast<uint32_t>(min(row, p.rows - 1) * stride + group_of_rows * p.cols +
                                       (first_block + min(block, count - 1)) * 32 + part)));
      column += static_cast<int>(blockDim.x >> 5);
    }
    if constexpr (Format::kCodes) {
#pragma unroll
      for (int i = 0; i < kScales; ++i) {
        const int row = word / quads, quad = word - row * quads;
        scale_to[i] = word < words ? quad * 4 * wide_scale_stride(kN) + wide_scale_place(kN, row) : -1;
        scale_from[i] =
            static_cast<int>(opaque(static_cast<uint32_t>(row * p.blocks + first_block + quad * 4)));
        word += static_cast<int>(blockDim.x);
      }
    }
  }

  __device__ __forceinline__ void stage(const StreamGemmParams& p, int group_of_rows, uint8_t* operands,
                                        float* scales) {
    const int lane = static_cast<int>(threadIdx.x & 31);
    const int part = Format::kCodes ? (lane & 1) * 8 : (lane & 3) * 4;
    const bool whole_words = p.blocks % 4 == 0 && first_block % 4 == 0;
    if (count <= 0) return;
#pragma unroll 1
    while (true) {
      uint32_t four[kScales] = {};
      if constexpr (Format::kCodes) {
#pragma unroll
        for (int i = 0; i < kScales; ++i) {
          if (scale_to[i] < 0) continue;
          const uint8_t* const at = p.x_scales + scale_from[i];
          if (whole_words) {
            four[i] = *reinterpret_cast<const uint32_t*>(at);
          } else {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              if (scale_place(i, j) < count * wide_scale_stride(kN))
                four[i] |= static_cast<uint32_t>(at[j]) << (8 * j);
            }
          }
        }
      }
      uint4 v[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if constexpr (Format::kCodes) {
          v[i] = *reinterpret_cast<const uint4*>(p.x_codes + from[i]);
        } else {
          v[i] = *reinterpret_cast<const uint4*>(p.x + from[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (to[i] < 0) continue;
        // The place of chunk c is that of chunk 0 with c in bits 4 and 5 turned over.
        const auto at = [&](int chunk) { return operands + ((to[i] ^ (chunk << 4)) + part); };
        if constexpr (Format::kCodes) {
          *reinterpret_cast<uint2*>(at(0)) = make_uint2(e4m3x2_to_half2(v[i].x), e4m3x2_to_half2(v[i].z));
          *reinterpret_cast<uint2*>(at(1)) =
              make_uint2(e4m3x2_to_half2(v[i].x >> 16), e4m3x2_to_half2(v[i].z >> 16));
          *reinterpret_cast<uint2*>(at(2)) = make_uint2(e4m3x2_to_half2(v[i].y), e4m3x2_to_half2(v[i].w));
          *reinterpret_cast<uint2*>(at(3)) =
              make_uint2(e4m3x2_to_half2(v[i].y >> 16), e4m3x2_to_half2(v[i].w >> 16));
        } else {
          *reinterpret_cast<uint32_t*>(at(0)) = v[i].x;
          *reinterpret_cast<uint32_t*>(at(1)) = v[i].y;
          *reinterpret_cast<uint32_t*>(at(2)) = v[i].z;
          *reinterpret_cast<uint32_t*>(at(3)) = v[i].w;
        }
      }
      if constexpr (Format::kCodes) {
#pragma unroll
        for (int i = 0; i < kScales; ++i) {
          if (scale_to[i] < 0) continue;
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            if (scale_place(i, j) < count * wide_scale_stride(kN))
              scales[scale_place(i, j)] = ue8m0_to_float((four[i] >> (8 * j)) & 0xFFu);
          }
        }
      }
      if (column >= (eights - eight) * columns && word >= words) break;
      place(p, group_of_rows);
    }
  }
  // Of the j-th scale of a word: a block's lie wide_scale_stride apart.
  __device__ __forceinline__ int scale_place(int i, int j) const {
    return scale_to[i] + j * wide_scale_stride(kN);
  }
};

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
  // How the blocks of a cluster know that all sums are there: few are counted one by one as they come, for
  // many the cluster's barrier is faster.
  constexpr bool kCounted = kN <= 2;
  SPARK_OPERAND_SHARED(operands);  // the rows and their scales, the weights, partial sums
  if (!p.settles) launch_dependents();
  // Else the partial sums of a warpgroup's last shard take the place of the rows.
  const bool apart = p.reduce_offset != 0;
  const bool first_apart = apart || p.warp_shards > 1;
  const int rank = p.cluster > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int units_here = p.row_warps * kTeamTiles * kN;  // of 16 weight rows and eight rows of the step
  uint64_t* const all_there = reinterpret_cast<uint64_t*>(operands + p.barrier_offset);
  if (p.cluster > 1) {
    if (kCounted && threadIdx.x == 0) {
      barrier_init(all_there, 1);
      barrier_init_done();
      const int mine = (units_here - rank + p.cluster - 1) / p.cluster;
      barrier_expect(all_there,
                     static_cast<uint32_t>(mine * p.cluster * p.shard_warps * p.warp_shards) * 512);
    }
    if (first_apart) cluster_arrive_relaxed();
  }
  const uint8_t* const weight_tiles = blockIdx.y == 0 ? p.tiles : p.second_tiles;
  const uint8_t* const weight_scales = blockIdx.y == 0 ? p.scales : p.second_scales;
  uint16_t* const y = blockIdx.y == 0 ? p.y : p.second_y;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int t = lane & 3;
  const int team = warp >> 2;  // warpgroup
  const int row_team = team % p.row_warps, shard_team = team / p.row_warps;
  const int shards_here = p.shard_warps * p.warp_shards;
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

  // ---- the weights: a lane reads back what it has copied itself, so waiting for its own copies is enough
  uint8_t* const weights =
      operands + p.ring_offset + static_cast<size_t>(warp * most) * (2 * kTileBytes) + lane * 16;
  constexpr bool kStays = kN > 3;  // with 48 rows a step is faster when they do, with fewer slower
  const int half = (count + 1) / 2;
  {
    const uint8_t* from = weight_tiles + static_cast<size_t>(has_tile ? tile : 0) * p.tile_stride +
                          static_cast<size_t>(block0) * kTileBytes + lane * 16;
#pragma unroll 1
    for (int i = 0; i < count; ++i, from += kTileBytes) {
      if (i == half) copy_async_commit();
      copy_weights_16(weights + i * (2 * kTileBytes), from, has_tile, kStays);
      copy_weights_16(weights + i * (2 * kTileBytes) + kTileBytes, from + p.tile_stride, has_tile, kStays);
    }
    if (count <= half) copy_async_commit();
    copy_async_commit();
  }
  const float scale_lane =
      has_tile && lane < count
          ? ue8m0_to_float(__ldg(weight_scales + static_cast<size_t>(tile / 2) * p.blocks + block0 + lane))
          : 0.0f;

  const int first_block = min(rank * shards_here * p.shard_blocks, p.blocks);
  const int blocks_here = min(shards_here * p.shard_blocks, p.blocks - first_block);
  float* const row_scales =
      reinterpret_cast<float*>(operands + static_cast<size_t>(shards_here * p.shard_blocks) * kBlock);
  WideRows<Format, kN> step_rows(p, row_group, first_block, blocks_here);

  wait_for_inputs();
  if (p.settles) launch_dependents();

  step_rows.stage(p, row_group, operands, row_scales);
  wgmma_operands_written();
  copy_async_wait<1>();
  __syncthreads();

  // ---- products: while the matrix unit works on one of the two tiles, the other's are added and converted
  const int shard_teams = p.cluster * p.shard_warps;
  const uint8_t* next = weights;
  uint64_t rows = wgmma_operand(operands + static_cast<size_t>(block0 - first_block) * kBlock);
  const float* scales = row_scales + (block0 - first_block) * wide_scale_stride(kN) + t * kN * 2;
  int at = 0;
  for (int index = 0; index < p.warp_shards; ++index) {
    float sum[2][kN][4] = {};
    const int end = min(count, at + p.shard_blocks);
    if (at < end) {
      float d[2][kN][4];
      uint32_t a[2][8];
      uint4 words[2];
      float s[kN * 2] = {};
      const auto read = [&](int block) {
        if (block == half) copy_async_wait<0>();
        words[0] = *reinterpret_cast<const uint4*>(next);
        words[1] = *reinterpret_cast<const uint4*>(next + kTileBytes);
        next += 2 * kTileBytes;
      };
      const auto first_step = [&](float(&to)[kN][4], const uint32_t(&with)[8]) {
        wgmma<false, kBf16>(to, with[0], with[1], with[2], with[3], rows);
      };
      const auto second_step = [&](float(&to)[kN][4], const uint32_t(&with)[8]) {
        wgmma<true, kBf16>(to, with[4], with[5], with[6], with[7], wgmma_operand_at(rows, kWideStepBytes));
        wgmma_commit();
      };
      const auto read_scales = [&] {
        const float weight_scale = __shfl_sync(~0u, scale_lane, at);
        if constexpr (Format::kCodes) {
          read_wide_scales<kN>(scales, weight_scale, s);
        } else {
          s[0] = weight_scale;
        }
      };
      const auto add = [&](float(&total)[kN][4], const float(&product)[kN][4]) {
#pragma unroll
        for (int n = 0; n < kN; ++n) {
#pragma unroll
          for (int q = 0; q < 4; ++q)
            total[n][q] = fmaf(product[n][q], s[Format::kCodes ? n * 2 + (q & 1) : 0], total[n][q]);
        }
        wgmma_pin(total);
      };
      read(at);
      Format::operand(words[0], a[0]);
      Format::operand(words[1], a[1]);
#pragma unroll 1
      while (true) {
        // A tile's second step waits for its first, so the other tile's stands between them.
        wgmma_fence();
        first_step(d[0], a[0]);
        first_step(d[1], a[1]);
        second_step(d[0], a[0]);
        second_step(d[1], a[1]);
        read_scales();
        const bool more = ++at < end;
        if (more) read(at);
        wgmma_wait<1>(d[0]);
        add(sum[0], d[0]);
        wgmma_wait<0>(d[1]);
        add(sum[1], d[1]);
        rows = wgmma_operand_at(rows, kBlock);
        scales += wide_scale_stride(kN);
        if (!more) break;
        Format::operand(words[0], a[0]);
        Format::operand(words[1], a[1]);
      }
    }

    // ---- the partial sums: units are dealt to the cluster's blocks
    // The others have started, or are done with their rows.
    const bool rows_done = !apart && index + 1 == p.warp_shards;
    if (p.cluster > 1 && (rows_done || index == 0)) {
      if (rows_done) cluster_arrive_relaxed();
      cluster_wait();
    } else if (rows_done) {
      __syncthreads();
    }
    // Those of a unit lie side by side, one for every warpgroup over shards; of two shards in two places.
    float4* to = reinterpret_cast<float4*>(
        operands + (index + 1 == p.warp_shards ? p.reduce_offset : p.first_reduce_offset));
    const int first_local = tile_here * kN / p.cluster;
    to += (first_local * shard_teams + rank * p.shard_warps + shard_team) * 32 + lane;
    int owner = tile_here * kN - first_local * p.cluster;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const float4 v = make_float4(sum[r][n][0], sum[r][n][1], sum[r][n][2], sum[r][n][3]);
        if (kCounted && p.cluster > 1) {
          store_cluster_async(to, all_there, static_cast<uint32_t>(owner), v);
        } else if (p.cluster > 1) {
          store_cluster(to, static_cast<uint32_t>(owner), v);
        } else {
          *to = v;
        }
        const bool wrap = ++owner == p.cluster;
        owner = wrap ? 0 : owner;
        to += wrap ? shard_teams * 32 : 0;
      }
    }
  }
  if (p.cluster == 1) {
    __syncthreads();
  } else if constexpr (kCounted) {
    barrier_wait(all_there, 0);
  } else {
    cluster_sync();
  }

  // ---- a warp adds a unit's shards
  const int g = lane >> 2;
  const bool odd = (g & 1) != 0;
  const bool pairs = ((reinterpret_cast<uintptr_t>(y) | static_cast<uintptr_t>(p.y_stride << 1)) & 3) == 0;
  const int out = static_cast<int>(p.out);
#pragma unroll 1
  for (int local = warp; local * p.cluster + rank < units_here; local += static_cast<int>(blockDim.x >> 5)) {
    const int unit = local * p.cluster + rank;
    const float4* const last =
        reinterpret_cast<const float4*>(operands + p.reduce_offset) + local * shard_teams * 32 + lane;
    const float4* const first =
        reinterpret_cast<const float4*>(operands + p.first_reduce_offset) + local * shard_teams * 32 + lane;
    float total[4] = {};
    const auto add = [&](const float4& v) {
      total[0] += v.x, total[1] += v.y, total[2] += v.z, total[3] += v.w;
    };
#pragma unroll 1
    for (int s0 = 0; s0 < shard_teams; s0 += 4) {
      // Reads beyond the last shard find the last, and add nothing.
      float4 v[4], w[4];
#pragma unroll
      for (int s = 0; s < 4; ++s) v[s] = last[min(s0 + s, shard_teams - 1) * 32];
      if (p.warp_shards > 1) {
#pragma unroll
        for (int s = 0; s < 4; ++s) w[s] = first[min(s0 + s, shard_teams - 1) * 32];
      }
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        if (s0 + s >= shard_teams) continue;
        if (p.warp_shards > 1) add(w[s]);
        add(v[s]);
      }
    }
    const int unit_tile = first_tile + unit / kN;
    if (unit_tile >= group_tiles) continue;
    const int row0 = (row_group * group_tiles + unit_tile) * kTileRows;
    const int m0 = unit % kN * 8;
    if (p.y_f32 != nullptr) {
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const int m = m0 + t * 2 + (q & 1);
        const int row = row0 + g + (q >> 1) * 8;
        if (m < p.rows && row < out)
          p.y_f32[static_cast<size_t>(m) * static_cast<size_t>(p.y_stride) + row] = total[q];
      }
      continue;
    }
    // Two weight rows' outputs of a row of the step lie side by side: lanes of even g take those of row 2t,
    // lanes of odd g those of row 2t + 1.
    const int m = m0 + t * 2 + (odd ? 1 : 0);
    uint16_t* const to = y + static_cast<size_t>(m) * static_cast<size_t>(p.y_stride);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float mine = odd ? total[half * 2 + 1] : total[half * 2];
      const float other = __shfl_xor_sync(~0u, odd ? total[half * 2] : total[half * 2 + 1], 4);
      const int row = row0 + half * 8 + (g & ~1);
      const uint32_t both = odd ? pack_bf16(other, mine) : pack_bf16(mine, other);
      if (m >= p.rows || row >= out) continue;
      if (pairs && row + 1 < out) {
        *reinterpret_cast<uint32_t*>(to + row) = both;
      } else {
        to[row] = static_cast<uint16_t>(both);
        if (row + 1 < out) to[row + 1] = static_cast<uint16_t>(both >> 16);
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
    case kWideWidths[0] / 8:
      if constexpr (Format::kCodes) return with(wide_gemm_kernel<Format, kWideWidths[0] / 8>);
      break;  // grouped rows are more: kMinLateWideRows
    case kWideWidths[1] / 8:
      return with(wide_gemm_kernel<Format, kWideWidths[1] / 8>);
    case kWideWidths[2] / 8:
      return with(wide_gemm_kernel<Format, kWideWidths[2] / 8>);
    default:
      break;
  }
  throw Error("a wide product of " + std::to_string(plan.n_tiles * 8) + " rows", "CUDA backend",
              "this is a defect: report it");
}

}  // namespace spark::engine::cuda
