// The product of a weight with the many rows of a prompt: y[m][n] = sum_k x[m][k] w[n][k].
//
// A block takes 128 weight rows and 128 rows of the step, a warp 32 and 64 of them. Weights and rows come 128
// columns at a time through a ring that the block shares; codes become FP16 one step ahead. The sums are the
// streaming product's (stream_gemm.cuh), bit for bit: a block of 32 columns by the matrix unit, blocks
// ascending in a shard, shard after shard. Bound: the matrix unit.
#pragma once

#include "engine/kernels/cuda/sm90/store_codes.cuh"
#include "engine/kernels/cuda/stream_gemm.cuh"

namespace spark::engine::cuda {

constexpr int kPrefillWarps = 8;
constexpr int kPrefillThreads = 32 * kPrefillWarps;
constexpr int kPrefillBlocks = 4;  // of 32 columns of a step
constexpr int kPrefillEights = 8;  // of rows of the step of a warp
constexpr int kPrefillRowWarps = 4;
constexpr int kPrefillTiles = 2 * kPrefillRowWarps;
static_assert(kPrefillTiles * kTileRows == kPrefillWeightRows);
static_assert(kPrefillWarps / kPrefillRowWarps * kPrefillEights * 8 == kPrefillStepRows);

// Shared memory of a format.
template <class Format>
struct PrefillShape {
  static constexpr int kStages = Format::kCodes ? 4 : 3;
  // Steps that are under way; codes are needed a step before their products.
  static constexpr int kAhead = kStages - 1;
  static constexpr int kPending = Format::kCodes ? kAhead - 2 : kAhead - 1;
  static constexpr int kTileStep = kPrefillBlocks * Format::kBlockBytes;
  static constexpr int kWeightBytes = kPrefillTiles * kTileStep;
  // 16-bit operands: a lane's eight columns are 16 bytes; eight lanes of two rows meet all banks.
  static constexpr int kRowBytes = kPrefillBlocks * 64 + 64;
  static constexpr int kCodesStride = kPrefillBlocks * 32 + 16;
  static constexpr int kStageRowBytes = Format::kCodes ? kCodesStride : kRowBytes;
  static constexpr int kStageBytes = kWeightBytes + kPrefillStepRows * kStageRowBytes;
  static constexpr int kRowsAt = kStages * kStageBytes;  // codes as FP16, of two steps
  static constexpr int kScalesAt = kRowsAt + (Format::kCodes ? 2 * kPrefillStepRows * kRowBytes : 0);
  static constexpr int kBytes = kScalesAt + (Format::kCodes ? 2 * kPrefillBlocks * kPrefillStepRows * 4 : 0);
  static constexpr int kOutStride = kPrefillWeightRows + 8;  // BF16, of the outputs on their way out
  static_assert(kPrefillStepRows * kOutStride * 2 <= kStages * kStageBytes);
};

// A thread's part of what a block brings in.
template <class Format>
class PrefillFetch {
 public:
  using Shape = PrefillShape<Format>;

  __device__ __forceinline__ PrefillFetch(const StreamGemmParams& p, uint8_t* shared, const uint8_t* weights,
                                          int first_tile, int tiles, int first_row, int group_of_rows)
      : p_(p), shared_(shared), tiles_(tiles) {
    const int thread = static_cast<int>(threadIdx.x);
    weights_ = weights + static_cast<size_t>(first_tile) * p.tile_stride;
    // Rows that the step does not have are copies of its last: what they give is nobody's.
#pragma unroll
    for (int i = 0; i < kRowPieces; ++i) {
      const int piece = thread + i * kPrefillThreads;
      const int row = min(first_row + piece / kPiecesOfRow, p.rows - 1);
      from_[i] = static_cast<uint32_t>(row) * static_cast<uint32_t>(p.x_stride) +
                 static_cast<uint32_t>(group_of_rows * p.cols + piece % kPiecesOfRow * kPieceColumns);
    }
  }
  // Starts the next step's copies and closes a group, also when there is no step.
  __device__ __forceinline__ void next() {
    const int thread = static_cast<int>(threadIdx.x);
    uint8_t* const to = shared_ + stage_ * Shape::kStageBytes;
    const int blocks = p_.blocks - step_ * kPrefillBlocks;  // that are left
    if (blocks > 0) {
#pragma unroll
      for (int i = 0; i < kWeightPieces; ++i) {
        const int at = (thread + i * kPrefillThreads) * 16;
        const int tile = at / Shape::kTileStep, within = at % Shape::kTileStep;
        const bool valid = tile < tiles_ && within < blocks * Format::kBlockBytes;
        const uint8_t* const from = weights_ + static_cast<size_t>(tile) * p_.tile_stride +
                                    static_cast<size_t>(step_) * Shape::kTileStep + within;
        copy_async_16(to + at, valid ? from : weights_, valid);
      }
#pragma unroll
      for (int i = 0; i < kRowPieces; ++i) {
        const int piece = thread + i * kPrefillThreads;
        const int row = piece / kPiecesOfRow, column = piece % kPiecesOfRow;
        const bool valid = column * kPieceColumns < blocks * 32;
        const uint32_t at = valid ? from_[i] + static_cast<uint32_t>(step_ * kPrefillBlocks * 32) : 0;
        uint8_t* const place = to + Shape::kWeightBytes + row * Shape::kStageRowBytes + column * 16;
        if constexpr (Format::kCodes) {
          copy_async_16(place, p_.x_codes + at, valid);
        } else {
          copy_async_16(place, p_.x + at, valid);
        }
      }
    }
    copy_async_commit();
    ++step_;
    stage_ = stage_ + 1 == Shape::kStages ? 0 : stage_ + 1;
  }

