// The residual streams of mHC: their collapse into a sublayer's input with its norm, their expansion by the
// sublayer's output, both in one launch, and their mean.
#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/norm.cuh"

namespace spark::engine::cuda {
namespace {

struct CollapseParams {
  const uint16_t* h;
  const float* pre;
  int hidden;
  float eps;
  const uint16_t* weight;
  uint16_t* u;
  uint16_t* x;
  uint8_t* codes;
  uint8_t* scales;
  // Of the expansion before it.
  const uint16_t* y;
  const float* post;
  const float* comb;
  uint16_t* expanded;  // h
  EarlyStreams early;
};

// What the new streams take of the old ones, in their place: sum_i comb[i][j] * h[i].
template <int kStreams>
__device__ __forceinline__ void mix_eight(Eight (&stream)[kStreams],
                                          const float (&comb)[kStreams * kStreams]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float old[kStreams];
#pragma unroll
    for (int k = 0; k < kStreams; ++k) old[k] = stream[k].v[i];
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      float sum = comb[j] * old[0];
#pragma unroll
      for (int k = 1; k < kStreams; ++k) sum = fmaf(comb[k * kStreams + j], old[k], sum);
      stream[j].v[i] = sum;
    }
  }
}

// The new streams in place of that, and as they are stored: h[j] = round(post[j] * y + mixed[j]).
template <int kStreams>
__device__ __forceinline__ void expand_eight(const Eight& y, const float (&post)[kStreams],
                                             Eight (&mixed)[kStreams], uint4 (&words)[kStreams]) {
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
#pragma unroll
    for (int i = 0; i < 8; ++i) mixed[j].v[i] = post[j] * y.v[i] + mixed[j].v[i];
    words[j] = round_eight(mixed[j]);
  }
}

template <int kCount>
__device__ __forceinline__ void load_floats(const float* from, float (&to)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = __ldcg(from + i);
}
// Sixteen bytes at a time: every thread of a block reads the same, one request each.
template <int kCount>
__device__ __forceinline__ void load_quads(const float* from, float (&to)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float4 v = __ldcg(reinterpret_cast<const float4*>(from + i));
    to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
  }
}

constexpr int kOnePieceThreads = 640;                                       // 5120 channels
constexpr int kCollapseBlocks = 5;                                          // of a row, with few rows
constexpr size_t kCollapseScratch = 32 * sizeof(float) + sizeof(uint64_t);  // and a barrier

