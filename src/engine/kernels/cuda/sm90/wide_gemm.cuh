// The product of a weight with nine to 48 rows by the matrix instruction of a warpgroup:
// y[m][n] = sum_k x[m][k] w[n][k].
//
// A warpgroup owns 64 weight rows (a 16-row tile a warp) and one shard of the columns. Its weights come
// through rings in shared memory, as in the streaming product (stream_gemm.cuh), or all of them lie there
// before the rows do; each is converted once, in registers, whatever the number of rows. The rows are brought
// into the instruction's order once by the whole block. The sums are the streaming product's, bit for bit: a
// block of 32 columns by the matrix unit, blocks ascending in a shard, then shard by shard. Where a row's
// shards lie in several blocks of a cluster, each block pushes its partial sums to the one that adds them.
#pragma once

#include "engine/kernels/cuda/sm90/wgmma.cuh"
#include "engine/kernels/cuda/stream_gemm.cuh"

namespace spark::engine::cuda {

// Walks over [rows][width] with all threads of a block, without a division for each.
struct BlockWalk {
  int row, at;
  int row_step, at_step, width;

  __device__ __forceinline__ BlockWalk(int w, int threads)
      : row(static_cast<int>(threadIdx.x) / w),
        at(static_cast<int>(threadIdx.x) - row * w),
        row_step(threads / w),
        at_step(threads - row_step * w),
        width(w) {}
  __device__ __forceinline__ void next() {
    row += row_step, at += at_step;
    if (at >= width) at -= width, ++row;
  }
};

// The rows' columns [first_block, first_block + count) as operand B in `operands`, and their scales.
template <class Format, int kN>
__device__ __forceinline__ void stage_wide_rows(const StreamGemmParams& p, int group_of_rows, int first_block,
                                                int count, uint8_t* operands, float* scales) {
  constexpr uint32_t kBlock = wide_block_bytes(kN);
  const int threads = static_cast<int>(blockDim.x);
  if (count == 0) return;
  if constexpr (Format::kCodes) {
    constexpr int kAtOnce = 4;
    // Half a block a thread: 16 codes become eight bytes of each of the four cores; and for every second
    // half a scale.
    BlockWalk codes(count * 2, threads), bytes(count, threads);
    while (codes.row < p.rows) {
      uint4 v[2 * kAtOnce];
      uint32_t scale[kAtOnce];
      int to[2 * kAtOnce], scale_to[kAtOnce];
#pragma unroll
      for (int i = 0; i < 2 * kAtOnce; ++i) {
        to[i] = -1;
        if (codes.row < p.rows) {
          v[i] = *reinterpret_cast<const uint4*>(p.x_codes + static_cast<size_t>(codes.row) * p.x_stride +
                                                 first_block * 32 + codes.at * 16);
          to[i] = static_cast<int>(static_cast<uint32_t>(codes.at >> 1) * kBlock +
                                   wide_operand_offset(kN, codes.row, (codes.at & 1) * 16));
        }
        codes.next();
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        scale_to[i] = -1;
        if (bytes.row < p.rows) {
          scale[i] = p.x_scales[static_cast<size_t>(bytes.row) * p.blocks + first_block + bytes.at];
          scale_to[i] = bytes.at * wide_scale_stride(kN) + wide_scale_place(kN, bytes.row);
        }
        bytes.next();
      }
#pragma unroll
      for (int i = 0; i < 2 * kAtOnce; ++i) {
        if (to[i] < 0) continue;
        uint8_t* const at = operands + to[i];
        *reinterpret_cast<uint2*>(at + wide_core(kN, 0, 0, 0)) =
            make_uint2(e4m3x2_to_half2(v[i].x), e4m3x2_to_half2(v[i].z));
        *reinterpret_cast<uint2*>(at + wide_core(kN, 0, 1, 0)) =
            make_uint2(e4m3x2_to_half2(v[i].x >> 16), e4m3x2_to_half2(v[i].z >> 16));
        *reinterpret_cast<uint2*>(at + wide_core(kN, 1, 0, 0)) =
            make_uint2(e4m3x2_to_half2(v[i].y), e4m3x2_to_half2(v[i].w));
        *reinterpret_cast<uint2*>(at + wide_core(kN, 1, 1, 0)) =
            make_uint2(e4m3x2_to_half2(v[i].y >> 16), e4m3x2_to_half2(v[i].w >> 16));
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (scale_to[i] >= 0) scales[scale_to[i]] = ue8m0_to_float(scale[i]);
      }
    }
  } else {
    constexpr int kAtOnce = 8;
    const uint16_t* const x = p.x + static_cast<size_t>(group_of_rows) * static_cast<size_t>(p.cols) +
                              static_cast<size_t>(first_block) * 32;
    BlockWalk eights(count * 4, threads);
    while (eights.row < p.rows) {
      uint4 v[kAtOnce];
      int to[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        to[i] = -1;
        if (eights.row < p.rows) {
          v[i] = *reinterpret_cast<const uint4*>(
              x + static_cast<size_t>(eights.row) * static_cast<size_t>(p.x_stride) + eights.at * 8);
          to[i] = static_cast<int>(static_cast<uint32_t>(eights.at >> 2) * kBlock +
                                   wide_operand_offset(kN, eights.row, (eights.at & 3) * 8));
        }
        eights.next();
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (to[i] < 0) continue;
        uint8_t* const at = operands + to[i];
        *reinterpret_cast<uint32_t*>(at + wide_core(kN, 0, 0, 0)) = v[i].x;
        *reinterpret_cast<uint32_t*>(at + wide_core(kN, 0, 1, 0)) = v[i].y;
        *reinterpret_cast<uint32_t*>(at + wide_core(kN, 1, 0, 0)) = v[i].z;
        *reinterpret_cast<uint32_t*>(at + wide_core(kN, 1, 1, 0)) = v[i].w;
      }
    }
  }
}

template <class Format, int kN>
__global__ void __launch_bounds__(kWideThreads, 1)
    wide_gemm_kernel(const __grid_constant__ StreamGemmParams p) {
  constexpr uint32_t kBlock = wide_block_bytes(kN);
  SPARK_DYNAMIC_SHARED(uint8_t, shared);  // the rows and their scales, later partial sums; then the rings
  if (!p.settles) launch_dependents();
  const uint8_t* const weight_tiles = blockIdx.y == 0 ? p.tiles : p.second_tiles;
  const uint8_t* const weight_scales = blockIdx.y == 0 ? p.scales : p.second_scales;
  uint16_t* const y = blockIdx.y == 0 ? p.y : p.second_y;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int t = lane & 3;
  const int rank = p.cluster > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int group = static_cast<int>(blockIdx.x) / p.cluster;
  const int team = warp >> 2;  // warpgroup
  const int row_team = team % p.row_warps, shard_team = team / p.row_warps;
  const int shard = rank * p.shard_warps + shard_team;
  const int tile = (group * p.row_warps + row_team) * 4 + (warp & 3);
  const bool has_tile = tile < p.row_tiles;
  const int block0 = min(shard * p.shard_blocks, p.blocks);
  const int count = min(p.shard_blocks, p.blocks - block0);

  // ---- the weights: a lane reads back what it has copied itself, so waiting for its own copies is enough
  const int slots = min(p.shard_blocks, kWideDepth);
  uint8_t* const ring = shared + p.ring_offset + (warp * slots) * kTileBytes + lane * 16;
  const uint8_t* const tiles = weight_tiles + static_cast<size_t>(has_tile ? tile : 0) * p.tile_stride +
                               static_cast<size_t>(block0) * kTileBytes + lane * 16;
  int fetched = 0, fetch_slot = 0;
  const auto fetch_next = [&] {
    copy_async_16_if(fetched < count, ring + fetch_slot * kTileBytes,
                     tiles + static_cast<size_t>(fetched) * kTileBytes, has_tile);
    copy_async_commit();
    ++fetched;
    if (++fetch_slot == slots) fetch_slot = 0;
  };
#pragma unroll 1
  for (int i = 0; i < kWideDepth; ++i) fetch_next();
  const auto scale_of = [&](int at) {
    return has_tile && at + lane < count
               ? ue8m0_to_float(
                     __ldg(weight_scales + static_cast<size_t>(tile / 2) * p.blocks + block0 + at + lane))
               : 0.0f;
  };
  float scale_lane = scale_of(0);

  wait_for_inputs();
  if (p.settles) launch_dependents();

  const int first_block = min(rank * p.shard_warps * p.shard_blocks, p.blocks);
  const int blocks_here = min(p.shard_warps * p.shard_blocks, p.blocks - first_block);
  float* const row_scales = reinterpret_cast<float*>(
      shared + static_cast<size_t>(p.shard_warps * p.shard_blocks) * kBlock);
  const int group_of_rows =
      p.rows_per_group > 0 ? min(group * p.row_warps * kWideRows / p.rows_per_group, p.groups - 1) : 0;
  stage_wide_rows<Format, kN>(p, group_of_rows, first_block, blocks_here, shared, row_scales);
  wgmma_operands_written();
  __syncthreads();

  // ---- products: while the matrix unit works on a block, the next one's weights are converted
  float sum[kN][4] = {};
  int slot = 0;
  const auto convert = [&](uint32_t (&a)[8]) {
    copy_async_wait<kWideDepth - 1>();
    Format::operand(*reinterpret_cast<const uint4*>(ring + slot * kTileBytes), a);
    if (++slot == slots) slot = 0;
    fetch_next();
  };
  const uint8_t* rows = shared + static_cast<size_t>(shard_team * p.shard_blocks) * kBlock;
  const float* scales = row_scales + (shard_team * p.shard_blocks) * wide_scale_stride(kN) + t * kN * 2;
  const auto step = [&](int i, const uint32_t (&a)[8], uint32_t (&next)[8]) {
    float d[kN][4];
    wgmma_fence();
    wgmma<false, !Format::kCodes>(d, a[0], a[1], a[2], a[3], wgmma_operand(rows, kN * kCoreBytes, kCoreBytes));
    wgmma<true, !Format::kCodes>(
        d, a[4], a[5], a[6], a[7],
        wgmma_operand(rows + wide_core(kN, 1, 0, 0), kN * kCoreBytes, kCoreBytes));
    wgmma_commit();
    if ((i & 31) == 0 && i != 0) scale_lane = scale_of(i);
    const float weight_scale = __shfl_sync(~0u, scale_lane, i & 31);
    float s[kN][2];
    if constexpr (Format::kCodes) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const float2 v = *reinterpret_cast<const float2*>(scales + n * 2);
        s[n][0] = weight_scale * v.x, s[n][1] = weight_scale * v.y;
      }
    }
    if (i + 1 < count) convert(next);
    wgmma_wait<0>(d);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int q = 0; q < 4; ++q)
        sum[n][q] = fmaf(d[n][q], Format::kCodes ? s[n][q & 1] : weight_scale, sum[n][q]);
    }
    rows += kBlock;
    scales += wide_scale_stride(kN);
  };
  uint32_t even[8], odd[8];
  if (count > 0) convert(even);
