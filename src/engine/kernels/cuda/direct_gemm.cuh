// The product of a weight with a few rows where all of the weight fits in the multiprocessors' shared memory
// at once: y[m][n] = sum_k x[m][k] w[n][k].
//
// A warp owns a 16-row tile and one or two shards of the columns. All its weights are on their way before it
// waits for the kernel that makes its inputs, so they travel while that one and the ones before it still run;
// what is left then is short: its part of the rows, read straight into registers, the products, one meeting
// of the block. The sums are those of the streaming product (stream_gemm.cuh), bit for bit: blocks ascending
// in a shard, then shard by shard. What bounds it then are instructions, so everything is unrolled: a shard
// is a number of chunks of kChunk blocks, the last ones filled up with zeros.
//
// With nine to sixteen rows (kMany) a converted tile serves two eights of rows, which are all read at once
// and meet once: eight after eight they took twice as long.
//
// With kCombine it is the shared expert's last product: its rows are there when it starts, so it waits for
// the kernel before it, the routed experts', only when its own sums are done, and adds what that one leaves.
#pragma once

#include <string>
#include <type_traits>

#include "engine/kernels/cuda/stream_gemm.cuh"

namespace spark::engine::cuda {

// A row's routed experts in ascending order, as launch_expert_combine adds them: `from` on, `stride` apart.
// What is behind the last one is the last one again: reads without a condition are all under way at once.
__device__ __forceinline__ float sum_of_experts(const uint16_t* from, int top_k, int stride) {
  constexpr int kSlots = 6;
  float total = 0.0f;
#pragma unroll 1
  for (int left = top_k; left > 0; left -= kSlots, from += kSlots * stride) {
    uint32_t v[kSlots];
#pragma unroll
    for (int k = 0; k < kSlots; ++k) v[k] = load_shared_by_blocks(from + min(k, left - 1) * stride);
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      if (k < left) total += bf16_to_float(v[k]);
    }
  }
  return total;
}

// Partial sums, `stride` apart, one after the other. What bounds it is how often it waits for shared memory.
__device__ __forceinline__ float sum_of_shards(const float* first, int stride, int shards) {
  constexpr int kAtOnce = 8;
  float total = 0.0f;
  int s = 0;
#pragma unroll 1
  for (; s + kAtOnce <= shards; s += kAtOnce, first += kAtOnce * stride) {
    float v[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) v[j] = first[j * stride];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) total += v[j];
  }
#pragma unroll 1
  for (; s + 4 <= shards; s += 4, first += 4 * stride) {
    const float a = first[0], b = first[stride], c = first[2 * stride], d = first[3 * stride];
    total = (((total + a) + b) + c) + d;
  }
#pragma unroll 1
  for (; s < shards; ++s, first += stride) total += first[0];
  return total;
}

// The chunks of a warp, one after the other: blocks first .. first + count - 1.
template <int kChunk>
struct DirectChunk {
  int shard = 0;  // of the warp's
  int place = 0;  // in the shard
  int first = 0;
  int count = 0;

  __device__ __forceinline__ DirectChunk(const StreamGemmParams& p, int shard0, bool has_tile) {
    find(p, shard0, has_tile);
  }
  __device__ __forceinline__ DirectChunk after(const StreamGemmParams& p, int shard0, bool has_tile) const {
    DirectChunk next = *this;
    if (++next.place == p.shard_chunks) next.place = 0, ++next.shard;
    next.find(p, shard0, has_tile);
    return next;
  }

 private:
  __device__ __forceinline__ void find(const StreamGemmParams& p, int shard0, bool has_tile) {
    const int at = place * kChunk;
    first = (shard0 + shard) * p.shard_blocks + at;
    const int blocks = min(p.shard_blocks - at, p.blocks - first);
    count = has_tile && shard < p.warp_shards ? max(0, min(kChunk, blocks)) : 0;
  }
};

// What a lane holds of a chunk of the rows: of each eight and block eight columns of row lane / 4, and, for
// codes, a few of the rows' scales, which go through shared memory.
template <class Format, int kChunk, int kEights>
struct DirectRows {
  using Piece = std::conditional_t<Format::kCodes, uint2, uint4>;
  Piece x[kEights][kChunk];
  uint32_t scale[kEights][(kChunk + 3) / 4];
};

