// Sparse attention of many rows. A cluster of one to eight blocks takes one row and 16 heads, so that all
// rows fill the multiprocessors once.
//
// Its blocks divide the chunks of the list while scores are formed, and the channels while values are added
// up: every score goes to all blocks of the cluster, which then need nothing from each other any more. So no
// partial output travels and every record is decoded twice in all, once for its score and once, a part of the
// channels in each block, for its value. (attention.cu, for few rows, divides the chunks both times and adds
// up 32 KB of partial outputs a block, which fills the multiprocessors when there are many.)
//
// Bits are those of attention.cu with one chunk a block: a chunk's products by the same instructions in the
// same order, its sums multiplied by exp(m' - m_last) and added chunk by chunk.
#include <algorithm>

#include "engine/kernels/cuda/attention_rows.h"
#include "engine/kernels/cuda/attention_slots.cuh"

namespace spark::engine::cuda {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * 32;
constexpr int kAtOnce = 2;  // chunks that are decoded and multiplied together, eight warps each
constexpr int kMostChunks = 16;
constexpr int kMostItems = kAtOnce * kChunk * (kMaxWidth / 16) / kThreads;  // sixteenths of a record a thread
constexpr int kFewest = 9;                                                  // rows of 16 heads

// Where things lie in shared memory, in bytes.
struct Layout {
  int kv = 0;       // uint16_t [kAtOnce][kChunk][width + kPad]; values: fewer channels
  int q = 0;        // uint16_t [kHeads][width + kPad], then e: uint16_t [kHeads][chunks * kChunk + kPad]
  int z = 0;        // float [chunks][kHeads][kChunk]
  int records = 0;  // const uint8_t* [chunks * kChunk]
  int bytes = 0;
};

struct RowsParams {
  AttentionParams p;
  Layout at;
  int chunks = 0;
  int channels = 0;  // of a block's output
};

// Small arrays of fixed size.
struct Small {
  float chunk_max[kMostChunks][kHeads];
  float chunk_sum[kMostChunks][kHeads];  // of e, times exp(m' - m_last)
  float running[kMostChunks][kHeads];
  float last_max[kHeads];
  float sink[kHeads];
  float angles[kMaxWidth];
};

// Parts of two chunks' records, as loaded: each thread has some sixteenths.
struct Raw {
  RawChannels part[kMostItems];
};

// Channels first .. first + count - 1 of chunks c and c + stride.
struct Piece {
  int chunk = 0;
  int stride = 0;
  int limit = 0;  // chunks from here on are none
  int first = 0;
  int count = 0;