#pragma unroll 1
  for (int i = 0; i < count; i += 2) {
    step(i, even, odd);
    if (i + 1 < count) step(i + 1, odd, even);
  }

  // ---- the partial sums: units of 16 weight rows by eight rows of the step, dealt to the cluster's blocks
  float* const partial = reinterpret_cast<float*>(shared);
  const int shards = p.cluster * p.shard_warps;
  const int cluster_bits = __popc(static_cast<unsigned>(p.cluster - 1));  // a power of two
  if (p.cluster > 1) {
    cluster_sync();  // all of them are done with their rows, whose place the sums take
  } else {
    __syncthreads();
  }
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const int unit = (row_team * 4 + (warp & 3)) * kN + n;
    const int owner = unit & (p.cluster - 1);
    float4* const to = reinterpret_cast<float4*>(partial + ((unit >> cluster_bits) * shards + shard) * 128) + lane;
    const float4 v = make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]);
    if (p.cluster > 1) {
      store_cluster(to, static_cast<uint32_t>(owner), v);
    } else {
      *to = v;
    }
  }
  if (p.cluster > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
  const int units = p.row_warps * 4 * kN;
  for (int i = static_cast<int>(threadIdx.x); ; i += static_cast<int>(blockDim.x)) {
    const int unit = (i >> 6) * p.cluster + rank;
    if (unit >= units) break;
    const int pair = i & 63;
    const int m = unit % kN * 8 + ((pair >> 1) & 3) * 2;
    const int64_t row = (static_cast<int64_t>(group) * p.row_warps * 4 + unit / kN) * kTileRows + (pair >> 3) +
                        (pair & 1) * 8;
    if (m >= p.rows || row >= p.out) continue;
    const float2* const first = reinterpret_cast<const float2*>(partial + (i >> 6) * shards * 128) + pair;
    float2 total = make_float2(0.0f, 0.0f);
    for (int s0 = 0; s0 < shards; s0 += 4) {
      float2 v[4];
#pragma unroll
      for (int s = 0; s < 4; ++s) v[s] = s0 + s < shards ? first[(s0 + s) * 64] : make_float2(0.0f, 0.0f);
#pragma unroll
      for (int s = 0; s < 4; ++s) total.x += v[s].x, total.y += v[s].y;
    }
    const auto put = [&](int at_m, float v) {
      const size_t at = static_cast<size_t>(at_m) * static_cast<size_t>(p.y_stride) + static_cast<size_t>(row);
      if (p.y_f32 != nullptr) {
        p.y_f32[at] = v;
      } else {
        y[at] = float_to_bf16(v);
      }
    };
    put(m, total.x);
    if (m + 1 < p.rows) put(m + 1, total.y);
  }
}

template <class Format>
void launch_wide_gemm(const Launch& on, const WideLaunch& plan, const StreamGemmParams& params) {
  const auto with = [&](auto kernel) {
    launch_kernel(on, kernel, dim3(static_cast<unsigned>(plan.grid), params.second_tiles != nullptr ? 2 : 1),
                  plan.row_teams * plan.shard_teams * 128, plan.shared_bytes, plan.cluster, params);
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
