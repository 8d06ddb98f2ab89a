// The product of a weight that is much taller than the device has warps with 1 to 48 rows, by the matrix
// instruction of a warpgroup: y[m][n] = sum_k x[m][k] w[n][k].
//
// A warp owns 16 weight rows and all of their columns, which it streams by the copy engine through a ring of
// its own; so no sums meet, and nothing but memory is ever waited for at length. The four warps of a
// warpgroup multiply together (64 rows). The rows of the step are brought into the instruction's order shard
// by shard, by the whole block, one shard ahead, in two places that take turns; a block of 512 threads reads
// them once for 256 weight rows. The order of the sum is the streaming product's (stream_gemm.cuh), and so
// are the bits: blocks of 32 columns ascending in a shard, in the matrix unit, then shard by shard. Bound:
// weight bytes.
#pragma once

#include "engine/kernels/cuda/sm90/wgmma.cuh"
#include "engine/kernels/cuda/stream_gemm.cuh"

namespace spark::engine::cuda {

constexpr int kTallThreads = kTallTeams * 128;

// The rows' part of a shard on its way into shared memory: units of eight rows by one block, dealt to the
// block's warps; a lane has 16 bytes of one.
template <int kN>
struct TallRows {
  static constexpr int kWarps = kTallThreads / 32;
  static constexpr int kAhead = kN >= 6 ? 2 : 1;  // units that a warp reads while it works on a slot
  const uint16_t* from = nullptr;                 // of the shard
  uint8_t* to = nullptr;
  int count = 0, eights = 0;  // blocks, and rows in eights
  int block = 0, eight = 0;   // the next unit
  uint4 v[kAhead] = {};
  uint32_t at[kAhead] = {};

  __device__ __forceinline__ void begin(const StreamGemmParams& p, int shard, bool wanted, uint8_t* place) {
    const int first_block = shard * p.shard_blocks;
    from = p.x + static_cast<size_t>(first_block) * 32 + (threadIdx.x & 3) * 8;
    to = place + (threadIdx.x & 3) * 4;
    count = min(p.shard_blocks, p.blocks - first_block);
    eights = wanted ? (p.rows + 7) >> 3 : 0;
    block = static_cast<int>(threadIdx.x >> 5), eight = 0;
    while (block >= count) block -= count, ++eight;
  }
  __device__ __forceinline__ bool more() const { return eight < eights; }
  // Reads a unit, and passes on to this warp's next.
  __device__ __forceinline__ void load(const StreamGemmParams& p, int i) {
    const int row = eight * 8 + static_cast<int>(threadIdx.x >> 2 & 7);
    v[i] = *reinterpret_cast<const uint4*>(
        from + static_cast<size_t>(min(row, p.rows - 1)) * static_cast<size_t>(p.x_stride) +
        static_cast<size_t>(block) * 32);
    at[i] = static_cast<uint32_t>(block) * wide_block_bytes(kN) + wide_chunk(row, 0);
    block += kWarps;
    while (block >= count) block -= count, ++eight;
  }
  __device__ __forceinline__ void store(int i) const {
    // The place of chunk c is that of chunk 0 with c in bits 4 and 5 turned over.
    const auto place = [&](uint32_t chunk) {
      return reinterpret_cast<uint32_t*>(to + (at[i] ^ (chunk << 4)));
    };
    *place(0) = v[i].x;
    *place(1) = v[i].y;
    *place(2) = v[i].z;
    *place(3) = v[i].w;
  }
  // What is left.
  __device__ __forceinline__ void finish(const StreamGemmParams& p) {
    while (more()) {
      load(p, 0);
      store(0);
    }
  }
};

template <class Format, int kN>
__global__ void __launch_bounds__(kTallThreads, 1)
    tall_gemm_kernel(const __grid_constant__ StreamGemmParams p) {
  constexpr uint32_t kBlock = wide_block_bytes(kN);
  constexpr int kSlotBytes = kTallSlotTiles * Format::kBlockBytes;
  SPARK_OPERAND_SHARED(operands);  // the rows twice, the rings, barriers
  if (!p.settles) launch_dependents();
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int g = lane >> 2, t = lane & 3;
  const int team = warp >> 2;
  const int slots = p.ring_slots;
  uint8_t* const ring = operands + p.ring_offset + warp * slots * kSlotBytes;
  uint64_t* const full = reinterpret_cast<uint64_t*>(operands + p.barrier_offset) + warp * kMaxTallSlots;
  if (lane == 0) {
#pragma unroll 1
    for (int i = 0; i < slots; ++i) barrier_init(full + i, 1);
    barrier_init_done();
  }
  __syncwarp();

  // Groups of 64 weight rows: neighbours go to different multiprocessors, so that all have as many.
  const auto tile_of = [&](int round) {
    return ((round * kTallTeams + team) * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x)) * 4 +
           (warp & 3);
  };
  const auto has_round = [&](int round) {
    return round * kTallTeams * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x) < p.row_groups;
  };
  // What a draft multiplies with once a position is small enough to stay in L2 between them.
  constexpr size_t kStays = size_t{16} << 20;
  const uint64_t policy = weight_policy(static_cast<size_t>(p.row_tiles) * p.tile_stride <= kStays);
  // The ring's next copy: a slot holds blocks of one shard.
  int fetch_round = 0, fetch_block = 0, fetch_shard_end = min(p.shard_blocks, p.blocks), fetch_slot = 0;
  const auto fetch_next = [&] {
    const int tile = tile_of(fetch_round);
    const int tiles = min(kTallSlotTiles, fetch_shard_end - fetch_block);
    if (tile < p.row_tiles && lane == 0) {
      copy_bulk_with(policy, ring + fetch_slot * kSlotBytes,
                     p.tiles + static_cast<size_t>(tile) * p.tile_stride +
                         static_cast<size_t>(fetch_block) * Format::kBlockBytes,
                     static_cast<uint32_t>(tiles * Format::kBlockBytes), full + fetch_slot);
    }
    if (++fetch_slot == slots) fetch_slot = 0;
    fetch_block += tiles;
    if (fetch_block == p.blocks) fetch_block = 0, fetch_shard_end = 0, ++fetch_round;
    if (fetch_block == fetch_shard_end) fetch_shard_end = min(fetch_block + p.shard_blocks, p.blocks);
  };
