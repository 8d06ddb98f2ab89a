// The mHC coefficients: 24 dot products over all streams' channels with an FP32 weight, then sigmoids and
// Sinkhorn. First kernel: a block takes 160 columns and all rows of the step, so the weight is read once.
// Second kernel: one block per row adds the partial sums of the blocks (lanes over blocks, then a shuffle
// tree) and finishes the row.
#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"

namespace spark::engine::cuda {
namespace {

constexpr int kColumns = kMixColumns;
constexpr int kPerLane = kColumns / 32;
constexpr int kBlockRows = 16;
constexpr int kWarps = 8;
constexpr int kOutputs = 24;
constexpr int kPerWarp = kOutputs / kWarps;
constexpr int kRowsAtOnce = 2;

// The sums over the warp of kCount values, a power of two: lane l has that of value l / (32 / kCount). Each
// is what warp_sum returns, to the bit: lanes that are done with a value go on with another.
template <int kCount>
__device__ __forceinline__ float warp_sums(float (&v)[kCount]) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  int offset = 16;
#pragma unroll
  for (int left = kCount / 2; left > 0; left /= 2, offset /= 2) {
    const bool upper = (lane & offset) != 0;
#pragma unroll
    for (int j = 0; j < left; ++j) {
      const float keep = upper ? v[left + j] : v[j];
      const float send = upper ? v[j] : v[left + j];
      v[j] = keep + __shfl_xor_sync(~0u, send, offset);
    }
  }
  for (; offset > 0; offset /= 2) v[0] += __shfl_xor_sync(~0u, v[0], offset);
  return v[0];
}

// Few registers and no more shared memory than the rows need: it runs beside the products of the main chain,
// and the routed experts' blocks find no room until it ends. `early`: the streams are complete when it
// starts.
__global__ void __launch_bounds__(kWarps * 32, 6)
    mix_partial_kernel(const uint16_t* h, const float* fn, int outputs, int rows, int columns, int chunks,
                       float* partial, bool early) {
  SPARK_DYNAMIC_SHARED(uint4, shared);
  const auto words = reinterpret_cast<uint4(*)[kColumns / 8]>(shared);
  const auto staged = reinterpret_cast<uint16_t(*)[kColumns]>(shared);
  launch_dependents();
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int first = static_cast<int>(blockIdx.x) * kColumns;
  float w[kPerWarp][kPerLane];
#pragma unroll
  for (int o = 0; o < kPerWarp; ++o) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int column = first + i * 32 + lane;
      w[o][i] = column < columns && warp * kPerWarp + o < outputs
                    ? load_weight(fn + static_cast<int64_t>(warp * kPerWarp + o) * columns + column)
                    : 0.0f;
    }
  }
  if (!early) wait_for_inputs();
  // The block's columns of all its rows at once: row after row they would cost a read of L2 each.
  const int blocks = static_cast<int>(gridDim.y);
  const int own = (rows - static_cast<int>(blockIdx.y) + blocks - 1) / blocks;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < own * (kColumns / 8); i += kWarps * 32) {
    const int m = static_cast<int>(blockIdx.y) + i / (kColumns / 8) * blocks;
    const int at = i % (kColumns / 8) * 8;
    const uint16_t* from = h + static_cast<int64_t>(m) * columns + first + at;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (columns % 8 == 0) {
      if (first + at < columns) v = *reinterpret_cast<const uint4*>(from);
      words[i / (kColumns / 8)][at / 8] = v;
    } else {
      for (int c = 0; c < 8; ++c)
        staged[i / (kColumns / 8)][at + c] = first + at + c < columns ? from[c] : uint16_t{0};
    }
  }
  __syncthreads();
  // Two rows at once: three outputs and the sum of squares of each. (The second may be none.)
  constexpr int kValues = kPerWarp + 1;
  static_assert(kValues == 4);
  const int value = lane / (32 / (kRowsAtOnce * kValues));
  const int of_row = value / kValues, output = value % kValues;
  const bool stores = lane % (32 / (kRowsAtOnce * kValues)) == 0 && (output < kPerWarp || warp == 0);
  const int place = output < kPerWarp ? warp * kPerWarp + output : kOutputs;
#pragma unroll 1
  for (int r = 0; r < own; r += kRowsAtOnce) {
    float sum[kRowsAtOnce * kValues] = {};
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
#pragma unroll
      for (int k = 0; k < kRowsAtOnce; ++k) {
        const float x = bf16_to_float(staged[r + k][i * 32 + lane]);
        float* const of = sum + k * kValues;
#pragma unroll
        for (int o = 0; o < kPerWarp; ++o) of[o] = fmaf(x, w[o][i], of[o]);
        of[kPerWarp] = fmaf(x, x, of[kPerWarp]);
      }
    }
    const float total = warp_sums(sum);
    const int m = static_cast<int>(blockIdx.y) + (r + of_row) * blocks;
    if (stores && r + of_row < own)
      partial[(static_cast<int64_t>(m) * kMixOutputs + place) * chunks + blockIdx.x] = total;
  }
}

