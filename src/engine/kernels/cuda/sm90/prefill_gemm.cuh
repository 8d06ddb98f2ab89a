// The product of a weight with the many rows of a prompt: y[m][n] = sum_k x[m][k] w[n][k], by the matrix
// instruction of a warpgroup.
//
// A block takes 128 rows of the step by 128 weight rows at a time, and many of these one after the other. Two
// warpgroups multiply, 64 rows of the step each: the rows are operand A, from registers, the weights operand
// B, from shared memory. So a thread needs the scales of two rows and of four groups of weight rows for its
// 64 sums. A third warpgroup brings rows and weights in (prefill_producer.cuh), two blocks of 32 columns a
// slot of a ring. While one of the two warpgroups adds a block's products to its sums, the other's are under
// way.
//
// The sums are the streaming product's (stream_gemm.cuh), bit for bit: a block of 32 columns by the matrix
// unit, blocks ascending in a shard, shard after shard. Bound: shared memory (operand B and its making),
// instructions, the matrix unit, about alike.
#pragma once

#include "engine/kernels/cuda/sm90/prefill_producer.cuh"
#include "engine/kernels/cuda/sm90/wgmma.cuh"

namespace spark::engine::cuda {

constexpr int kPrefillEights = kPrefillWeightRows / 8;  // of weight rows: 64 sums of a thread

// A 4 x 4 matrix of words, a column a lane of four: to a row a lane.
__device__ __forceinline__ void transpose_four(uint32_t (&w)[4], int t) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t other = __shfl_xor_sync(~0u, (t & 1) != 0 ? w[i] : w[i + 1], 1);
    w[i] = (t & 1) != 0 ? other : w[i];
    w[i + 1] = (t & 1) != 0 ? w[i + 1] : other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t other = __shfl_xor_sync(~0u, (t & 2) != 0 ? w[i] : w[i + 2], 2);
    w[i] = (t & 2) != 0 ? other : w[i];
    w[i + 2] = (t & 2) != 0 ? w[i + 2] : other;
  }
}

// A warp's 16 rows of the step, 128 outputs each.
__device__ __forceinline__ void write_prefill(const StreamGemmParams& p, const PrefillItem& item,
                                              const float (&total)[kPrefillEights][4]) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int g = lane >> 2, t = lane & 3;
  const int m0 = item.first_row + static_cast<int>(threadIdx.x >> 5) * 16 + g;
  const int64_t row0 = static_cast<int64_t>(item.first_tile) * kTileRows;
  if (p.y_f32 != nullptr) {
#pragma unroll
    for (int n = 0; n < kPrefillEights; ++n) {
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const int m = m0 + (q >> 1) * 8;
        const int64_t row = row0 + n * 8 + t * 2 + (q & 1);
        if (m < p.rows && row < p.out)
          p.y_f32[static_cast<size_t>(m) * static_cast<size_t>(p.y_stride) + row] = total[n][q];
      }
    }
    return;
  }
  uint16_t* const y = item.second ? p.second_y : p.y;
  const bool whole = ((reinterpret_cast<uintptr_t>(y) | static_cast<uintptr_t>(p.y_stride << 1)) & 15) == 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int m = m0 + half * 8;
    uint16_t* const to = y + static_cast<size_t>(m) * static_cast<size_t>(p.y_stride);
#pragma unroll
    for (int n = 0; n < kPrefillEights; n += 4) {
      // Eight neighbours of a row in a lane, so that four lanes write 64 bytes side by side.
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] = pack_bf16(total[n + i][half * 2], total[n + i][half * 2 + 1]);
      transpose_four(w, t);
      const int64_t row = row0 + (n + t) * 8;
      if (m >= p.rows || row >= p.out) continue;
      if (whole && row + 8 <= p.out) {
        *reinterpret_cast<uint4*>(to + row) = make_uint4(w[0], w[1], w[2], w[3]);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (row + i < p.out) to[row + i] = static_cast<uint16_t>(w[i / 2] >> (16 * (i & 1)));
        }
      }
    }
  }
}

