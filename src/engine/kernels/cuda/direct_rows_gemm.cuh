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

// Registers of a thread: as many as q-a (72) leaves a block of q-b beside it, and no more, so that attention
// finds room there too. (GB10 has products of its own; there it is only compiled.)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr int kFewRowRegisters = 96, kRowRegisters = 96;
#else
constexpr int kFewRowRegisters = 56, kRowRegisters = 64;
#endif

// The second norm and the window records of every `blocks`th row, from row `block` on: as many warps a row as
// it has units, so that a block does all of its rows at once and nothing goes through memory in between. The
// sum is the tree of block_sum.
template <int kWarps>
__device__ __forceinline__ void second_norms(const DirectRowsParams& r, int block, int blocks,
                                             float* scratch) {
  const NormParams& n = r.second;
  const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5);
  const int rows = r.product.rows;
  const int pieces = n.cols / 8;
  const int row_warps = (pieces + 31) / 32;
  const int groups = kWarps / row_warps;
  const int group = warp / row_warps;
  const int piece = (warp - group * row_warps) * 32 + lane;
  const bool mine = group < groups && piece < pieces;
  const int turns =
      piece * 8 - (r.window.width - 2 * r.window.pairs);  // the first of the eight, if not below 0
  uint4 weight = make_uint4(0, 0, 0, 0);
  if (mine) weight = __ldg(reinterpret_cast<const uint4*>(n.weight) + piece);
  int row = block + group * blocks;
  uint8_t* record =
      mine && row < rows && r.window.position != nullptr ? window_record(r.window, row) : nullptr;

  wait_for_inputs();

  for (int first = block;;) {
    const bool live = mine && row < rows;
    uint4 raw = make_uint4(0, 0, 0, 0);
    if (live) raw = *reinterpret_cast<const uint4*>(n.x + row * n.x_stride + piece * 8);
    Eight e = unpack_eight(raw);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(e.v[i], e.v[i], sum);
    sum = warp_sum(sum);
    if (lane == 0) scratch[warp] = sum;
    __syncthreads();
    sum = warp_sum(lane < row_warps && group < groups ? scratch[group * row_warps + lane] : 0.0f);
    const float rs = __frsqrt_rn(sum / static_cast<float>(n.cols) + n.eps);
    const Eight w = unpack_eight(weight);
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      e.v[i] = w.v[i] * (e.v[i] * rs), e.v[i + 1] = w.v[i + 1] * (e.v[i + 1] * rs);
      round_two_to_bf16(e.v[i], e.v[i + 1]);
    }
    if (live && n.y != nullptr) store_eight(n.y + static_cast<int64_t>(row) * n.cols + piece * 8, e);
    if (n.codes != nullptr) {
      const EightCodes q = quantise_eight(e);
      const size_t at = static_cast<size_t>(row) * (n.cols / 32) + (piece >> 2);
      if (live) *reinterpret_cast<uint2*>(n.codes + at * 32 + (piece & 3) * 8) = q.codes;
      if (live && (piece & 3) == 0) n.scales[at] = q.scale;
    }
    if (r.window.position != nullptr) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int z = turns + 2 * i;
        if (record == nullptr || z < 0) continue;
        const float2 angle = *reinterpret_cast<const float2*>(
            r.window.cos_sin + static_cast<size_t>(row) * (2 * r.window.pairs) + z);
        const float v = e.v[2 * i], partner = e.v[2 * i + 1];
        e.v[2 * i] = turned(v, partner, false, angle.x, angle.y);
        e.v[2 * i + 1] = turned(partner, v, true, angle.x, angle.y);
      }
      const EightCodes q = quantise_eight(e);
      if (record != nullptr) {
        // A record begins where it may: its codes by bytes if need be.
        uint8_t* to = record + piece * 8;
        if ((reinterpret_cast<uintptr_t>(to) & 7) == 0) {
          *reinterpret_cast<uint2*>(to) = q.codes;
        } else {
#pragma unroll
          for (int i = 0; i < 8; ++i)
            to[i] = static_cast<uint8_t>((i < 4 ? q.codes.x : q.codes.y) >> (8 * (i & 3)));
        }
        if ((piece & 3) == 0) record[r.window.width + (piece >> 2)] = q.scale;
      }
    }
    first += blocks * groups;
    if (first >= rows) return;
    row += blocks * groups;
    record = mine && row < rows && r.window.position != nullptr ? window_record(r.window, row) : nullptr;
    __syncthreads();  // the sums have been read
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
  if constexpr (kNorm) {
    if (static_cast<int>(blockIdx.x) >= r.product_blocks) {
      return second_norms<kWarps>(r, static_cast<int>(blockIdx.x) - r.product_blocks,
                                  static_cast<int>(gridDim.x) - r.product_blocks, scratch);
    }
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

  // ---- the norm's weight where the partial sums will be, then the product's
  const int pieces = p.cols / 8;
  if constexpr (kNorm) {
    if (static_cast<int>(threadIdx.x) < pieces)
      copy_async_16(shared + threadIdx.x * 16, r.norm_weight + threadIdx.x * 8);
    copy_async_commit();
  }
  const uint8_t* const tiles = p.tiles + static_cast<size_t>(has_tile ? tile : 0) * p.tile_stride + lane * 16;
  const int chunks = p.warp_shards * p.shard_chunks;
  DirectChunk<kChunk> chunk(p, shard0, has_tile);
#pragma unroll 1
  for (int c = 0; c < chunks; ++c) {
    const uint8_t* from = tiles + static_cast<size_t>(chunk.first) * Format::kBlockBytes;
    uint8_t* to = apart(weights + c * (kChunk * Format::kBlockBytes));
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if (i < chunk.count) copy_weights_16(to + i * Format::kBlockBytes, from + i * Format::kBlockBytes);
    }
    chunk = chunk.after(p, shard0, has_tile);
  }
  copy_async_commit();
  const auto weight_scale_of = [&](const DirectChunk<kChunk>& of) {
    return lane < of.count
               ? ue8m0_to_float(__ldg(p.scales + static_cast<size_t>(tile / 2) * p.blocks + of.first + lane))
               : 0.0f;
  };
  chunk = DirectChunk<kChunk>(p, shard0, has_tile);
  float scale_lane = opaque(weight_scale_of(chunk));

  // ---- the rows: unit u is 256 channels of a row; a lane holds a piece of eight
  const int row_units = (p.cols + kRowUnit - 1) / kRowUnit;
  const int units = p.rows * row_units;
  int place[kUnits];  // row and piece, which is none beyond the last
  // A piece's first value, or none, where registers suffice (64-bit places would be spilled): behind the wait
  // it costs 16 instructions.
  constexpr bool kPlaces = kNorm || kUnits <= kFewDirectUnits;
  int from[kUnits];