// One block per row, kPieces pieces of eight channels a thread; or a cluster of kBlocks. (One block's warps
// are bound by their instructions, and take all registers of a multiprocessor.) What is complete when it
// starts is read before the wait (with one piece: that takes registers), and the old streams' part of the new
// ones made.
template <bool kExpand, int kPieces, int kBlocks = 1>
__global__ void __launch_bounds__(kPieces == 1 ? kOnePieceThreads / kBlocks : 1024)
    collapse_kernel(const __grid_constant__ CollapseParams p) {
  static_assert(kBlocks == 1 || kPieces == 1);
  SPARK_DYNAMIC_SHARED(float, scratch);
  launch_dependents();
  // Counts the sums of all warps of the row. (The cluster's own barrier would wait for the new streams to be
  // written.)
  uint64_t* const met = reinterpret_cast<uint64_t*>(scratch + 32);
  if constexpr (kBlocks > 1) {
    if (threadIdx.x == 0) {
      barrier_init(met, 1);
      barrier_init_done();
      barrier_expect(met, static_cast<uint32_t>(kBlocks * sizeof(float)) * (blockDim.x / 32));
    }
    cluster_arrive();
  }
  const int64_t row = blockIdx.x / kBlocks;
  const int rank = static_cast<int>(blockIdx.x % kBlocks);
  const int pieces = p.hidden / 8;
  const int first = kBlocks > 1 ? rank * static_cast<int>(blockDim.x) : 0;  // piece of this block
  const auto index_of = [&](int j) {
    return first + j * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
  };
  uint4 weight[kPieces];
  load_norm_weight(p.weight + first * 8, pieces - first, weight);
  const bool early = kPieces == 1 && p.early.streams;
  const bool mixed = early && p.early.coefficients;
  // Where the sublayer's output lies, made before the wait: behind it that is what the first read waits for.
  const uint4* y_from = nullptr;
  if constexpr (kExpand) y_from = opaque(reinterpret_cast<const uint4*>(p.y + row * p.hidden) + index_of(0));
  float m[4], post[4], comb[16];
  const auto load_coefficients = [&] {
    load_quads(p.pre + row * 4, m);
    if constexpr (kExpand) {
      load_quads(p.post + row * 4, post);
      load_quads(p.comb + row * 16, comb);
    }
  };
  const auto load_streams = [&](int index, uint4(&raw)[4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      raw[k] = __ldcg(reinterpret_cast<const uint4*>(p.h + (row * 4 + k) * p.hidden) + index);
    }
  };
  const auto old_streams = [&](const uint4(&raw)[4], Eight(&stream)[4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) stream[k] = unpack_eight(raw[k]);
    if constexpr (kExpand) mix_eight<4>(stream, comb);
  };
  uint4 raw[4] = {};
  Eight stream[4];
  if (early && index_of(0) < pieces) load_streams(index_of(0), raw);
  if (mixed) {
    load_coefficients();
    old_streams(raw, stream);
  }
  if constexpr (kBlocks > 1) cluster_wait();  // the others have started
  wait_for_inputs();
  uint4 y_first = {};
  if constexpr (kExpand) {
    if (index_of(0) < pieces) y_first = __ldcg(y_from);
  }
  if (!mixed) {
    load_coefficients();
    if (!early && kPieces == 1 && index_of(0) < pieces) load_streams(index_of(0), raw);
    if (kPieces == 1) old_streams(raw, stream);
  }
  Eight piece[kPieces] = {};
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    const int index = index_of(j);
    if (index >= pieces) continue;
    if constexpr (kPieces > 1) {
      load_streams(index, raw);
      old_streams(raw, stream);
    }
    if constexpr (kExpand) {
      static_assert(kPieces == 1);
      expand_eight<4>(unpack_eight(y_first), post, stream, raw);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float sum = m[0] * stream[0].v[i];
#pragma unroll
      for (int k = 1; k < 4; ++k) sum = fmaf(m[k], stream[k].v[i], sum);
      piece[j].v[i] = sum;
    }
    const uint4 words = round_eight(piece[j]);
    if (p.u != nullptr) *reinterpret_cast<uint4*>(p.u + row * p.hidden + index * 8) = words;
  }
  const auto store_streams = [&] {
    if constexpr (kExpand) {
      const int index = index_of(0);
      if (index >= pieces) return;
#pragma unroll
      for (int k = 0; k < 4; ++k)
        *reinterpret_cast<uint4*>(p.expanded + (row * 4 + k) * p.hidden + index * 8) = raw[k];
    }
  };
  const auto sum = [&](float v) {
    if constexpr (kBlocks == 1) {
      store_streams();
      return block_sum(v, scratch);
    }
    // The same tree over the same warps.
    v = warp_sum(v);
    const int lane = static_cast<int>(threadIdx.x & 31);
    const int warps = static_cast<int>(blockDim.x / 32);
    if (lane < kBlocks) {
      store_cluster_async(scratch + rank * warps + static_cast<int>(threadIdx.x / 32), met,
                          static_cast<uint32_t>(lane), v);
    }
    store_streams();  // while those travel
    barrier_wait(met, 0);
    return warp_sum(lane < kBlocks * warps ? scratch[lane] : 0.0f);
  };
  const int64_t at = row * p.hidden + first * 8;
  normalise_row(piece, kBlocks > 1 ? min(pieces - first, static_cast<int>(blockDim.x)) : pieces, p.hidden,
                p.eps, weight, p.x == nullptr ? nullptr : p.x + at,
                p.codes == nullptr ? nullptr : p.codes + at,
                p.codes == nullptr ? nullptr : p.scales + at / 32, sum);
}

