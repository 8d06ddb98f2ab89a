// Rotation, cache writers, ratio-2 pooling, index queries: one row at a time, latency-bound.
#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/paged.cuh"
#include "engine/kernels/cuda/records.cuh"

namespace spark::engine::cuda {
namespace {

__global__ void rope_angles_kernel(const int32_t* position, const int32_t* sequence, int rows, int back,
                                   int pairs, const float* freq, float* cos_sin) {
  launch_dependents();
  wait_for_inputs();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= rows * pairs) return;
  const int row = i / pairs;
  if (sequence[row] < 0) return;
  const float angle = static_cast<float>(position[row] - back) * freq[i % pairs];
  float s, c;
  sincosf(angle, &s, &c);
  cos_sin[2 * i] = c;
  cos_sin[2 * i + 1] = s;
}

struct RopeParams {
  const float* cos_sin;
  int heads;
  int width;
  int pairs;
  bool inverse;
  int total;
  uint16_t* x;
};

__device__ __forceinline__ void rotate_pair(const RopeParams& p, int i) {
  if (i >= p.total) return;
  const int pair = i % p.pairs;
  const int64_t vector = i / p.pairs;
  const int64_t row = vector / p.heads;
  uint32_t* at = reinterpret_cast<uint32_t*>(p.x + vector * p.width + (p.width - 2 * p.pairs)) + pair;
  const uint32_t v = *at;
  const float a = bf16_low(v), b = bf16_high(v);
  const float c = p.cos_sin[(row * p.pairs + pair) * 2];
  const float sine = p.cos_sin[(row * p.pairs + pair) * 2 + 1];
  const float s = p.inverse ? -sine : sine;
  *at = pack_bf16(a * c - b * s, a * s + b * c);
}

__global__ void rope_kernel(const __grid_constant__ RopeParams p) {
  launch_dependents();
  wait_for_inputs();
  rotate_pair(p, static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x));
}

constexpr int kCacheThreads = 128;

__global__ void __launch_bounds__(kCacheThreads)
    window_write_kernel(const __grid_constant__ WindowWriteParams p) {
  launch_dependents();
  wait_for_inputs();
  const int block = static_cast<int>(blockIdx.x * (kCacheThreads / 32) + threadIdx.x / 32);
  if (block < p.width / 32) write_window_block(p, static_cast<int>(blockIdx.y), block);
}

// The first blocks rotate queries, the others write records.
__global__ void __launch_bounds__(kCacheThreads)
    rope_window_kernel(const __grid_constant__ RopeParams rope, const __grid_constant__ WindowWriteParams p,
                       int rope_blocks) {
  launch_dependents();
  wait_for_inputs();
  const int index = static_cast<int>(blockIdx.x);
  if (index < rope_blocks) {
    rotate_pair(rope, index * kCacheThreads + static_cast<int>(threadIdx.x));
    return;
  }
  const int per_row = (p.width / 32 + kCacheThreads / 32 - 1) / (kCacheThreads / 32);
  const int row = (index - rope_blocks) / per_row;
  const int block =
      (index - rope_blocks - row * per_row) * (kCacheThreads / 32) + static_cast<int>(threadIdx.x / 32);
  if (block < p.width / 32) write_window_block(p, row, block);
}