  __device__ int per_slot() const { return count / 16; }
  __device__ int items() const { return kAtOnce * kChunk * per_slot(); }
  // Sixteenth `item`: which slot of the list (-1: none), of the two chunks, and which part of the record.
  __device__ int slot(int item) const {
    const int at = item / per_slot();
    const int c = chunk + at / kChunk * stride;
    return c < limit ? c * kChunk + at % kChunk : -1;
  }
};

__device__ __forceinline__ void load_piece(const SparseAttentionArgs& a, const uint8_t* const* records,
                                           const Piece& piece, Raw& raw) {
  const bool aligned_window =
      (a.window_cache.record_bytes & 15) == 0 && (window_record_bytes(a.width) & 15) == 0;
  const bool aligned_main = (a.main_cache.record_bytes & 7) == 0;
  const int items = piece.items();
#pragma unroll
  for (int i = 0; i < kMostItems; ++i) {
    const int item = static_cast<int>(threadIdx.x) + i * kThreads;
    if (item >= items) break;
    const int slot = piece.slot(item);
    const bool main = is_selected(a, slot);
    const uint8_t* const record = slot < 0 ? nullptr : records[slot];
    raw.part[i] = load_channels({record, main, false}, a.width, piece.first / 16 + item % piece.per_slot(),
                                main ? aligned_main : aligned_window);
  }
}

__device__ __forceinline__ void decode_piece(const SparseAttentionArgs& a, const Piece& piece, const Raw& raw,
                                             uint16_t* kv) {
  const int items = piece.items();
  const int stride = piece.count + kPad;
#pragma unroll
  for (int i = 0; i < kMostItems; ++i) {
    const int item = static_cast<int>(threadIdx.x) + i * kThreads;
    if (item >= items) break;
    const int slot = piece.slot(item);
    if (slot < 0) continue;
    decode_channels(raw.part[i], is_selected(a, slot),
                    kv + item / piece.per_slot() * stride + item % piece.per_slot() * 16);
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    attention_rows_kernel(const __grid_constant__ RowsParams params) {
  SPARK_DYNAMIC_SHARED(uint8_t, memory);
  Small& s = *reinterpret_cast<Small*>(memory);
  uint16_t* const kv = reinterpret_cast<uint16_t*>(memory + params.at.kv);
  uint16_t* const q = reinterpret_cast<uint16_t*>(memory + params.at.q);
  uint16_t* const e = q;  // takes its place
  float* const z = reinterpret_cast<float*>(memory + params.at.z);
  const uint8_t** const records = reinterpret_cast<const uint8_t**>(memory + params.at.records);
  const SparseAttentionArgs& a = params.p.a;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int g = lane >> 2, t = lane & 3;
  const int rank = static_cast<int>(blockIdx.x);
  const int ranks = static_cast<int>(gridDim.x);
  const int head0 = static_cast<int>(blockIdx.y) * kHeads;
  const int row = static_cast<int>(blockIdx.z);
  const int chunks = params.chunks;
  const int q_stride = a.width + kPad;
  const int e_stride = chunks * kChunk + kPad;
  if (a.step.sequence[row] < 0) {  // the whole cluster leaves
    wait_for_inputs();
    return;
  }
  cluster_arrive();  // the others must have started before something is written into their memory

  // Where the records lie: rows and block tables are complete, the selection may not be.
  const int extra = a.extra == nullptr ? 0 : a.step.last_row[row] - a.step.first_row[row] + 1;
  const int slots = a.window + a.max_selected + extra;
  const auto list = [&](bool before_wait) {
    for (int slot = static_cast<int>(threadIdx.x); slot < chunks * kChunk; slot += kThreads) {
      if ((is_selected(a, slot) && !params.p.early.selected) == before_wait) continue;
      records[slot] = slot < slots ? slot_at(params.p, row, slot).record : nullptr;
    }
  };
  list(true);
  if (threadIdx.x < kHeads && head0 + static_cast<int>(threadIdx.x) < a.heads)
    s.sink[threadIdx.x] = __ldg(a.sink + head0 + threadIdx.x);

  wait_for_inputs();
  launch_dependents();

  for (int i = static_cast<int>(threadIdx.x); i < kHeads * a.width / 8; i += kThreads) {
    const int head = i / (a.width / 8);
    const int channel = i % (a.width / 8) * 8;
    const bool valid = head0 + head < a.heads;
    const uint16_t* from =
        a.q + (static_cast<int64_t>(row) * a.heads + (valid ? head0 + head : 0)) * a.width + channel;
    copy_async_16(q + head * q_stride + channel, from, valid);
  }
  copy_async_commit();
  for (int i = static_cast<int>(threadIdx.x); i < 2 * a.pairs; i += kThreads)
    s.angles[i] = a.cos_sin[static_cast<int64_t>(row) * 2 * a.pairs + i];
  list(false);
  __syncthreads();

  // ---- scores of chunks rank, rank + ranks, ..., two at a time; warp w takes eight slots of one of them
  Raw raw;
  Piece piece = {rank, ranks, chunks, 0, a.width};
  if (piece.chunk < chunks) load_piece(a, records, piece, raw);
  copy_async_wait<0>();
  cluster_wait();
  for (; piece.chunk < chunks; piece.chunk += kAtOnce * ranks) {
    decode_piece(a, piece, raw, kv);
    __syncthreads();
    Piece next = piece;
    next.chunk += kAtOnce * ranks;
    if (next.chunk < chunks) load_piece(a, records, next, raw);
    const int which = warp / (kWarps / kAtOnce), group = warp % (kWarps / kAtOnce);
    const int chunk = piece.chunk + which * ranks;
    if (chunk < chunks) {
      float d[4][4] = {};
      const uint16_t* const q_row = q + (lane & 15) * q_stride + (lane >> 4) * 8;
      const uint16_t* const kv_row =
          kv + (which * kChunk + group * 8 + (lane & 7)) * q_stride + (lane >> 3) * 8;
#pragma unroll 2
      for (int k = 0; k < a.width; k += 64) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = k + 32 * half;
          if (at >= a.width) continue;
          uint32_t b[4], q0[4], q1[4];
          ldmatrix_x4(b, kv_row + at);
          ldmatrix_x4(q0, q_row + at);
          ldmatrix_x4(q1, q_row + at + 16);
          mma_bf16(d[2 * half], q0[0], q0[1], q0[2], q0[3], b[0], b[1]);
          mma_bf16(d[2 * half + 1], q1[0], q1[1], q1[2], q1[3], b[2], b[3]);
        }
      }
      const int slot = group * 8 + 2 * t;
      const bool first = records[chunk * kChunk + slot] != nullptr;
      const bool second = records[chunk * kChunk + slot + 1] != nullptr;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float z0 = ((d[0][2 * i] + d[1][2 * i]) + (d[2][2 * i] + d[3][2 * i])) * a.scale;
        const float z1 =
            ((d[0][2 * i + 1] + d[1][2 * i + 1]) + (d[2][2 * i + 1] + d[3][2 * i + 1])) * a.scale;
        const float2 both = make_float2(first ? z0 : -INFINITY, second ? z1 : -INFINITY);
        float2* const to = reinterpret_cast<float2*>(z + (chunk * kHeads + g + 8 * i) * kChunk + slot);
        for (int other = 0; other < ranks; ++other) store_cluster(to, static_cast<uint32_t>(other), both);
      }
    }
    __syncthreads();  // the records have been read
  }
  Piece values = {0, 1, chunks, rank * params.channels, params.channels};
  load_piece(a, records, values, raw);
  cluster_sync();

