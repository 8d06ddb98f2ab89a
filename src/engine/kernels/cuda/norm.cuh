// The RMS norm of a row by one block, with the quantised form of the result.
#pragma once

#include <algorithm>
#include <string>

#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"

namespace spark::engine::cuda {

constexpr int kMaxPieces = 2;  // eight-channel pieces of a thread: rows of up to 16384 channels

// Norm of a row held as pieces of eight BF16-rounded channels, then output and its quantised form. `pieces`:
// of this block; sum(v): the sum of v over everyone who holds a part of the row.
template <int kPieces, class Sum>
__device__ __forceinline__ void normalise_row(Eight (&piece)[kPieces], int pieces, int cols, float eps,
                                              const uint4 (&weight)[kPieces], uint16_t* y, uint8_t* codes,
                                              uint8_t* scales, const Sum& sum) {
  const int threads = static_cast<int>(blockDim.x);
  float squares = 0.0f;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    if (j * threads + static_cast<int>(threadIdx.x) >= pieces) continue;
#pragma unroll
    for (int i = 0; i < 8; ++i) squares = fmaf(piece[j].v[i], piece[j].v[i], squares);
  }
  const float mean = sum(squares) / static_cast<float>(cols);
  const float rs = __frsqrt_rn(mean + eps);
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    const int index = j * threads + static_cast<int>(threadIdx.x);
    // All lanes of a warp take part in the quantiser's shuffles.
    if (j * threads + static_cast<int>(threadIdx.x & ~31u) >= pieces) continue;
    const bool valid = index < pieces;
    Eight out = {};
    if (valid) {
      const Eight w = unpack_eight(weight[j]);
#pragma unroll
      for (int i = 0; i < 8; ++i) out.v[i] = w.v[i] * (piece[j].v[i] * rs);
      const uint4 words = round_eight(out);
      if (y != nullptr) *reinterpret_cast<uint4*>(y + index * 8) = words;
    }
    if (codes != nullptr) {
      const EightCodes q = quantise_eight(out);
      if (valid) *reinterpret_cast<uint2*>(codes + index * 8) = q.codes;
      if (valid && (index & 3) == 0) scales[index / 4] = q.scale;
    }
  }
}

// The norm's weight, which may be read before the inputs exist.
template <int kPieces>
__device__ __forceinline__ void load_norm_weight(const uint16_t* weight, int pieces, uint4 (&to)[kPieces]) {
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    const int index = j * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
    to[j] = index < pieces ? __ldg(reinterpret_cast<const uint4*>(weight) + index) : make_uint4(0, 0, 0, 0);
  }
}

// The row `row` of a norm. `weight` as load_norm_weight gives it; `scratch` as of block_sum.
__device__ __forceinline__ void norm_row(const NormParams& p, int64_t row, const uint4 (&weight)[kMaxPieces],
                                         float* scratch) {
  const int pieces = p.cols / 8;
  Eight piece[kMaxPieces] = {};
#pragma unroll
  for (int j = 0; j < kMaxPieces; ++j) {
    const int index = j * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
    if (index < pieces) piece[j] = load_eight(p.x + row * p.x_stride + index * 8);
  }
  normalise_row(piece, pieces, p.cols, p.eps, weight, p.y == nullptr ? nullptr : p.y + row * p.cols,
                p.codes == nullptr ? nullptr : p.codes + row * p.cols,
                p.codes == nullptr ? nullptr : p.scales + row * (p.cols / 32),
                [&](float v) { return block_sum(v, scratch); });
}

// Threads of a block that has a whole row.
inline int row_threads(int64_t cols) {
  const int64_t pieces = cols / 8;
  return static_cast<int>(
      std::min<int64_t>(1024, round_up(pieces > 1024 ? ceil_div(pieces, 2) : pieces, 32)));
}

inline void require_width(int64_t cols, const char* what) {
  if (cols % 32 == 0 && cols / 8 <= int64_t{1024} * kMaxPieces) return;
  throw Error(std::string(what) + " of " + std::to_string(cols) + " channels", "CUDA backend",
              "row kernels take multiples of 32 up to 16384 channels");
}

}  // namespace spark::engine::cuda