template <class Format>
__device__ __forceinline__ void multiply_prefill(const StreamGemmParams& p, uint8_t* shared) {
  using Shape = PrefillShape<Format>;
  constexpr bool kBf16 = !Format::kCodes;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int g = lane >> 2, t = lane & 3;
  // This lane's eight columns of its first row, in the first block of a slot. Kept, since made anew for every
  // block these places cost as much as the scales.
  const int rows_at =
      opaque(Shape::kRowsAt + (warp * 16 + g) * Shape::kRowBytes +
             static_cast<int>(Format::kCodes ? prefill_row_place<Format>(g, t >> 1) + (t & 1) * 8
                                             : prefill_row_place<Format>(g, t)));
  const int scales_at = opaque(Shape::kScalesAt + (warp * 16 + g * 2) * 4);
  const bool arrives = opaque(lane) == 0;
  const auto read_rows = [&](const uint8_t* slot_at, int b, uint32_t(&a)[8]) {
    const uint8_t* const from = slot_at + (rows_at ^ (b * Shape::kRowBytes / 2));
    if constexpr (Format::kCodes) {
      const uint2 x = *reinterpret_cast<const uint2*>(from);
      const uint2 y = *reinterpret_cast<const uint2*>(from + 8 * Shape::kRowBytes);
      Format::operand(make_uint4(x.x, x.y, y.x, y.y), a);
    } else {
      const uint4 x = *reinterpret_cast<const uint4*>(from);
      const uint4 y = *reinterpret_cast<const uint4*>(from + 8 * Shape::kRowBytes);
      a[0] = x.x, a[2] = x.y, a[4] = x.z, a[6] = x.w;
      a[1] = y.x, a[3] = y.y, a[5] = y.z, a[7] = y.w;
    }
  };

  uint8_t* slot = shared;
  uint64_t operand = wgmma_operand(shared);
  uint32_t parity = 0;
  int slots_left = Shape::kSlots;  // of the ring's round
  const auto full = [](uint8_t* of) { return reinterpret_cast<uint64_t*>(of + Shape::kFullAt); };
  const int items = prefill_items(p);
  for (int index = static_cast<int>(blockIdx.x); index < items; index += static_cast<int>(gridDim.x)) {
    float sum[kPrefillEights][4] = {};
    float total[kPrefillEights][4] = {};
    uint32_t a[2][8];
    int left = p.blocks, shard_left = p.shard_blocks;
    barrier_wait(full(slot), parity);
    read_rows(slot, 0, a[0]);
#pragma unroll 1
    while (true) {
      float d[kPrefillEights][4];
      const auto start = [&](int b) {
        const uint64_t first = wgmma_operand_at(operand, static_cast<uint32_t>(b * kPrefillBlock));
        const uint64_t second = wgmma_operand_at(first, kWideStepBytes);
        wgmma_fence();
        if constexpr (Format::kWeightScale) {
          wgmma<false, kBf16>(d, a[b][0], a[b][1], a[b][2], a[b][3], first);
          wgmma<true, kBf16>(d, a[b][4], a[b][5], a[b][6], a[b][7], second);
        } else {
          wgmma<true, kBf16>(sum, a[b][0], a[b][1], a[b][2], a[b][3], first);
          wgmma<true, kBf16>(sum, a[b][4], a[b][5], a[b][6], a[b][7], second);
        }
        wgmma_commit();
      };
      const auto finish = [&](int b, bool last_of_slot) {
        float s[kPrefillWeightScales][2];  // of 32 weight rows and this thread's two rows
        if constexpr (Format::kWeightScale) {
          const float4 of_weight =
              *reinterpret_cast<const float4*>(slot + Shape::kWeightScalesAt + b * kPrefillWeightScales * 4);
          float2 of_rows = make_float2(1.0f, 1.0f);
          if constexpr (Format::kCodes)
            of_rows = *reinterpret_cast<const float2*>(slot + scales_at + b * kPrefillStepRows * 4);
          const float w[kPrefillWeightScales] = {of_weight.x, of_weight.y, of_weight.z, of_weight.w};
#pragma unroll
          for (int j = 0; j < kPrefillWeightScales; ++j) {
            s[j][0] = Format::kCodes ? w[j] * of_rows.x : w[j];
            s[j][1] = Format::kCodes ? w[j] * of_rows.y : w[j];
          }
          wgmma_wait<0>(d);
        } else {
          wgmma_wait<0>(sum);
        }
        if (last_of_slot) {
          __syncwarp();
          if (arrives) barrier_arrive(reinterpret_cast<uint64_t*>(slot + Shape::kEmptyAt));
        }
        if constexpr (Format::kWeightScale) {
#pragma unroll
          for (int n = 0; n < kPrefillEights; ++n) {
#pragma unroll
            for (int q = 0; q < 4; ++q) sum[n][q] = fmaf(d[n][q], s[n / 4][q >> 1], sum[n][q]);
          }
        }
        if (--shard_left == 0 || left == 1) {
          shard_left = p.shard_blocks;
#pragma unroll
          for (int n = 0; n < kPrefillEights; ++n) {
#pragma unroll
            for (int q = 0; q < 4; ++q) total[n][q] += sum[n][q], sum[n][q] = 0.0f;
          }
        }
        if constexpr (Format::kWeightScale) wgmma_pin(sum);
      };
      const bool wraps = --slots_left == 0;
      const int to_next = wraps ? -(Shape::kSlots - 1) * Shape::kSlotBytes : Shape::kSlotBytes;
      uint8_t* const next = slot + to_next;
      start(0);
      read_rows(slot, 1, a[1]);  // zeros where there is no such block
      finish(0, left == 1);
      if (wraps) parity ^= 1, slots_left = Shape::kSlots;
      if (left > 1) {
        start(1);
        if (left > 2) {
          barrier_wait(full(next), parity);
          read_rows(next, 0, a[0]);
        }
        --left;
        finish(1, true);
      }
      operand += static_cast<uint64_t>(static_cast<int64_t>(to_next >> 4));
      slot = next;
      if (--left == 0) break;
    }
    write_prefill(p, prefill_item(p, index), total);
  }
}