  // ---- maxima, and what is taken of them: warp w takes pairs of a chunk and a head
  for (int i = warp; i < chunks * kHeads; i += kWarps) {
    float m = fmaxf(z[i * kChunk + lane], z[i * kChunk + lane + 32]);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, offset));
    if (lane == 0) s.chunk_max[i / kHeads][i % kHeads] = m;
  }
  __syncthreads();
  if (threadIdx.x < kHeads) {
    const int head = static_cast<int>(threadIdx.x);
    float running = kInitialMax;
    for (int c = 0; c < chunks; ++c) {
      running = fmaxf(running, s.chunk_max[c][head]);
      s.running[c][head] = running;
    }
    s.last_max[head] = running;
  }
  __syncthreads();
  for (int i = warp; i < chunks * kHeads; i += kWarps) {
    const int c = i / kHeads, head = i % kHeads;
    const float m = s.running[c][head];
    const float e0 = expf(z[i * kChunk + lane] - m);
    const float e1 = expf(z[i * kChunk + lane + 32] - m);
    uint16_t* const to = e + head * e_stride + c * kChunk + lane;
    to[0] = float_to_bf16(e0);
    to[32] = float_to_bf16(e1);
    const float sum = warp_sum(e0 + e1);
    if (lane == 0) s.chunk_sum[c][head] = multiply_rounded(sum, expf(m - s.last_max[head]));
  }

  // ---- values: this block's channels, all chunks, two at a time; warp w takes columns of eight channels
  constexpr int kColumns = kMaxWidth / 8 / kWarps;
  const int stride = params.channels + kPad;
  float acc[kColumns][4] = {};
  for (; values.chunk < chunks; values.chunk += kAtOnce) {
    decode_piece(a, values, raw, kv);
    __syncthreads();
    Piece next = values;
    next.chunk += kAtOnce;
    if (next.chunk < chunks) load_piece(a, records, next, raw);
#pragma unroll 1
    for (int which = 0; which < kAtOnce && values.chunk + which < chunks; ++which) {
      const int c = values.chunk + which;
      const float f0 = expf(s.running[c][g] - s.last_max[g]);
      const float f1 = expf(s.running[c][g + 8] - s.last_max[g + 8]);
      uint32_t p[4][4];
#pragma unroll
      for (int k = 0; k < 4; ++k)
        ldmatrix_x4(p[k], e + (lane & 15) * e_stride + c * kChunk + k * 16 + (lane >> 4) * 8);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const int column = (warp + j * kWarps) * 8;
        if (column >= params.channels) continue;
        float d[4] = {};
#pragma unroll
        for (int k = 0; k < 4; k += 2) {
          uint32_t v[4];
          ldmatrix_x4_trans(v, kv + (which * kChunk + k * 16 + lane) * stride + column);
          mma_bf16(d, p[k][0], p[k][1], p[k][2], p[k][3], v[0], v[1]);
          mma_bf16(d, p[k + 1][0], p[k + 1][1], p[k + 1][2], p[k + 1][3], v[2], v[3]);
        }
        // Not fused: attention.cu adds the rounded products of different blocks.
        acc[j][0] = add_rounded(acc[j][0], multiply_rounded(d[0], f0));
        acc[j][1] = add_rounded(acc[j][1], multiply_rounded(d[1], f0));
        acc[j][2] = add_rounded(acc[j][2], multiply_rounded(d[2], f1));
        acc[j][3] = add_rounded(acc[j][3], multiply_rounded(d[3], f1));
      }
    }
    __syncthreads();  // the values have been read
  }