#pragma unroll
  for (int j = 0; j < kUnits; ++j) {
    const int u = warp + j * kWarps;
    const int row = u / row_units;
    const int piece = (u - row * row_units) * 32 + lane;
    const bool valid = u < units && piece < pieces;
    place[j] = opaque(valid ? row << 16 | piece : (u < units ? row << 16 : 0) | 0xFFFF);
    if (kPlaces) from[j] = opaque(valid ? row * static_cast<int>(p.x_stride) + piece * 8 : -1);
  }
  // ---- the outputs of a thread: channel n of row m, of every kThreads / 128 th tile
  // Sums that lie side by side, since others would wait for the same banks; not where that would be spilled.
  constexpr bool kBeside = kNorm || kUnits <= kFewDirectUnits;
  int n, m;
  const auto choose_output = [&](int of_warp, int of_lane) {
    n = kBeside ? (of_warp >> 1 & 1) * 8 + (of_lane >> 2) : of_lane & 15;
    m = kBeside ? (of_lane & 3) * 2 + (of_warp & 1) : (of_warp & 3) * 2 + (of_lane >> 4);
  };
  choose_output(warp, lane);
  const int owner0 = warp >> 2;
  const int shards = opaque(kWarps / p.row_warps * p.warp_shards);
  const auto output_of = [&](int owner) {
    return (static_cast<int>(blockIdx.x) * p.row_warps + owner) * kTileRows + n;
  };
  // Where a thread's first output belongs, negative: nowhere. It is known before the wait where it would not
  // be spilled.
  constexpr bool kOutputAhead = kBeside && !kNorm && kChunk < 10;
  const auto place_output = [&] {
    const int row = output_of(owner0);
    return opaque(m < p.rows && row < p.out ? m * static_cast<int>(p.y_stride) + row : -1);
  };
  int first_output = kOutputAhead ? place_output() : -1;
  // Its place among the angles, or none.
  const auto turn_of = [&](int owner) {
    const int z = output_of(owner) % r.head_width - (r.head_width - 2 * r.pairs);
    return m < p.rows && z >= 0 ? m * (2 * r.pairs) + z : -1;
  };
  const auto angle_of = [&](int turn) {
    return turn < 0 ? make_float2(1.0f, 0.0f) : *reinterpret_cast<const float2*>(r.cos_sin + (turn & ~1));
  };
  int turn = -1;
  if constexpr (kNorm) {
    if (r.pairs > 0) turn = opaque(turn_of(owner0));
    if (threadIdx.x < 64) squares[threadIdx.x] = 0.0f;
    __syncthreads();
  }

  wait_for_inputs();

  uint4 raw[kUnits];