// Blocks of a multiprocessor, and the threads that the compiler counts with, decide the registers of a
// thread: 64. Of q-a 72, so that a second one of its kind does not fit beside it, but one of q-b does. With
// two eights 72 for the shared expert and WO-A; the others, of which a multiprocessor has one block, as many
// as they like. (GB10 has products of its own; there it is only compiled, and two blocks would make it
// spill.)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr bool kDirectAlone = true;
#else
constexpr bool kDirectAlone = false;
#endif
template <class Format, int kChunk, bool kMany>
struct DirectRoom {
  static constexpr bool kQA = Format::kCodes && kChunk == 10;
  static constexpr bool kShared = kMany && Format::kWeightScale && (Format::kCodes || kChunk == kManyChunk);
  static constexpr int kThreads = kDirectAlone ? kDirectThreads : kQA || kShared ? 896 : kDirectThreads;
  static constexpr int kBlocks = kDirectAlone || kMany || kQA ? 1 : 2;
};

template <class Format, int kChunk, bool kCombine, bool kMany>
__global__ void __launch_bounds__((DirectRoom<Format, kChunk, kMany>::kThreads),
                                  (DirectRoom<Format, kChunk, kMany>::kBlocks))
    direct_gemm_kernel(const __grid_constant__ StreamGemmParams p) {
  constexpr int kEights = kMany ? 2 : 1;
  constexpr int kWarps = kDirectThreads / 32;
  constexpr int kPieces = Format::kBlockBytes / kTileBytes;
  SPARK_DYNAMIC_SHARED(uint8_t, shared);  // partial sums, then every warp's scales and weights
  if (!p.settles) launch_dependents();
  const uint8_t* const weight_tiles = blockIdx.y == 0 ? p.tiles : p.second_tiles;
  const uint8_t* const weight_scales = blockIdx.y == 0 ? p.scales : p.second_scales;
  uint16_t* const y = blockIdx.y == 0 ? p.y : p.second_y;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int g = lane >> 2, t = lane & 3;
  const int row_warp = warp % p.row_warps;
  const int shard0 = warp / p.row_warps * p.warp_shards;
  const int tile = static_cast<int>(blockIdx.x) * p.row_warps + row_warp;
  const bool has_tile = tile < p.row_tiles;
  float* const partial = reinterpret_cast<float*>(shared);
  float* const row_scales = partial + kEights * kWarps * p.warp_shards * 128 + warp * kChunk * (8 * kEights);
  uint8_t* const weights =
      shared + direct_weights_at(p.warp_shards, kChunk, kMany) +
      static_cast<size_t>(warp * p.warp_shards * p.shard_chunks) * (kChunk * Format::kBlockBytes) + lane * 16;

  // ---- the weights: a group of copies for each chunk, at most kDirectGroups of them
  const uint8_t* const tiles =
      weight_tiles + static_cast<size_t>(has_tile ? tile : 0) * p.tile_stride + lane * 16;
  const int chunks = p.warp_shards * p.shard_chunks;
  // The chunks of this warp one after the other: `shard` of its shards, `place` in the shard.
  DirectChunk<kChunk> chunk(p, shard0, has_tile);
#pragma unroll 1
  for (int c = 0; c < chunks; ++c) {
    const uint8_t* from = tiles + static_cast<size_t>(chunk.first) * Format::kBlockBytes;
    uint8_t* to = apart(weights + c * (kChunk * Format::kBlockBytes));
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const int at = i * Format::kBlockBytes + piece * kTileBytes;
        copy_weights_16(to + at, i < chunk.count ? from + at : tiles, i < chunk.count);
      }
    }
    copy_async_commit();
    chunk = chunk.after(p, shard0, has_tile);
  }
  const auto weight_scale_of = [&](const DirectChunk<kChunk>& of) {
    return Format::kWeightScale && lane < of.count
               ? ue8m0_to_float(
                     __ldg(weight_scales + static_cast<size_t>(tile / 2) * p.blocks + of.first + lane))
               : 0.0f;
  };
  // Scales come from memory, and everything would wait for them: those of the warp's first two chunks are
  // there before the inputs are (with many rows of the first, for want of registers). Lane b holds that of
  // block b.
  constexpr bool kAhead = kEights == 1;
  chunk = DirectChunk<kChunk>(p, shard0, has_tile);
  float scale_lane = opaque(weight_scale_of(chunk));
  float next_scale = 0.0f;
  if (kAhead && chunks > 1) next_scale = opaque(weight_scale_of(chunk.after(p, shard0, has_tile)));

  // ---- where the rows lie: lane (g, t) reads row g of eight, eight columns of each block. Places in memory
  // where registers suffice (not beside codes' scales), or the first read waits for twenty instructions
  // behind the wait.
  constexpr bool kPlaces = kAhead && !Format::kCodes;
  using Rows = DirectRows<Format, kChunk, kEights>;
  const int group_of_rows = p.rows_per_group > 0 ? min(tile * kTileRows / p.rows_per_group, p.groups - 1) : 0;
  int row_at[kEights], row_scale_at[kEights];  // of the chunk
  const uint16_t* row_from[kEights] = {};
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
    const int row = min(e * 8 + g, p.rows - 1), scale_row = min(e * 8 + (lane & 7), p.rows - 1);
    row_at[e] = row * static_cast<int>(p.x_stride) + group_of_rows * p.cols + t * 8 + chunk.first * 32;
    row_scale_at[e] = opaque(scale_row * p.blocks + (lane >> 3) + chunk.first);
    if constexpr (kPlaces) {
      row_from[e] = opaque(p.x + row_at[e]);
    } else {
      row_at[e] = opaque(row_at[e]);
    }
  }
  const int shards = opaque(kWarps / p.row_warps * p.warp_shards);
  // Where a thread's first output belongs, negative: nowhere. It is known before the wait: behind the last
  // barrier every instruction is on the way to the next kernel.
  constexpr bool kOutputAhead = !kMany && !kCombine;
  int first_output = -1;
  if constexpr (kOutputAhead) {
    const int i = static_cast<int>(threadIdx.x), m = (i & 3) * 2 + (i >> 5 & 1);
    const int row =
        (static_cast<int>(blockIdx.x) * p.row_warps + (i >> 7)) * kTileRows + (i >> 6 & 1) * 8 + (i >> 2 & 7);
    first_output = opaque(m < p.rows && row < p.out ? m * static_cast<int>(p.y_stride) + row : -1);
  }

  if (!kCombine || !p.combine.early) wait_for_inputs();
  if (p.settles) launch_dependents();

  // Rows beyond the last are the last one's: nobody reads their sums.
  const auto load = [&](int count, Rows& rows) {
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
#pragma unroll
      for (int b = 0; b < kChunk; ++b) {
        rows.x[e][b] = {};
        if (b >= count) continue;
        if constexpr (Format::kCodes) {
          rows.x[e][b] = *reinterpret_cast<const uint2*>(p.x_codes + row_at[e] + b * 32);
        } else {
          const uint16_t* const from = kPlaces ? row_from[e] : p.x + row_at[e];
          rows.x[e][b] = *reinterpret_cast<const uint4*>(from + b * 32);
        }
      }
      if constexpr (Format::kCodes) {
#pragma unroll
        for (int b = 0; b < kChunk; b += 4) {
          rows.scale[e][b / 4] = b + (lane >> 3) < count ? uint32_t{p.x_scales[row_scale_at[e] + b]} : 0u;
        }
      }
    }
  };
  const auto wait_for_chunk = [&](int c) {
    if (c + 1 >= chunks) return copy_async_wait<0>();
    // Later chunks may still be under way.
    if (chunks - c - 1 >= 3) {
      copy_async_wait<3>();
    } else if (chunks - c - 1 == 2) {
      copy_async_wait<2>();
    } else {
      copy_async_wait<1>();
    }
  };
  Rows rows;
  load(chunk.count, rows);
  float sum[kEights][4] = {};