 private:
  static constexpr int kPieceColumns = Format::kCodes ? 16 : 8;  // of 16 bytes
  static constexpr int kPiecesOfRow = kPrefillBlocks * 32 / kPieceColumns;
  static constexpr int kRowPieces = kPrefillStepRows * kPiecesOfRow / kPrefillThreads;
  static constexpr int kWeightPieces = Shape::kWeightBytes / 16 / kPrefillThreads;

  const StreamGemmParams& p_;
  uint8_t* const shared_;
  const uint8_t* weights_;     // of the block's first tile
  const int tiles_;            // of the block that exist
  uint32_t from_[kRowPieces];  // elements: a step has fewer than 2^32
  int step_ = 0;
  int stage_ = 0;
};

// The scales of a thread's row for four blocks, absent ones zero: read a step before they are needed.
__device__ __forceinline__ uint32_t read_prefill_scales(const StreamGemmParams& p, int first_row, int step) {
  const int thread = static_cast<int>(threadIdx.x);
  const int first = step * kPrefillBlocks;
  if (thread >= kPrefillStepRows || first >= p.blocks) return 0;
  const uint8_t* const from =
      p.x_scales + static_cast<size_t>(min(first_row + thread, p.rows - 1)) * p.blocks + first;
  if (p.blocks % 4 == 0) return *reinterpret_cast<const uint32_t*>(from);
  uint32_t word = 0;
#pragma unroll
  for (int b = 0; b < kPrefillBlocks; ++b) word |= (first + b < p.blocks ? uint32_t{from[b]} : 0u) << (8 * b);
  return word;
}

// A step's codes as FP16, and its scales.
template <class Format>
__device__ __forceinline__ void convert_prefill_rows(uint8_t* shared, int stage, int half, uint32_t scales) {
  using Shape = PrefillShape<Format>;
  const int thread = static_cast<int>(threadIdx.x);
  const uint8_t* const codes = shared + stage * Shape::kStageBytes + Shape::kWeightBytes;
  uint8_t* const rows = shared + Shape::kRowsAt + half * kPrefillStepRows * Shape::kRowBytes;
  constexpr int kPiecesOfRow = kPrefillBlocks * 2;  // of 16 codes
#pragma unroll
  for (int i = 0; i < kPrefillStepRows * kPiecesOfRow / kPrefillThreads; ++i) {
    const int piece = thread + i * kPrefillThreads;
    const int row = piece / kPiecesOfRow, column = piece % kPiecesOfRow;
    // Read at once: the compiler does not know that it is not what is written.
    const uint4 v = *reinterpret_cast<const uint4*>(codes + row * Shape::kCodesStride + column * 16);
    store_sixteen(rows + row * Shape::kRowBytes + column * 32, v);
  }
  if (thread >= kPrefillStepRows) return;
  float* const to =
      reinterpret_cast<float*>(shared + Shape::kScalesAt) + half * kPrefillBlocks * kPrefillStepRows + thread;
#pragma unroll
  for (int b = 0; b < kPrefillBlocks; ++b)
    to[b * kPrefillStepRows] = Format::scale((scales >> (8 * b)) & 0xFFu);
}

template <class Format>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    prefill_gemm_kernel(const __grid_constant__ StreamGemmParams p) {
  using Shape = PrefillShape<Format>;
  SPARK_DYNAMIC_SHARED(uint8_t, shared);
  if (!p.settles) launch_dependents();
  const uint8_t* const weight_scales = blockIdx.z == 0 ? p.scales : p.second_scales;
  uint16_t* const y = blockIdx.z == 0 ? p.y : p.second_y;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int g = lane >> 2, t = lane & 3;
  const int row_warp = warp % kPrefillRowWarps;
  const int first_tile = static_cast<int>(blockIdx.x) * kPrefillTiles;
  const int first_row = static_cast<int>(blockIdx.y) * kPrefillStepRows;
  const int warp_row = warp / kPrefillRowWarps * kPrefillEights * 8;  // of the block's
  const int tile = first_tile + row_warp * 2;
  const bool has_tile = tile < p.row_tiles;
  const int group_of_rows = p.rows_per_group > 0 ? first_tile * kTileRows / p.rows_per_group : 0;
  const int steps = (p.blocks + kPrefillBlocks - 1) / kPrefillBlocks;
  wait_for_inputs();
  if (p.settles) launch_dependents();

  PrefillFetch<Format> fetch(p, shared, blockIdx.z == 0 ? p.tiles : p.second_tiles, first_tile,
                             min(kPrefillTiles, p.row_tiles - first_tile), first_row, group_of_rows);
#pragma unroll
  for (int i = 0; i < Shape::kAhead; ++i) fetch.next();
  uint32_t next_scales = 0;  // of the rows, of the step that is converted next
  if constexpr (Format::kCodes) {
    next_scales = read_prefill_scales(p, first_row, 0);
    copy_async_wait<Shape::kAhead - 1>();
    __syncthreads();
    convert_prefill_rows<Format>(shared, 0, 0, next_scales);
    next_scales = read_prefill_scales(p, first_row, 1);
  }

  float sum[2][kPrefillEights][4] = {};
  float total[2][kPrefillEights][4] = {};
  float scale_lane = 0.0f;  // of the weight, for 32 blocks
  int stage = 0, half = 0, shard_left = p.shard_blocks;
  for (int step = 0; step < steps; ++step) {
    const int next_stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
    copy_async_wait<Shape::kPending>();
    __syncthreads();  // what this step needs is there; all have used what is overwritten now
    fetch.next();
    if constexpr (Format::kCodes) {
      convert_prefill_rows<Format>(shared, next_stage, half ^ 1, next_scales);
      next_scales = read_prefill_scales(p, first_row, step + 2);
    }
    const uint8_t* const weights = shared + stage * Shape::kStageBytes + row_warp * 2 * Shape::kTileStep;
    const uint8_t* const rows = shared +
                                (Format::kCodes ? Shape::kRowsAt + half * kPrefillStepRows * Shape::kRowBytes
                                                : stage * Shape::kStageBytes + Shape::kWeightBytes) +
                                (warp_row + g) * Shape::kRowBytes + t * 16;
    const float* const scales = reinterpret_cast<const float*>(shared + Shape::kScalesAt) +
                                half * kPrefillBlocks * kPrefillStepRows + warp_row + 2 * t;
    if constexpr (Format::kWeightScale) {
      const int at = step * kPrefillBlocks + lane;
      if (step % (32 / kPrefillBlocks) == 0 && has_tile)
        scale_lane = at < p.blocks
                         ? Format::scale(__ldg(weight_scales + static_cast<size_t>(tile / 2) * p.blocks + at))
                         : 0.0f;
    }
#pragma unroll 1
    for (int b = 0; b < kPrefillBlocks; ++b) {
      const int block = step * kPrefillBlocks + b;
      if (block >= p.blocks) break;
      uint32_t a[2][8];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        Format::operand(Format::read(weights + i * Shape::kTileStep + b * Format::kBlockBytes, lane), a[i]);
      float weight_scale = 1.0f;
      if constexpr (Format::kWeightScale) weight_scale = __shfl_sync(~0u, scale_lane, block & 31);
#pragma unroll
      for (int n = 0; n < kPrefillEights; ++n) {
        const uint4 x = *reinterpret_cast<const uint4*>(rows + n * 8 * Shape::kRowBytes + b * 64);
        if constexpr (Format::kWeightScale) {
          float s0 = weight_scale, s1 = weight_scale;
          if constexpr (Format::kCodes) {
            const float2 v = *reinterpret_cast<const float2*>(scales + b * kPrefillStepRows + n * 8);
            s0 = weight_scale * v.x, s1 = weight_scale * v.y;
          }
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float d[4] = {};
            if constexpr (Format::kCodes) {
              mma_f16(d, a[i][0], a[i][1], a[i][2], a[i][3], x.x, x.y);
              mma_f16(d, a[i][4], a[i][5], a[i][6], a[i][7], x.z, x.w);
            } else {
              mma_bf16(d, a[i][0], a[i][1], a[i][2], a[i][3], x.x, x.y);
              mma_bf16(d, a[i][4], a[i][5], a[i][6], a[i][7], x.z, x.w);
            }
            sum[i][n][0] = fmaf(d[0], s0, sum[i][n][0]);
            sum[i][n][1] = fmaf(d[1], s1, sum[i][n][1]);
            sum[i][n][2] = fmaf(d[2], s0, sum[i][n][2]);
            sum[i][n][3] = fmaf(d[3], s1, sum[i][n][3]);
          }
        } else {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            mma_bf16(sum[i][n], a[i][0], a[i][1], a[i][2], a[i][3], x.x, x.y);
            mma_bf16(sum[i][n], a[i][4], a[i][5], a[i][6], a[i][7], x.z, x.w);
          }
        }
      }
      if (--shard_left == 0 || block + 1 == p.blocks) {
        shard_left = p.shard_blocks;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int n = 0; n < kPrefillEights; ++n) {
#pragma unroll
            for (int q = 0; q < 4; ++q) total[i][n][q] += sum[i][n][q], sum[i][n][q] = 0.0f;
          }
        }
      }
    }
    stage = next_stage, half ^= 1;
  }

  if (p.y_f32 != nullptr) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int n = 0; n < kPrefillEights; ++n) {
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          const int m = first_row + warp_row + n * 8 + 2 * t + (q & 1);
          const int64_t row = static_cast<int64_t>(tile + i) * kTileRows + g + (q >> 1) * 8;
          if (m < p.rows && row < p.out)
            p.y_f32[static_cast<size_t>(m) * static_cast<size_t>(p.y_stride) + row] = total[i][n][q];
        }
      }
    }
    return;
  }
  // Through shared memory, so that a row's outputs leave side by side.
  copy_async_wait<0>();
  __syncthreads();
  uint16_t* const out = reinterpret_cast<uint16_t*>(shared);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int n = 0; n < kPrefillEights; ++n) {
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const int m = warp_row + n * 8 + 2 * t + (q & 1);
        out[m * Shape::kOutStride + (row_warp * 2 + i) * kTileRows + g + (q >> 1) * 8] =
            float_to_bf16(total[i][n][q]);
      }
    }
  }
  __syncthreads();
  const bool whole = ((reinterpret_cast<uintptr_t>(y) | static_cast<uintptr_t>(p.y_stride << 1)) & 15) == 0;
  constexpr int kOutPieces = kPrefillWeightRows / 8;
  for (int piece = static_cast<int>(threadIdx.x); piece < kPrefillStepRows * kOutPieces;
       piece += kPrefillThreads) {
    const int m = piece / kOutPieces, column = piece % kOutPieces * 8;
    const int64_t row = static_cast<int64_t>(first_tile) * kTileRows + column;
    if (first_row + m >= p.rows) break;
    const uint16_t* const from = out + m * Shape::kOutStride + column;
    uint16_t* const to = y + static_cast<size_t>(first_row + m) * static_cast<size_t>(p.y_stride) + row;
    if (whole && row + 8 <= p.out) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int i = 0; i < 8 && row + i < p.out; ++i) to[i] = from[i];
    }
  }
}

template <class Format>
void launch_prefill_gemm(const Launch& on, const StreamGemmParams& params) {
  const dim3 grid(static_cast<unsigned>(ceil_div(params.row_tiles, kPrefillTiles)),
                  static_cast<unsigned>(ceil_div(params.rows, kPrefillStepRows)),
                  params.second_tiles != nullptr ? 2 : 1);
  launch_kernel(on, prefill_gemm_kernel<Format>, grid, kPrefillThreads, PrefillShape<Format>::kBytes, 1,
                params);
}

}  // namespace spark::engine::cuda