template <int kStreams>
__global__ void expand_kernel(const uint16_t* y, const float* post, const float* comb, int hidden,
                              uint16_t* h) {
  launch_dependents();
  wait_for_inputs();
  const int64_t row = blockIdx.y;
  const int index = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * 8;
  if (index >= hidden) return;
  const Eight out = load_eight(y + row * hidden + index);
  Eight stream[kStreams];
#pragma unroll
  for (int k = 0; k < kStreams; ++k) stream[k] = load_eight(h + (row * kStreams + k) * hidden + index);
  float factors[kStreams], shares[kStreams * kStreams];
  load_floats(post + row * kStreams, factors);
  load_floats(comb + row * kStreams * kStreams, shares);
  mix_eight<kStreams>(stream, shares);
  uint4 words[kStreams];
  expand_eight<kStreams>(out, factors, stream, words);
#pragma unroll
  for (int k = 0; k < kStreams; ++k)
    *reinterpret_cast<uint4*>(h + (row * kStreams + k) * hidden + index) = words[k];
}

__global__ void stream_mean_kernel(const uint16_t* h, int hidden, int streams, uint16_t* out,
                                   int64_t out_stride) {
  launch_dependents();
  wait_for_inputs();
  const int64_t row = blockIdx.y;
  const int index = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * 8;
  if (index >= hidden) return;
  Eight sum = {};
  for (int k = 0; k < streams; ++k) {
    const Eight s = load_eight(h + (row * streams + k) * hidden + index);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum.v[i] += s.v[i];
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) sum.v[i] = sum.v[i] / static_cast<float>(streams);
  store_eight(out + row * out_stride + index, sum);
}

CollapseParams collapse_params(const MhcCollapseArgs& args) {
  require_width(args.hidden, "an mHC collapse");
  return {.h = args.h,
          .pre = args.pre,
          .hidden = args.hidden,
          .eps = args.norm_eps,
          .weight = args.norm_weight,
          .u = args.u,
          .x = args.x,
          .codes = args.x_q.codes,
          .scales = args.x_q.scales,
          .y = nullptr,
          .post = nullptr,
          .comb = nullptr,
          .expanded = nullptr,
          .early = {}};
}

}  // namespace

void launch_mhc_collapse(const Launch& on, const MhcCollapseArgs& args) {
  const int threads = row_threads(args.hidden);
  launch_kernel(on,
                threads <= kOnePieceThreads ? collapse_kernel<false, 1> : collapse_kernel<false, kMaxPieces>,
                dim3(static_cast<unsigned>(args.rows)), threads, kCollapseScratch, 1, collapse_params(args));
}

bool expands_and_collapses(int hidden) {
  return hidden / 8 <= kOnePieceThreads;
}

void launch_mhc_expand_collapse(const Launch& on, const MhcExpandArgs& expand, const MhcCollapseArgs& args,
                                const EarlyStreams& early) {
  CollapseParams p = collapse_params(args);
  p.y = expand.y;
  p.post = expand.post;
  p.comb = expand.comb;
  p.expanded = expand.h;
  p.early = early;
  const int threads = row_threads(args.hidden);
  if (args.rows <= kDirectRows && args.hidden % (kCollapseBlocks * 256) == 0) {
    return launch_kernel(on, collapse_kernel<true, 1, kCollapseBlocks>,
                         dim3(static_cast<unsigned>(args.rows * kCollapseBlocks)), threads / kCollapseBlocks,
                         kCollapseScratch, kCollapseBlocks, p);
  }
  launch_kernel(on, collapse_kernel<true, 1>, dim3(static_cast<unsigned>(args.rows)), threads,
                kCollapseScratch, 1, p);
}

void launch_mhc_expand(const Launch& on, const MhcExpandArgs& args) {
  constexpr int kThreads = 64;
  const auto kernel = args.streams == 4   ? expand_kernel<4>
                      : args.streams == 3 ? expand_kernel<3>
                      : args.streams == 2 ? expand_kernel<2>
                                          : expand_kernel<1>;
  launch_kernel(
      on, kernel,
      dim3(static_cast<unsigned>(ceil_div(args.hidden, kThreads * 8)), static_cast<unsigned>(args.rows)),
      kThreads, 0, 1, args.y, args.post, args.comb, args.hidden, args.h);
}

void launch_stream_mean(const Launch& on, const StreamMeanArgs& args) {
  constexpr int kThreads = 64;
  launch_kernel(
      on, stream_mean_kernel,
      dim3(static_cast<unsigned>(ceil_div(args.hidden, kThreads * 8)), static_cast<unsigned>(args.rows)),
      kThreads, 0, 1, args.h, args.hidden, args.streams, args.out, args.out_stride);
}

}  // namespace spark::engine::cuda