__global__ void entry_write_kernel(const int32_t* position, const int32_t* sequence, int ratio, int width,
                                   int key_width, int pairs, const float* cos_sin, const uint16_t* latent,
                                   const uint16_t* key, PagedCache main_cache, PagedCache key_cache) {
  launch_dependents();
  wait_for_inputs();
  const int row = static_cast<int>(blockIdx.x);
  if (sequence[row] < 0 || (position[row] + 1) % ratio != 0) return;
  const int entry = position[row] / ratio;
  uint8_t* main_record = record_of(main_cache, sequence[row], entry);
  uint8_t* key_record = record_of(key_cache, sequence[row], entry);
  const float* angles = cos_sin + static_cast<int64_t>(row) * pairs * 2;
  const int main_blocks = width / 32;
  const int blocks = main_blocks + key_width / 32;
  for (int block = static_cast<int>(threadIdx.x / 32); block < blocks;
       block += static_cast<int>(blockDim.x / 32)) {
    if (block < main_blocks) {
      if (main_record == nullptr) continue;
      const float v =
          rotated_channel(latent + static_cast<int64_t>(row) * width, block, width, pairs, angles);
      write_fp4_e4m3_blocks(v, main_record + block * 16, main_record + width / 2 + block * 2);
    } else {
      if (key_record == nullptr) continue;
      const int b = block - main_blocks;
      const float v =
          rotated_channel(key + static_cast<int64_t>(row) * key_width, b, key_width, pairs, angles);
      write_fp4_ue8m0_block(v, key_record + b * 16, key_record + key_width / 2 + b);
    }
  }
}

// One block per (row, head), a warp per 32 channels.
__global__ void index_query_kernel(const float* cos_sin, int heads, int width, int pairs, const uint16_t* q,
                                   uint8_t* packed, uint8_t* scales) {
  launch_dependents();
  const auto vector = static_cast<int>(blockIdx.x);
  const int row = vector / heads, blocks = width / 32;
  // The places of this vector, before the wait: seventy instructions.
  const uint16_t* const from = opaque(q + static_cast<int64_t>(vector) * width);
  const float* const angles = opaque(cos_sin + static_cast<int64_t>(row) * pairs * 2);
  uint8_t* const codes_to = opaque(packed + static_cast<int64_t>(vector) * (width / 2));
  uint8_t* const scales_to = opaque(scales + static_cast<int64_t>(vector) * blocks);
  wait_for_inputs();
  for (int block = static_cast<int>(threadIdx.x / 32); block < blocks;
       block += static_cast<int>(blockDim.x / 32)) {
    const float v = rotated_channel(from, block, width, pairs, angles);
    write_fp4_ue8m0_block(v, codes_to + block * 16, scales_to + block);
  }
}

__global__ void pool_pairs_kernel(const int32_t* position, const int32_t* sequence, const int32_t* first_row,
                                  int width, int ring, const float* kv, const float* score,
                                  const float* state, uint16_t* pooled) {
  launch_dependents();
  wait_for_inputs();
  const int64_t row = blockIdx.y;
  const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (c >= width || sequence[row] < 0) return;
  const int p = position[row];
  uint16_t result = 0;
  if ((p & 1) != 0) {
    float kv0, score0;
    if (row > first_row[row]) {
      kv0 = kv[(row - 1) * width + c];
      score0 = score[(row - 1) * width + c];
    } else {
      const float* slot = state + (static_cast<int64_t>(sequence[row]) * ring + (p - 1) % ring) * 2 * width;
      kv0 = slot[c];
      score0 = slot[width + c];
    }
    const float score1 = score[row * width + c];
    const float largest = fmaxf(score0, score1);
    const float e0 = expf(score0 - largest), e1 = expf(score1 - largest);
    const float sum = e0 + e1;
    result = float_to_bf16(e0 / sum * kv0 + e1 / sum * kv[row * width + c]);
  }
  pooled[row * width + c] = result;
}

__global__ void pool_store_kernel(const int32_t* position, const int32_t* sequence, const int32_t* last_row,
                                  int width, int ring, const float* kv, const float* score, float* state) {
  launch_dependents();
  wait_for_inputs();
  const int64_t row = blockIdx.y;
  const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (c >= width || sequence[row] < 0 || row + ring <= last_row[row]) return;
  float* slot = state + (static_cast<int64_t>(sequence[row]) * ring + position[row] % ring) * 2 * width;
  slot[c] = kv[row * width + c];
  slot[width + c] = score[row * width + c];
}