template <int kStreams, int kFinishWarps>
__global__ void __launch_bounds__(kFinishWarps * 32)
    mix_finish_kernel(const float* partial, int chunks, int columns, int iterations, float eps,
                      float norm_eps, const float* scale, const float* base, float* pre, float* post,
                      float* comb) {
  constexpr int kAtOnce = 32 / kFinishWarps;  // outputs of a warp: all that it has
  static_assert(kAtOnce * kFinishWarps >= kMixOutputs && kFinishWarps >= 2);
  constexpr int kCells = kStreams * kStreams;
  __shared__ float total[kMixOutputs];
  launch_dependents();
  const int64_t row = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x / 32);
  // The first warp makes comb, the second pre and post. Their weights come from memory, long before the sums.
  const int cell = lane % kCells;
  const int own = warp == 0 ? 2 * kStreams + cell : min(lane, 2 * kStreams - 1);
  const float own_scale = __ldg(scale + (warp == 0 ? 2 : lane < kStreams ? 0 : 1));
  const float own_base = __ldg(base + own);
  wait_for_inputs();
  // Four chunks of every output, all read before the first is added.
  float sum[kAtOnce] = {};
#pragma unroll 1
  for (int c = lane; c < chunks; c += 128) {
    float v[kAtOnce][4];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int output = warp + k * kFinishWarps;
      const float* from = partial + (row * kMixOutputs + output) * chunks + c;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        v[k][i] = output < kMixOutputs && c + 32 * i < chunks ? __ldcg(from + 32 * i) : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[k] += v[k][i];
    }
  }
  const float all = warp_sums(sum);
  const int output = warp + lane / (32 / kAtOnce) * kFinishWarps;
  if (lane % (32 / kAtOnce) == 0 && output < kMixOutputs) total[output] = all;
  __syncthreads();
  if (warp > 1) return;
  const float rs = __frsqrt_rn(total[kOutputs] / static_cast<float>(columns) + norm_eps);
  const float logit = total[own] * rs * own_scale + own_base;
  if (warp == 1) {
    const float s = sigmoid(logit);
    if (lane < kStreams) {
      pre[row * kStreams + lane] = s + eps;
    } else if (lane < 2 * kStreams) {
      post[row * kStreams + lane - kStreams] = 2.0f * s;
    }
    return;
  }
  // Lane i * kStreams + j holds comb[i][j]; the lanes beyond repeat them.
  const int i = cell / kStreams, j = cell % kStreams;
  const auto row_sum = [&](float v) {
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < kStreams; ++k) sum += __shfl_sync(~0u, v, i * kStreams + k);
    return sum;
  };
  const auto column_sum = [&](float v) {
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < kStreams; ++k) sum += __shfl_sync(~0u, v, k * kStreams + j);
    return sum;
  };
  float largest = logit;
#pragma unroll
  for (int k = 0; k < kStreams; ++k) largest = fmaxf(largest, __shfl_sync(~0u, logit, i * kStreams + k));
  float c = expf(logit - largest);
  c = c / row_sum(c) + eps;
  c = c / (column_sum(c) + eps);
#pragma unroll 1  // less code to fetch
  for (int round = 1; round < iterations; ++round) {
    c = c / (row_sum(c) + eps);
    c = c / (column_sum(c) + eps);
  }
  if (lane < kCells) comb[row * kCells + lane] = c;
}

}  // namespace

void launch_mhc_mix(const Launch& partials, const Launch& finish, const MhcMixArgs& args, const float* fn,
                    float* workspace, bool early) {
  const int columns = args.streams * args.hidden;
  const int chunks = mhc_mix_chunks(columns);
  // Rows beyond 16 are spread over blocks of their own: the weight stays in L2.
  const unsigned row_blocks = static_cast<unsigned>(ceil_div(args.rows, kBlockRows));
  const int outputs = 2 * args.streams + args.streams * args.streams;
  const auto block_rows =
      static_cast<size_t>(round_up(ceil_div(args.rows, int64_t{row_blocks}), kRowsAtOnce));
  launch_kernel(partials, mix_partial_kernel, dim3(static_cast<unsigned>(chunks), row_blocks), kWarps * 32,
                block_rows * kColumns * sizeof(uint16_t), 1, args.h, fn, outputs, args.rows, columns, chunks,
                workspace, early);
  const auto finish_with = [&]<int kFinishWarps>() {
    const auto kernel = args.streams == 4   ? mix_finish_kernel<4, kFinishWarps>
                        : args.streams == 3 ? mix_finish_kernel<3, kFinishWarps>
                        : args.streams == 2 ? mix_finish_kernel<2, kFinishWarps>
                                            : mix_finish_kernel<1, kFinishWarps>;
    launch_kernel(finish, kernel, dim3(static_cast<unsigned>(args.rows)), kFinishWarps * 32, 0, 1, workspace,
                  chunks, columns, args.iterations, args.eps, args.norm_eps, args.scale, args.base, args.pre,
                  args.post, args.comb);
  };
  // Of few rows small enough that it finds room beside attention and WO-A.
  if (args.rows <= kDirectRows) {
    finish_with.template operator()<kWarps / 2>();
  } else {
    finish_with.template operator()<kWarps>();
  }
}

}  // namespace spark::engine::cuda