#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int head = g + 8 * i;
    if (head0 + head >= a.heads) continue;
    float divisor = 0.0f;
    for (int c = 0; c < chunks; ++c) divisor += s.chunk_sum[c][head];
    divisor += expf(s.sink[head] - s.last_max[head]);
    const bool empty = !(s.last_max[head] > kInitialMax);
    uint16_t* const out = a.o + (static_cast<int64_t>(row) * a.heads + head0 + head) * a.width;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const int column = (warp + j * kWarps) * 8;
      if (column >= params.channels) continue;
      const int channel = values.first + column + 2 * t;
      *reinterpret_cast<uint32_t*>(out + channel) =
          empty ? 0u : output_pair(acc[j][2 * i], acc[j][2 * i + 1], divisor, channel, a, s.angles);
    }
  }
}

int chunks_of(const SparseAttentionArgs& args) {
  const int slots = args.window + args.max_selected + (args.extra != nullptr ? kChunk : 0);
  return static_cast<int>(ceil_div(slots, kChunk));
}

Layout layout_of(int width, int chunks) {
  Layout at;
  const auto bf16 = [](int rows, int cols) {
    return static_cast<int>(round_up(rows * (cols + kPad) * 2, 16));
  };
  at.kv = static_cast<int>(round_up(sizeof(Small), 16));
  at.q = at.kv + bf16(kAtOnce * kChunk, width);
  at.z = at.q + std::max(bf16(kHeads, width), bf16(kHeads, chunks * kChunk));
  at.records = at.z + chunks * kHeads * kChunk * static_cast<int>(sizeof(float));
  at.bytes = at.records + chunks * kChunk * static_cast<int>(sizeof(const uint8_t*));
  return at;
}

}  // namespace

bool takes_attention_rows(const DeviceLimits& device, const SparseAttentionArgs& args) {
  const int chunks = chunks_of(args);
  return args.step.rows * ceil_div(args.heads, kHeads) >= kFewest && args.width % 32 == 0 &&
         args.width <= kMaxWidth && chunks <= kMostChunks && chunks <= device.max_attention_cluster &&
         layout_of(args.width, chunks).bytes + 1024 <= device.shared_bytes;
}

void launch_attention_rows(const Launch& on, const SparseAttentionArgs& args, const EarlyRecords& early) {
  const int chunks = chunks_of(args);
  const auto groups = static_cast<int>(ceil_div(args.heads, kHeads));
  int ranks = 1;
  while (ranks < 8 && 2 * ranks * groups * args.step.rows <= on.device.multiprocessors &&
         args.width % (2 * ranks * 16) == 0)
    ranks *= 2;
  const RowsParams params = {.p = {.a = args, .early = early, .owned_units = 0},
                             .at = layout_of(args.width, chunks),
                             .chunks = chunks,
                             .channels = args.width / ranks};
  launch_kernel(on, attention_rows_kernel,
                dim3(static_cast<unsigned>(ranks), static_cast<unsigned>(groups),
                     static_cast<unsigned>(args.step.rows)),
                kThreads, static_cast<size_t>(params.at.bytes), ranks, params);
}

}  // namespace spark::engine::cuda
