// The direct product (direct_gemm.cuh) of rows that are not quantised yet: every block makes the codes of all
// rows itself, normalised before if a norm comes first, and keeps them in shared memory as the operands of
// the matrix instruction. What follows the product in the same launch: the rotation of its output (the
// queries'), and, in blocks of its own, a second norm of the same rows with the write of the window records.
//
// A launch of its own for the norms took 1.7 us, for rotation and window write 3, for a quantiser 0.9; here
// they cost a read of the rows by every block (15 to 24 KB from L2) and about 0.5 us.
//
// The arithmetic is that of the separate kernels, to the bit: the norm's sum of squares is the tree of
// block_sum over pieces of eight channels, 256 channels a warp.
#pragma once

#include <algorithm>

#include "engine/kernels/cuda/direct_gemm.cuh"
#include "engine/kernels/cuda/norm.cuh"
#include "engine/kernels/cuda/records.cuh"

namespace spark::engine::cuda {

// 256 channels of a row, by one warp.
constexpr int kRowUnit = 256;

// Registers of a thread: few, so that the coefficients and attention find room beside it. (GB10 has products
// of its own; there it is only compiled.)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr int kFewRowRegisters = 96, kRowRegisters = 96;
#else
constexpr int kFewRowRegisters = 48, kRowRegisters = 64;
#endif

__device__ __forceinline__ void second_norm_and_window(const DirectRowsParams& r, int row, float* scratch) {
  uint4 weight[kMaxPieces];
  load_norm_weight(r.second.weight, r.second.cols / 8, weight);
  norm_row(r.second, row, weight, scratch);
  if (r.window.position == nullptr) return;
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x / 32);
  for (int block = warp; block < r.window.width / 32; block += static_cast<int>(blockDim.x / 32)) {
    write_window_block(r.window, row, block);
  }
}

template <int kWarps, int kChunk, int kUnits, bool kNorm>
__global__ void __maxnreg__(kUnits <= kFewDirectUnits ? kFewRowRegisters : kRowRegisters)
    direct_rows_kernel(const __grid_constant__ DirectRowsParams r) {
  constexpr int kThreads = kWarps * 32;
  using Format = Fp8Format;
  SPARK_DYNAMIC_SHARED(uint8_t, shared);
  __shared__ float scratch[32];
  const StreamGemmParams& p = r.product;
  launch_dependents();
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  if (static_cast<int>(blockIdx.x) >= r.product_blocks) {
    wait_for_inputs();
    const int blocks = static_cast<int>(gridDim.x) - r.product_blocks;
    for (int row = static_cast<int>(blockIdx.x) - r.product_blocks; row < p.rows; row += blocks) {
      second_norm_and_window(r, row, scratch);
      __syncthreads();  // its sums have been read
    }
    return;
  }
  const int t = lane & 3;
  const int row_warp = warp % p.row_warps;
  const int shard0 = warp / p.row_warps * p.warp_shards;
  const int tile = static_cast<int>(blockIdx.x) * p.row_warps + row_warp;
  const bool has_tile = tile < p.row_tiles;
  // Partial sums, the rows' operands [block][lane], their scales [block][row], sums of squares [row][unit].
  float* const partial = reinterpret_cast<float*>(shared);
  uint4* const operands = reinterpret_cast<uint4*>(partial + kWarps * p.warp_shards * 128);
  float* const row_scales = reinterpret_cast<float*>(operands + p.blocks * 32);
  float* const squares = row_scales + p.blocks * 8;
  uint8_t* const weights =
      shared + direct_rows_weights_at(kWarps, p.warp_shards, p.blocks) +
      static_cast<size_t>(warp * p.warp_shards * p.shard_chunks) * (kChunk * Format::kBlockBytes) + lane * 16;

  // ---- the weights
  const uint8_t* const tiles = p.tiles + static_cast<size_t>(has_tile ? tile : 0) * p.tile_stride + lane * 16;
  const int chunks = p.warp_shards * p.shard_chunks;
  const auto chunk_of = [&](int c, int& first) {
    const int shard = p.shard_chunks == 1 ? c : c / p.shard_chunks;
    const int at = (c - shard * p.shard_chunks) * kChunk;
    first = (shard0 + shard) * p.shard_blocks + at;
    const int blocks = min(p.shard_blocks - at, p.blocks - first);
    return has_tile ? max(0, min(kChunk, blocks)) : 0;
  };
#pragma unroll 1
  for (int c = 0; c < chunks; ++c) {
    int first = 0;
    const int count = chunk_of(c, first);
    const uint8_t* from = tiles + static_cast<size_t>(first) * Format::kBlockBytes;
    uint8_t* to = weights + c * (kChunk * Format::kBlockBytes);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if (i < count) copy_async_16(to + i * Format::kBlockBytes, from + i * Format::kBlockBytes);
    }
  }
  copy_async_commit();
  const auto weight_scale_of = [&](int c) {
    int first = 0;
    const int count = chunk_of(c, first);
    return lane < count
               ? ue8m0_to_float(__ldg(p.scales + static_cast<size_t>(tile / 2) * p.blocks + first + lane))
               : 0.0f;
  };
  float scale_lane = weight_scale_of(0);

  // ---- the rows: unit u is 256 channels of a row
  const int row_units = (p.cols + kRowUnit - 1) / kRowUnit;
  const int units = p.rows * row_units;
  uint4 norm_weight[kUnits];
  if constexpr (kNorm) {
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      const int u = warp + j * kWarps;
      const int piece = u % row_units * 32 + lane;
      norm_weight[j] = u < units && piece < p.cols / 8
                           ? __ldg(reinterpret_cast<const uint4*>(r.norm_weight) + piece)
                           : make_uint4(0, 0, 0, 0);
    }
    if (threadIdx.x < 64) squares[threadIdx.x] = 0.0f;
    __syncthreads();
  }

  wait_for_inputs();

  uint4 raw[kUnits];