#pragma unroll 1
  for (int c = 0;;) {
    if constexpr (Format::kCodes) {
      // The rows by kChunk blocks, as the lanes read them.
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
#pragma unroll
        for (int b = 0; b < kChunk; b += 4) {
          const int block = b + (lane >> 3);
          if (block < kChunk)
            row_scales[(e * kChunk + block) * 8 + (lane & 7)] = ue8m0_to_float(rows.scale[e][b / 4]);
        }
      }
      __syncwarp();
    }
    wait_for_chunk(c);
    const uint8_t* from = weights + c * (kChunk * Format::kBlockBytes);
#pragma unroll
    for (int b = 0; b < kChunk; ++b) {
      uint32_t a[8];
      Format::operand(Format::read(from - lane * 16 + b * Format::kBlockBytes, lane), a);
      const float weight_scale = Format::kWeightScale ? __shfl_sync(~0u, scale_lane, b) : 1.0f;
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        const auto x = rows.x[e][b];
        if constexpr (!Format::kWeightScale) {
          mma_bf16(sum[e], a[0], a[1], a[2], a[3], x.x, x.y);
          mma_bf16(sum[e], a[4], a[5], a[6], a[7], x.z, x.w);
        } else if constexpr (Format::kCodes) {
          const float2 own = *reinterpret_cast<const float2*>(row_scales + (e * kChunk + b) * 8 + t * 2);
          const float s0 = weight_scale * own.x;
          const float s1 = weight_scale * own.y;
          float d[4] = {};
          const uint2 low = e4m3x4_to_half4(x.x), high = e4m3x4_to_half4(x.y);
          mma_f16(d, a[0], a[1], a[2], a[3], low.x, low.y);
          mma_f16(d, a[4], a[5], a[6], a[7], high.x, high.y);
          sum[e][0] = fmaf(d[0], s0, sum[e][0]);
          sum[e][1] = fmaf(d[1], s1, sum[e][1]);
          sum[e][2] = fmaf(d[2], s0, sum[e][2]);
          sum[e][3] = fmaf(d[3], s1, sum[e][3]);
        } else {
          float d[4] = {};
          mma_bf16(d, a[0], a[1], a[2], a[3], x.x, x.y);
          mma_bf16(d, a[4], a[5], a[6], a[7], x.z, x.w);
#pragma unroll
          for (int q = 0; q < 4; ++q) sum[e][q] = fmaf(d[q], weight_scale, sum[e][q]);
        }
      }
    }
    if (chunk.place + 1 == p.shard_chunks) {
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          partial[(((shard0 + chunk.shard) * p.row_warps + row_warp) * kEights + e) * 128 + q * 32 + lane] =
              sum[e][q];
          sum[e][q] = 0.0f;
        }
      }
    }
    if (++c == chunks) break;
    const int before = chunk.first;
    chunk = chunk.after(p, shard0, has_tile);
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      if constexpr (kPlaces) {
        row_from[e] += (chunk.first - before) * 32;
      } else {
        row_at[e] += (chunk.first - before) * 32, row_scale_at[e] += chunk.first - before;
      }
    }
    load(chunk.count, rows);
    scale_lane = kAhead ? next_scale : weight_scale_of(chunk);
    if (kAhead) next_scale = weight_scale_of(chunk.after(p, shard0, has_tile));
    __syncwarp();  // the chunk before has been read
  }
  __syncthreads();
  if constexpr (kCombine) {
    // All that a thread's first output needs is there before the wait: its own sum (with chunks of eight it
    // would be spilled), whether its row lives (rows of the step need no wait), where it lies. Behind the
    // wait every instruction of this code, which runs once a layer, costs several cycles.
    constexpr bool kSumsFirst = kChunk == 5;
    const int first = static_cast<int>(threadIdx.x), out = static_cast<int>(p.out);
    const int top_k = p.combine.top_k, m = (first >> 4) & 7;
    const auto channel_of = [&](int i) {
      return (static_cast<int>(blockIdx.x) * p.row_warps + (i >> 7)) * kTileRows + (i & 15);
    };
    const auto own_sum = [&](int i) {
      const int r = i & 15;
      return sum_of_shards(partial + (i >> 7) * 128 + ((r >> 3) * 2 + (m & 1)) * 32 + (r & 7) * 4 + (m >> 1),
                           p.row_warps * 128, shards);
    };
    const bool lives = m < p.rows && p.combine.sequence[min(m, p.rows - 1)] >= 0;
    const bool writes =
        opaque(static_cast<int>(first < p.row_warps * 128 && lives && channel_of(first) < out));
    const uint16_t* const routed = opaque(p.combine.outputs + m * top_k * out + channel_of(first));
    uint16_t* const to = opaque(y + m * static_cast<int>(p.y_stride) + channel_of(first));
    float total = 0.0f;
    if (kSumsFirst && first < p.row_warps * 128) total = opaque(round_to_bf16(own_sum(first)));
    if (p.combine.early) wait_for_inputs();
    if (writes) {
      const float experts = sum_of_experts(routed, top_k, out);
      if (!kSumsFirst) total = round_to_bf16(own_sum(first));
      *to = float_to_bf16(experts + total);
    }
#pragma unroll 1
    for (int i = first + kDirectThreads; i < p.row_warps * 128; i += kDirectThreads) {
      const int channel = channel_of(i);
      if (!lives || channel >= out) continue;
      const float experts = sum_of_experts(p.combine.outputs + m * top_k * out + channel, top_k, out);
      y[m * static_cast<int>(p.y_stride) + channel] = float_to_bf16(experts + round_to_bf16(own_sum(i)));
    }
#pragma unroll 1
    for (int i = static_cast<int>(blockIdx.x) * kDirectThreads + first; i < p.combine.word_pairs;
         i += static_cast<int>(gridDim.x) * kDirectThreads)
      reinterpret_cast<uint4*>(p.combine.words)[i] = make_uint4(0, 0, 0, 0);
    return;
  }

  // ---- the shards of an output one after the other. A thread has the sums that lie side by side with its
  // neighbours': others would wait for the same banks.
  if constexpr (kOutputAhead) {
    const int i = static_cast<int>(threadIdx.x);
    if (i < p.row_warps * 128) {
      const float total = sum_of_shards(partial + i, p.row_warps * 128, shards);
      if (first_output >= 0 && p.y_f32 != nullptr) p.y_f32[first_output] = total;
      if (first_output >= 0 && p.y_f32 == nullptr) y[first_output] = float_to_bf16(total);
    }
  }
  constexpr int kFirst = kOutputAhead ? kDirectThreads : 0;
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
    for (int i = static_cast<int>(threadIdx.x) + kFirst; i < p.row_warps * 128; i += kDirectThreads) {
      const int owner = i >> 7, m = e * 8 + (i & 3) * 2 + (i >> 5 & 1);
      const int64_t row = (static_cast<int64_t>(blockIdx.x) * p.row_warps + owner) * kTileRows +
                          (i >> 6 & 1) * 8 + (i >> 2 & 7);
      if (m >= p.rows || row >= p.out) continue;
      const float total = sum_of_shards(partial + (owner * kEights + e) * 128 + (i & 127),
                                        p.row_warps * kEights * 128, shards);
      const size_t at = static_cast<size_t>(m) * static_cast<size_t>(p.y_stride) + static_cast<size_t>(row);
      if (p.y_f32 != nullptr) {
        p.y_f32[at] = total;
      } else {
        y[at] = float_to_bf16(total);
      }
    }
  }
}