#pragma unroll
  for (int j = 0; j < kUnits; ++j) {
    raw[j] = make_uint4(0, 0, 0, 0);
    const int row = place[j] >> 16, piece = place[j] & 0xFFFF;
    if (kPlaces) {
      if (from[j] >= 0) raw[j] = *reinterpret_cast<const uint4*>(p.x + from[j]);
    } else if (piece < pieces) {
      raw[j] = *reinterpret_cast<const uint4*>(p.x + row * static_cast<int>(p.x_stride) + piece * 8);
    }
  }
  float2 angle = make_float2(1.0f, 0.0f);
  if constexpr (kNorm) angle = angle_of(turn);
  float rs_lane = 0.0f;  // of row lane % 8
  if constexpr (kNorm) {
    float sum[kUnits];
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      const Eight e = unpack_eight(raw[j]);
      sum[j] = 0.0f;
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[j] = fmaf(e.v[i], e.v[i], sum[j]);
    }
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      sum[j] = warp_sum(sum[j]);
      if (lane == 0 && place[j] != 0xFFFF)  // lane 0 has a piece of every unit
        squares[(place[j] >> 16) * 8 + (place[j] & 0xFFFF) / 32] = sum[j];
    }
    copy_async_wait<1>();  // the norm's weight
    __syncthreads();
    // The last steps of block_sum's tree over the row's warps.
    const float4 a = *reinterpret_cast<const float4*>(squares + (lane & 7) * 8);
    const float4 b = *reinterpret_cast<const float4*>(squares + (lane & 7) * 8 + 4);
    const float total = ((a.x + b.x) + (a.z + b.z)) + ((a.y + b.y) + (a.w + b.w));
    rs_lane = __frsqrt_rn(total / static_cast<float>(p.cols) + r.eps);
  }
#pragma unroll
  for (int j = 0; j < kUnits; ++j) {
    const int row = place[j] >> 16, piece = place[j] & 0xFFFF;
    Eight e = unpack_eight(raw[j]);
    if constexpr (kNorm) {
      const float rs = __shfl_sync(~0u, rs_lane, row);
      const Eight w = unpack_eight(reinterpret_cast<const uint4*>(shared)[min(piece, pieces - 1)]);
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        e.v[i] = w.v[i] * (e.v[i] * rs), e.v[i + 1] = w.v[i + 1] * (e.v[i + 1] * rs);
        round_two_to_bf16(e.v[i], e.v[i + 1]);
      }
    }
    const EightCodes q = quantise_eight(e);
    if (piece >= pieces) continue;
    const uint2 low = e4m3x4_to_half4(q.codes.x), high = e4m3x4_to_half4(q.codes.y);
    operands[(piece >> 2) * 32 + row * 4 + (piece & 3)] = make_uint4(low.x, low.y, high.x, high.y);
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
  float sum[4] = {};
#pragma unroll 1
  for (int c = 0;;) {
    const uint8_t* from = weights + c * (kChunk * Format::kBlockBytes);
    const uint4* operand = operands + chunk.first * 32 + lane;
    const float* scale = row_scales + chunk.first * 8 + t * 2;
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
    if (chunk.count == kChunk) {  // no branches between the blocks: their latencies overlap
#pragma unroll
      for (int b = 0; b < kChunk; ++b) multiply(b);
    } else {
#pragma unroll 1
      for (int b = 0; b < chunk.count; ++b) multiply(b);
    }
    if (chunk.place + 1 == p.shard_chunks) {
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        partial[((shard0 + chunk.shard) * p.row_warps + row_warp) * 128 + q * 32 + lane] = sum[q];
        sum[q] = 0.0f;
      }
    }
    if (++c == chunks) break;
    chunk = chunk.after(p, shard0, has_tile);
    scale_lane = weight_scale_of(chunk);
  }
  int of_warp = warp, of_lane = lane;
  if constexpr (kNorm) {  // anew: kept since the beginning it would be spilled
    const int thread = opaque(static_cast<int>(threadIdx.x));
    of_warp = thread >> 5, of_lane = thread & 31;
  }
  if constexpr (kBeside && !kOutputAhead) {
    choose_output(of_warp, of_lane);
    first_output = place_output();
  }
  __syncthreads();

  // ---- the shards of an output one after the other; then the rotation of pairs of outputs
  const auto finish = [&](const float* first, int at_turn, float2 at_angle) {
    const uint16_t result = float_to_bf16(sum_of_shards(first, p.row_warps * 128, shards));
    if (!kNorm || r.pairs == 0) return result;
    const float v = bf16_to_float(result);
    const float partner = __shfl_xor_sync(~0u, v, 4);  // the channel beside it
    return at_turn < 0 ? result
                       : float_to_bf16(turned(v, partner, (at_turn & 1) != 0, at_angle.x, at_angle.y));
  };
  int owner = of_warp >> 2;
  if (kBeside) {
    if (owner < p.row_warps) {
      const uint16_t result = finish(partial + of_warp * 32 + of_lane, turn, angle);
      if (first_output >= 0) p.y[first_output] = result;
    }
    owner += kThreads / 128;
    choose_output(of_warp, of_lane);
  }
  for (; owner < p.row_warps; owner += kThreads / 128) {
    const int at =
        kBeside ? (of_warp & 3) * 32 + of_lane : ((n >> 3) * 2 + (m & 1)) * 32 + (n & 7) * 4 + (m >> 1);
    if (kNorm && r.pairs > 0) turn = turn_of(owner), angle = angle_of(turn);
    const uint16_t result = finish(partial + owner * 128 + at, turn, angle);
    const int row = output_of(owner);
    if (m < p.rows && row < p.out) p.y[static_cast<size_t>(m) * p.y_stride + row] = result;
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