#pragma unroll
  for (int j = 0; j < kUnits; ++j) {
    const int u = warp + j * kWarps;
    const int row = u / row_units;
    const int piece = (u - row * row_units) * 32 + lane;
    raw[j] = make_uint4(0, 0, 0, 0);
    if (u < units && piece < p.cols / 8) {
      raw[j] = *reinterpret_cast<const uint4*>(p.x + static_cast<size_t>(row) * p.x_stride + piece * 8);
    }
  }
  if constexpr (kNorm) {
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      const int u = warp + j * kWarps;
      if (u >= units) break;
      const int row = u / row_units;
      const Eight e = unpack_eight(raw[j]);
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < 8; ++i) sum = fmaf(e.v[i], e.v[i], sum);
      sum = warp_sum(sum);
      if (lane == 0) squares[row * 8 + u - row * row_units] = sum;
    }
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < kUnits; ++j) {
    const int u = warp + j * kWarps;
    if (u >= units) break;
    const int row = u / row_units;
    const int piece = (u - row * row_units) * 32 + lane;
    Eight e = unpack_eight(raw[j]);
    if constexpr (kNorm) {
      // The last steps of block_sum's tree over the row's warps.
      const float4 a = *reinterpret_cast<const float4*>(squares + row * 8);
      const float4 b = *reinterpret_cast<const float4*>(squares + row * 8 + 4);
      const float sum = ((a.x + b.x) + (a.z + b.z)) + ((a.y + b.y) + (a.w + b.w));
      const float rs = __frsqrt_rn(sum / static_cast<float>(p.cols) + r.eps);
      const Eight w = unpack_eight(norm_weight[j]);
#pragma unroll
      for (int i = 0; i < 8; ++i) e.v[i] = round_to_bf16(w.v[i] * (e.v[i] * rs));
    }
    const EightCodes q = quantise_eight(e);
    if (piece >= p.cols / 8) continue;
    operands[(piece >> 2) * 32 + row * 4 + (piece & 3)] =
        make_uint4(e4m3x2_to_half2(q.codes.x), e4m3x2_to_half2(q.codes.x >> 16), e4m3x2_to_half2(q.codes.y),
                   e4m3x2_to_half2(q.codes.y >> 16));
    if ((piece & 3) == 0) row_scales[(piece >> 2) * 8 + row] = ue8m0_to_float(q.scale);
    if (blockIdx.x == 0) {
      const size_t at = static_cast<size_t>(row) * p.blocks + (piece >> 2);
      *reinterpret_cast<uint2*>(p.quantised_codes + at * 32 + (piece & 3) * 8) = q.codes;
      if ((piece & 3) == 0) p.quantised_scales[at] = q.scale;
    }
  }
  copy_async_wait<0>();
  __syncthreads();

  // ---- the products: a block of 32 columns is two instructions