template <class Format, int kChunk, bool kCombine>
void launch_direct_chunk(const Launch& on, const DirectLaunch& plan, const StreamGemmParams& params) {
  const auto with = [&](auto kernel) {
    launch_kernel(on, kernel, dim3(static_cast<unsigned>(plan.grid), params.second_tiles != nullptr ? 2 : 1),
                  kDirectThreads, plan.shared_bytes, 1, params);
  };
  constexpr bool kFew = kChunk != kManyChunk, kMany = kChunk <= 5 && !kCombine;
  if constexpr (kMany) {
    if (plan.many || !kFew) return with(direct_gemm_kernel<Format, kChunk, kCombine, true>);
  }
  if constexpr (kFew) with(direct_gemm_kernel<Format, kChunk, kCombine, false>);
}

template <class Format, bool kCombine = false>
void launch_direct_gemm(const Launch& on, const DirectLaunch& plan, const StreamGemmParams& params) {
  switch (plan.chunk) {
    case kManyChunk:
      if constexpr (!kCombine) return launch_direct_chunk<Format, kManyChunk, kCombine>(on, plan, params);
      break;
    case 5:
      return launch_direct_chunk<Format, 5, kCombine>(on, plan, params);
    case 8:
      return launch_direct_chunk<Format, 8, kCombine>(on, plan, params);
    default:
      if constexpr (Format::kCodes) return launch_direct_chunk<Format, 10, kCombine>(on, plan, params);
  }
  throw Error("a chunk of " + std::to_string(plan.chunk) + " blocks", "CUDA backend",
              "this is a defect: report it");
}

}  // namespace spark::engine::cuda