int warps_for(int blocks) {
  return 32 * std::min(blocks, 20);
}

}  // namespace

void launch_rope_angles(const Launch& on, const RopeAnglesArgs& args) {
  launch_kernel(on, rope_angles_kernel,
                dim3(static_cast<unsigned>(ceil_div(int64_t{args.step.rows} * args.pairs, 128))), 128, 0, 1,
                args.step.position, args.step.sequence, args.step.rows, args.back, args.pairs, args.freq,
                args.cos_sin);
}

namespace {

RopeParams rope_params(const RopeArgs& args) {
  return {.cos_sin = args.cos_sin,
          .heads = args.heads,
          .width = args.width,
          .pairs = args.pairs,
          .inverse = args.inverse,
          .total = static_cast<int>(int64_t{args.rows} * args.heads * args.pairs),
          .x = args.x};
}

unsigned window_blocks_per_row(const WindowWriteArgs& args) {
  return static_cast<unsigned>(ceil_div(args.width / 32, kCacheThreads / 32));
}

}  // namespace

WindowWriteParams window_params(const WindowWriteArgs& args) {
  return {.position = args.step.position,
          .sequence = args.step.sequence,
          .width = args.width,
          .pairs = args.pairs,
          .cos_sin = args.cos_sin,
          .kv = args.kv,
          .cache = args.cache,
          .records = args.records};
}

void launch_rope(const Launch& on, const RopeArgs& args) {
  const RopeParams p = rope_params(args);
  launch_kernel(on, rope_kernel, dim3(static_cast<unsigned>(ceil_div(p.total, kCacheThreads))), kCacheThreads,
                0, 1, p);
}

void launch_window_write(const Launch& on, const WindowWriteArgs& args) {
  launch_kernel(on, window_write_kernel,
                dim3(window_blocks_per_row(args), static_cast<unsigned>(args.step.rows)), kCacheThreads, 0, 1,
                window_params(args));
}

void launch_rope_and_window_write(const Launch& on, const RopeArgs& rope, const WindowWriteArgs& args) {
  const RopeParams p = rope_params(rope);
  const auto rope_blocks = static_cast<unsigned>(ceil_div(p.total, kCacheThreads));
  launch_kernel(on, rope_window_kernel,
                dim3(rope_blocks + window_blocks_per_row(args) * static_cast<unsigned>(args.step.rows)),
                kCacheThreads, 0, 1, p, window_params(args), static_cast<int>(rope_blocks));
}

void launch_pool_pairs(const Launch& pool, const Launch& store, const PoolPairsArgs& args) {
  const dim3 grid(static_cast<unsigned>(ceil_div(args.width, 128)), static_cast<unsigned>(args.step.rows));
  launch_kernel(pool, pool_pairs_kernel, grid, 128, 0, 1, args.step.position, args.step.sequence,
                args.step.first_row, args.width, args.ring, args.kv, args.score, args.state, args.pooled);
  launch_kernel(store, pool_store_kernel, grid, 128, 0, 1, args.step.position, args.step.sequence,
                args.step.last_row, args.width, args.ring, args.kv, args.score, args.state);
}

void launch_entry_write(const Launch& on, const EntryWriteArgs& args) {
  launch_kernel(on, entry_write_kernel, dim3(static_cast<unsigned>(args.step.rows)),
                warps_for(args.width / 32 + args.key_width / 32), 0, 1, args.step.position,
                args.step.sequence, args.ratio, args.width, args.key_width, args.pairs, args.cos_sin,
                args.latent, args.key, args.main_cache, args.key_cache);
}

void launch_index_query(const Launch& on, const IndexQueryArgs& args) {
  launch_kernel(on, index_query_kernel, dim3(static_cast<unsigned>(args.rows * args.heads)),
                warps_for(args.width / 32), 0, 1, args.cos_sin, args.heads, args.width, args.pairs, args.q,
                args.packed, args.scales);
}

}  // namespace spark::engine::cuda