#pragma unroll 1
  for (int i = 0; i < slots; ++i) fetch_next();

  wait_for_inputs();
  if (p.settles) launch_dependents();

  const int shards = (p.blocks + p.shard_blocks - 1) / p.shard_blocks;
  const uint32_t place_bytes = static_cast<uint32_t>(p.shard_blocks) * kBlock;
  TallRows<kN> rows;
  {
    // The first shard's, many reads under way at once.
    TallRows<kN> first;
    constexpr int kAtOnce = 8;
    first.begin(p, 0, true, operands);
    while (first.more()) {
      uint4 v[kAtOnce];
      uint32_t at[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        at[i] = ~0u;
        if (!first.more()) continue;
        first.load(p, 0);
        v[i] = first.v[0], at[i] = first.at[0];
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (at[i] == ~0u) continue;
        first.v[0] = v[i], first.at[0] = at[i];
        first.store(0);
      }
    }
  }
  wgmma_operands_written();
  __syncthreads();

  int slot = 0, turn = 0;
  uint32_t parity = 0;
  for (int round = 0; has_round(round); ++round) {
    const int tile = tile_of(round);
    const bool has_tile = tile < p.row_tiles;
    // Where this lane's two weight rows have their exceptions, looked up while the weights stream.
    const int64_t row0 = static_cast<int64_t>(tile) * kTileRows + g;
    uint32_t first[2] = {}, last[2] = {}, entry[2] = {};
    if constexpr (Format::kPacked) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (row0 + half * 8 >= p.out) continue;
        first[half] = __ldg(p.exception_offsets + row0 + half * 8);
        last[half] = __ldg(p.exception_offsets + row0 + half * 8 + 1);
        if (first[half] < last[half]) entry[half] = __ldg(p.exceptions + first[half]);
      }
    }
    float total[kN][4] = {};
    for (int shard = 0; shard < shards; ++shard, turn ^= 1) {
      const bool another = shard + 1 < shards || has_round(round + 1);
      rows.begin(p, shard + 1 < shards ? shard + 1 : 0, another, operands + (turn ^ 1) * place_bytes);
      const int count = min(p.shard_blocks, p.blocks - shard * p.shard_blocks);
      uint64_t operand = wgmma_operand(operands + turn * place_bytes);
      float sum[kN][4] = {};
      const auto take = [&](const uint8_t* block, uint32_t(&with)[8]) {
        Format::operand(Format::read(block, lane), with);
        if constexpr (Format::kPacked) {
          const uint32_t unpack = p.unpack_scale * 0x10001u;
#pragma unroll
          for (int i = 0; i < 8; ++i) with[i] = multiply_bf16x2(with[i], unpack);
        }
      };
      const auto multiply = [&](const uint32_t(&with)[8]) {
        wgmma<true, true>(sum, with[0], with[1], with[2], with[3], operand);
        wgmma<true, true>(sum, with[4], with[5], with[6], with[7], wgmma_operand_at(operand, kWideStepBytes));
        operand = wgmma_operand_at(operand, kBlock);
      };
#pragma unroll 1
      for (int at = 0; at < count; at += kTallSlotTiles) {
        // The next shard's rows, while this slot is worked on.
        bool loaded[TallRows<kN>::kAhead];
#pragma unroll
        for (int i = 0; i < TallRows<kN>::kAhead; ++i) {
          loaded[i] = rows.more();
          if (loaded[i]) rows.load(p, i);
        }
        const uint8_t* block = ring + slot * kSlotBytes;
        // A warp without a tile multiplies what lies there: nobody reads its sums.
        if (has_tile) barrier_wait(full + slot, parity);
        // Two blocks at a time, then one that is left. Registers of operands must not be written while
        // products are under way, else the compiler puts a wait behind every one; the other warpgroups fill
        // the unit.
        int left = min(kTallSlotTiles, count - at);
#pragma unroll 1
        for (; left > 1; left -= 2, block += 2 * Format::kBlockBytes) {
          uint32_t a[2][8];
          take(block, a[0]);
          take(block + Format::kBlockBytes, a[1]);
          wgmma_fence();
          multiply(a[0]);
          multiply(a[1]);
          wgmma_commit();
          wgmma_wait<0>(sum);
        }
#pragma unroll 1
        for (; left > 0; --left) {
          uint32_t a[8];
          take(block, a);
          wgmma_fence();
          multiply(a);
          wgmma_commit();
          wgmma_wait<0>(sum);
        }
        __syncwarp();
        if (++slot == slots) slot = 0, parity ^= 1;
        if (has_round(fetch_round)) fetch_next();
#pragma unroll
        for (int i = 0; i < TallRows<kN>::kAhead; ++i) {
          if (loaded[i]) rows.store(i);
        }
      }
      rows.finish(p);
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int q = 0; q < 4; ++q) total[n][q] += sum[n][q];
      }
      wgmma_operands_written();
      __syncthreads();
    }

    if (!has_tile) continue;
    if constexpr (Format::kPacked) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        for (uint32_t e = first[half]; e < last[half]; ++e) {
          const uint32_t what = e == first[half] ? entry[half] : __ldg(p.exceptions + e);
          const uint16_t* const column = p.x + (what >> 16);
          const float weight = bf16_to_float(what & 0xFFFFu);
#pragma unroll
          for (int n = 0; n < kN; ++n) {
#pragma unroll
            for (int q = 0; q < 2; ++q) {
              const int m = min(n * 8 + t * 2 + q, p.rows - 1);
              total[n][half * 2 + q] =
                  fmaf(bf16_to_float(column[static_cast<size_t>(m) * static_cast<size_t>(p.x_stride)]),
                       weight, total[n][half * 2 + q]);
            }
          }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const int m = n * 8 + t * 2 + (q & 1);
        const int64_t row = row0 + (q >> 1) * 8;
        if (m >= p.rows || row >= p.out) continue;
        const size_t at = static_cast<size_t>(m) * static_cast<size_t>(p.y_stride) + static_cast<size_t>(row);
        if (p.y_f32 != nullptr) {
          p.y_f32[at] = total[n][q];
        } else {
          p.y[at] = float_to_bf16(total[n][q]);
        }
      }
    }
  }
}

template <class Format>
void launch_tall_gemm(const Launch& on, const TallLaunch& plan, const StreamGemmParams& params) {
  const auto with = [&](auto kernel) {
    launch_kernel(on, kernel, dim3(static_cast<unsigned>(plan.grid)), kTallThreads, plan.shared_bytes, 1,
                  params);
  };
  switch (plan.n_tiles) {
    case kTallWidths[0] / 8:
      return with(tall_gemm_kernel<Format, kTallWidths[0] / 8>);
    case kTallWidths[1] / 8:
      return with(tall_gemm_kernel<Format, kTallWidths[1] / 8>);
    case kTallWidths[2] / 8:
      return with(tall_gemm_kernel<Format, kTallWidths[2] / 8>);
    case kTallWidths[3] / 8:
      return with(tall_gemm_kernel<Format, kTallWidths[3] / 8>);
    default:
      throw Error("a tall product of " + std::to_string(plan.n_tiles * 8) + " rows", "CUDA backend",
                  "this is a defect: report it");
  }
}

}  // namespace spark::engine::cuda