template <class Format>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    prefill_gemm_kernel(const __grid_constant__ StreamGemmParams p) {
  using Shape = PrefillShape<Format>;
  SPARK_OPERAND_SHARED(operands);
  if (!p.settles) launch_dependents();
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int i = 0; i < Shape::kSlots; ++i) {
      uint8_t* const slot = operands + i * Shape::kSlotBytes;
      barrier_init(reinterpret_cast<uint64_t*>(slot + Shape::kFullAt), kPrefillProducers / 32);
      barrier_init(reinterpret_cast<uint64_t*>(slot + Shape::kEmptyAt), kPrefillConsumers / 32);
    }
    barrier_init_done();
  }
  wait_for_inputs();
  if (p.settles) launch_dependents();
  __syncthreads();
  if (threadIdx.x < kPrefillConsumers) {
    more_registers<kPrefillConsumerRegisters>();
    multiply_prefill<Format>(p, operands);
  } else {
    fewer_registers<kPrefillProducerRegisters>();
    PrefillProducer<Format>(p, operands).run();
  }
}

template <class Format>
void launch_prefill_gemm(const Launch& on, const StreamGemmParams& params) {
  // As many blocks as make no more rounds than one for every multiprocessor would.
  const int items = prefill_items(params);
  const int rounds = static_cast<int>(ceil_div(items, on.device.multiprocessors));
  const dim3 grid(static_cast<unsigned>(ceil_div(items, rounds)));
  launch_kernel(on, prefill_gemm_kernel<Format>, grid, kPrefillThreads, PrefillShape<Format>::kBytes, 1,
                params);
}

}  // namespace spark::engine::cuda