#pragma unroll 1
  for (int c = 0; c < chunks;) {
    float sum[4] = {};
    const int shard = shard0 + (p.shard_chunks == 1 ? c : c / p.shard_chunks);
#pragma unroll 1
    for (int i = 0; i < p.shard_chunks; ++i, ++c) {
      int first = 0;
      const int count = chunk_of(c, first);
      if (c > 0) scale_lane = weight_scale_of(c);
      const uint8_t* from = weights + c * (kChunk * Format::kBlockBytes);
      const uint4* operand = operands + first * 32 + lane;
      const float* scale = row_scales + first * 8 + t * 2;
      const auto multiply = [&](int b) {
        uint32_t a[8];
        Format::operand(*reinterpret_cast<const uint4*>(from + b * Format::kBlockBytes), a);
        const uint4 x = operand[b * 32];
        const float2 own = *reinterpret_cast<const float2*>(scale + b * 8);
        const float weight_scale = __shfl_sync(~0u, scale_lane, b);
        const float s0 = weight_scale * own.x;
        const float s1 = weight_scale * own.y;
        float d[4] = {};
        mma_f16(d, a[0], a[1], a[2], a[3], x.x, x.y);
        mma_f16(d, a[4], a[5], a[6], a[7], x.z, x.w);
        sum[0] = fmaf(d[0], s0, sum[0]);
        sum[1] = fmaf(d[1], s1, sum[1]);
        sum[2] = fmaf(d[2], s0, sum[2]);
        sum[3] = fmaf(d[3], s1, sum[3]);
      };
      if (count == kChunk) {  // no branches between the blocks: their latencies overlap
#pragma unroll
        for (int b = 0; b < kChunk; ++b) multiply(b);
      } else {
#pragma unroll 1
        for (int b = 0; b < count; ++b) multiply(b);
      }
    }
#pragma unroll
    for (int q = 0; q < 4; ++q) partial[(shard * p.row_warps + row_warp) * 128 + q * 32 + lane] = sum[q];
  }
  __syncthreads();

  // ---- the shards of an output one after the other; then the rotation of pairs of outputs
  const int shards = kWarps / p.row_warps * p.warp_shards;
  for (int i = static_cast<int>(threadIdx.x); i < p.row_warps * 128; i += kThreads) {
    const int n = i & 15, m = (i >> 4) & 7, owner = i >> 7;
    const int64_t row = (static_cast<int64_t>(blockIdx.x) * p.row_warps + owner) * kTileRows + n;
    const bool valid = m < p.rows && row < p.out;
    const float* first = partial + owner * 128 + ((n >> 3) * 2 + (m & 1)) * 32 + (n & 7) * 4 + (m >> 1);
    float total = 0.0f;
#pragma unroll 4
    for (int s = 0; s < shards; ++s) total += first[s * p.row_warps * 128];
    uint16_t result = float_to_bf16(total);
    if (r.pairs > 0) {
      const float v = bf16_to_float(result);
      const float partner = __shfl_xor_sync(~0u, v, 1);
      const int channel = static_cast<int>(row % r.head_width);
      if (valid) {
        result = float_to_bf16(rotated(v, partner, channel, r.head_width, r.pairs,
                                       r.cos_sin + static_cast<size_t>(m) * (2 * r.pairs), false));
      }
    }
    if (valid) p.y[static_cast<size_t>(m) * p.y_stride + row] = result;
  }
}

template <int kUnits, bool kNorm>
void launch_direct_rows_units(const Launch& on, const DirectLaunch& plan, const DirectRowsParams& params) {
  // A multiprocessor each, if there are enough.
  const int room = on.device.multiprocessors - params.product_blocks;
  const int rows = params.product.rows;
  const int extra = params.second.weight == nullptr ? 0 : room > 0 ? std::min(rows, room) : rows;
  const auto with = [&](auto kernel) {
    prefer_shared(kernel);
    launch_kernel(on, kernel, dim3(static_cast<unsigned>(params.product_blocks + extra)), plan.warps * 32,
                  plan.shared_bytes, 1, params);
  };
  if constexpr (kUnits == kFewDirectUnits) {
    if (plan.warps == kMoreDirectWarps) return with(direct_rows_kernel<kMoreDirectWarps, 8, kUnits, kNorm>);
  }
  switch (plan.chunk) {
    case 5:
      return with(direct_rows_kernel<kDirectWarps, 5, kUnits, kNorm>);
    case 8:
      return with(direct_rows_kernel<kDirectWarps, 8, kUnits, kNorm>);
    default:
      return with(direct_rows_kernel<kDirectWarps, 10, kUnits, kNorm>);
  }
}

template <bool kNorm>
void launch_direct_rows_gemm(const Launch& on, const DirectLaunch& plan, const DirectRowsParams& params) {
  const int64_t units = params.product.rows * ceil_div(params.product.cols, kRowUnit);
  return units <= plan.warps * kFewDirectUnits
             ? launch_direct_rows_units<kFewDirectUnits, kNorm>(on, plan, params)
             : launch_direct_rows_units<kDirectUnits, kNorm>(on, plan, params);
}

}  // namespace spark::engine::cuda
