// Checkpoint weights into the kernels' layouts, once per load.
#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/plan/block_scaled.h"

namespace spark::engine::cuda {
namespace {

constexpr int kThreads = 256;

unsigned blocks_for(int64_t threads) {
  return static_cast<unsigned>(ceil_div(threads, kThreads));
}

__device__ __forceinline__ int64_t thread_index() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

__device__ __forceinline__ uint64_t mix64(uint64_t x) {
  x ^= x >> 30, x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 27, x *= 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

__global__ void prepare_fp8_kernel(const uint2* raw, int64_t rows, int64_t cols, uint8_t* tiles) {
  const int64_t i = thread_index();
  const int64_t row = i / (cols / 8);
  const int64_t col = (i % (cols / 8)) * 8;
  if (row >= rows) return;
  *reinterpret_cast<uint2*>(tiles + fp8_tile_offset(row, col, cols / 32)) = raw[i];
}

__global__ void prepare_bf16_kernel(const uint16_t* raw, int64_t rows, int64_t cols, uint8_t* tiles) {
  const int64_t i = thread_index();
  const int64_t row = i / cols;
  const int64_t col = i % cols;
  if (row >= rows) return;
  *reinterpret_cast<uint16_t*>(tiles + bf16_tile_offset(row, col, ceil_div(cols, kTileCols))) = raw[i];
}

// One thread per eight columns: they share a word. `containers`: in the bit order of the block-scaled
// instruction.
__global__ void prepare_fp4_kernel(const uint32_t* raw, const uint8_t* raw_scales, int64_t rows, int64_t cols,
                                   Fp4Stages at, int matrix, bool containers, uint8_t* stages) {
  const int64_t i = thread_index();
  const int64_t row = i / (cols / 8);
  const int64_t col = (i % (cols / 8)) * 8;
  if (row >= rows) return;
  const uint32_t codes = raw[i];
  uint32_t word = 0;
#pragma unroll
  for (int element = 0; element < 8; ++element) {
    const uint32_t code = (codes >> (4 * element)) & 15u;
    word ^= containers ? fp4_container_code(code, element) : fp4_place_code(code, element);
  }
  *reinterpret_cast<uint32_t*>(stages + fp4_word_offset(row, col, at, matrix)) = word;
  if (col % 32 == 0)
    stages[fp4_scale_offset(row, col / 32, at, matrix)] = raw_scales[row * (cols / 32) + col / 32];
}

// Any bytes are tiles; scales are in [low, low + span).
__global__ void fill_fp4_kernel(uint8_t* to, int64_t words, int matrices, uint64_t seed, uint32_t low,
                                uint32_t span) {
  for (int64_t i = thread_index(); i < words; i += static_cast<int64_t>(gridDim.x) * kThreads) {
    uint64_t v = mix64(seed + static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u);
    if (i * 8 % fp4_stage_bytes(matrices) >= matrices * 2 * kTileBytes) {
      uint64_t w = 0;
      for (int b = 0; b < 64; b += 8) w |= static_cast<uint64_t>(low + ((v >> b) & 255u) % span) << b;
      v = w;
    }
    reinterpret_cast<uint64_t*>(to)[i] = v;
  }
}

__global__ void count_exponents_kernel(const uint16_t* raw, int64_t elements, unsigned long long* histogram) {
  __shared__ uint32_t local[257];
  for (int i = static_cast<int>(threadIdx.x); i < 257; i += kThreads) local[i] = 0;
  __syncthreads();
  for (int64_t i = thread_index(); i < elements; i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const uint32_t v = raw[i];
    atomicAdd(&local[(v & 0x7FFFu) == 0 ? 256 : (v >> 7) & 255u], 1u);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 257; i += kThreads) {
    if (local[i] != 0) atomicAdd(&histogram[i], static_cast<unsigned long long>(local[i]));
  }
}

// Whether a value has no 12-bit form: its exponent lies outside base + 1 .. base + 15 and it is no zero.
__device__ __forceinline__ bool is_exception(uint32_t v, int base) {
  const int code = static_cast<int>((v >> 7) & 255u) - base;
  return (v & 0x7FFFu) != 0 && (code < 1 || code > 15);
}

// One warp per row.
__global__ void count_exceptions_kernel(const uint16_t* raw, int64_t rows, int64_t cols, int base,
                                        uint32_t* counts) {
  const int64_t row = thread_index() / 32;
  if (row >= rows) return;
  uint32_t count = 0;
  for (int64_t col = threadIdx.x & 31; col < cols; col += 32)
    count += is_exception(raw[row * cols + col], base);
  for (int offset = 16; offset > 0; offset /= 2) count += __shfl_xor_sync(~0u, count, offset);
  if ((threadIdx.x & 31) == 0) counts[row] = count;
}

__global__ void pack_kernel(const uint16_t* raw, int64_t rows, int64_t cols, int base,
                            const uint32_t* offsets, uint8_t* tiles, uint32_t* exceptions) {
  const int64_t row = thread_index() / 32;
  const int lane = static_cast<int>(threadIdx.x & 31);
  if (row >= rows) return;
  const int64_t tile_blocks = ceil_div(cols, kTileCols);
  uint32_t at = offsets[row];
  for (int64_t first = 0; first < cols; first += 32) {
    const int64_t col = first + lane;
    const uint32_t v = col < cols ? raw[row * cols + col] : 0;
    const bool exception = is_exception(v, base);
    const uint32_t mask = __ballot_sync(~0u, exception);
    if (exception) exceptions[at + __popc(mask & ((1u << lane) - 1))] = static_cast<uint32_t>(col) << 16 | v;
    at += __popc(mask);
    uint32_t bits = v & 0x8000u;
    if ((v & 0x7FFFu) != 0 && !exception)
      bits |= (((v >> 7) & 255u) - static_cast<uint32_t>(base)) << 7 | (v & 127u);
    if (exception) bits = 0;
    const int r = static_cast<int>(row & 15);
    const int pair = tile_pair(r, lane);
    tiles[packed_byte_offset(row, first + lane, tile_blocks)] = static_cast<uint8_t>(bits);
    // The word's eight elements lie in rows r and r ^ 8 and this lane's group of eight columns; several lanes
    // and warps share it, hence the atomic.
    atomicOr(reinterpret_cast<uint32_t*>(tiles + packed_word_offset(row, first + lane, tile_blocks)),
             packed_place_nibble(bits, pair, lane & 1));
  }
}

__device__ uint32_t unpack(const uint8_t* tiles, int64_t row, int64_t col, int64_t tile_blocks, int base) {
  const int pair = tile_pair(static_cast<int>(row & 15), static_cast<int>(col & 31));
  const uint32_t word = *reinterpret_cast<const uint32_t*>(tiles + packed_word_offset(row, col, tile_blocks));
  const uint32_t turned = __funnelshift_l(word, word, 4 * (pair & 3)) >> (16 * (col & 1));
  const uint32_t bits = tiles[packed_byte_offset(row, col, tile_blocks)] | (turned & kPackedNibbleMask);
  const uint32_t code = (bits >> 7) & 15u;
  return (bits & 0x807Fu) | (code == 0 ? 0u : (code + static_cast<uint32_t>(base)) << 7);
}

__global__ void verify_pack_kernel(const uint8_t* tiles, const uint32_t* offsets, const uint32_t* exceptions,
                                   int64_t rows, int64_t cols, int base, const uint16_t* raw,
                                   uint32_t* mismatches) {
  const int64_t i = thread_index();
  const int64_t row = i / cols;
  const int64_t col = i % cols;
  if (row >= rows) return;
  uint32_t v = unpack(tiles, row, col, ceil_div(cols, kTileCols), base);
  for (uint32_t e = offsets[row]; e < offsets[row + 1]; ++e) {
    if (exceptions[e] >> 16 != static_cast<uint32_t>(col)) continue;
    if (v != 0) atomicAdd(mismatches, 1u);
    v = exceptions[e] & 0xFFFFu;
  }
  if (v != raw[i]) atomicAdd(mismatches, 1u);
}

__global__ void fill_kernel(Fill kind, uint8_t* to, int64_t words, uint64_t seed, uint32_t low,
                            uint32_t span) {
  for (int64_t i = thread_index(); i < words; i += static_cast<int64_t>(gridDim.x) * kThreads) {
    uint64_t v = mix64(seed + static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u);
    if (kind == Fill::kE4m3) {
      // 0x7F and 0xFF are NaN: clear a mantissa bit of every byte that is one.
      for (int b = 0; b < 64; b += 8) {
        if (((v >> b) & 0x7Fu) == 0x7Fu) v &= ~(uint64_t{1} << b);
      }
    } else if (kind == Fill::kUe8m0) {
      uint64_t w = 0;
      for (int b = 0; b < 64; b += 8) w |= static_cast<uint64_t>(low + ((v >> b) & 255u) % span) << b;
      v = w;
    } else if (kind == Fill::kBf16) {
      uint64_t w = 0;
      for (int b = 0; b < 64; b += 16) {
        const uint64_t h = (v >> b) & 0xFFFFu;
        w |= ((h & 0x807Fu) | ((low + ((h >> 7) & 255u) % span) << 7)) << b;
      }
      v = w;
    }
    reinterpret_cast<uint64_t*>(to)[i] = v;
  }
}

}  // namespace

int64_t prepared_bytes(Layout layout, int64_t rows, int64_t cols) {
  const int64_t tiles = padded_row_tiles(rows) * ceil_div(cols, kTileCols);
  switch (layout) {
    case Layout::kFp8:
      return tiles * kTileBytes;
    case Layout::kBf16:
      return tiles * kBf16TileBytes;
    case Layout::kPacked:
      return tiles * kPackedTileBytes;
    case Layout::kF32:
      return rows * cols * 4;
    case Layout::kPlainBf16:
      return rows * cols * 2;
    case Layout::kFp4:
      return padded_row_tiles(rows) / 2 * ceil_div(cols, kFp4TileCols) * fp4_stage_bytes(1);
  }
  return 0;
}

void launch_prepare_fp8(const Launch& on, const uint8_t* raw, int64_t rows, int64_t cols, uint8_t* tiles) {
  launch_kernel(on, prepare_fp8_kernel, dim3(blocks_for(rows * cols / 8)), kThreads, 0, 1,
                reinterpret_cast<const uint2*>(raw), rows, cols, tiles);
}

void launch_prepare_bf16(const Launch& on, const uint16_t* raw, int64_t rows, int64_t cols, uint8_t* tiles) {
  launch_kernel(on, prepare_bf16_kernel, dim3(blocks_for(rows * cols)), kThreads, 0, 1, raw, rows, cols,
                tiles);
}

void launch_prepare_fp4(const Launch& on, const uint8_t* raw, const uint8_t* raw_scales, int64_t rows,
                        int64_t cols, const Fp4Stages& at, int matrix, uint8_t* stages) {
  launch_kernel(on, prepare_fp4_kernel, dim3(blocks_for(rows * cols / 8)), kThreads, 0, 1,
                reinterpret_cast<const uint32_t*>(raw), raw_scales, rows, cols, at, matrix,
                on.device.block_scaled_mma, stages);
}

void launch_fill_fp4(const Launch& on, uint8_t* to, int64_t bytes, int matrices, uint64_t seed, uint32_t low,
                     uint32_t span) {
  launch_kernel(on, fill_fp4_kernel,
                dim3(static_cast<unsigned>(std::min<int64_t>(132 * 8, ceil_div(bytes / 8, kThreads)))),
                kThreads, 0, 1, to, bytes / 8, matrices, seed, low, span);
}

void launch_count_exponents(const Launch& on, const uint16_t* raw, int64_t elements, uint64_t* histogram) {
  launch_kernel(on, count_exponents_kernel, dim3(264), kThreads, 0, 1, raw, elements,
                reinterpret_cast<unsigned long long*>(histogram));
}

void launch_count_exceptions(const Launch& on, const uint16_t* raw, int64_t rows, int64_t cols, int base,
                             uint32_t* counts) {
  launch_kernel(on, count_exceptions_kernel, dim3(blocks_for(rows * 32)), kThreads, 0, 1, raw, rows, cols,
                base, counts);
}

void launch_pack(const Launch& on, const uint16_t* raw, int64_t rows, int64_t cols, int base,
                 const uint32_t* offsets, uint8_t* tiles, uint32_t* exceptions) {
  launch_kernel(on, pack_kernel, dim3(blocks_for(rows * 32)), kThreads, 0, 1, raw, rows, cols, base, offsets,
                tiles, exceptions);
}

void launch_verify_pack(const Launch& on, const PreparedWeight& weight, const uint16_t* raw,
                        uint32_t* mismatches) {
  launch_kernel(on, verify_pack_kernel, dim3(blocks_for(weight.rows * weight.cols)), kThreads, 0, 1,
                weight.tiles, weight.exception_offsets, weight.exceptions, weight.rows, weight.cols,
                weight.exponent_base, raw, mismatches);
}

void launch_fill(const Launch& on, Fill kind, void* to, int64_t bytes, uint64_t seed, uint32_t low,
                 uint32_t span) {
  launch_kernel(on, fill_kernel,
                dim3(static_cast<unsigned>(std::min<int64_t>(132 * 8, ceil_div(bytes / 8, kThreads)))),
                kThreads, 0, 1, kind, static_cast<uint8_t*>(to), bytes / 8, seed, low, span);
}

}  // namespace spark::engine::cuda
