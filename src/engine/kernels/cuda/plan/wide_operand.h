// Where the rows of the step lie in shared memory as the B operand of wgmma (sm90/wgmma.cuh).
//
// The operand is made of cores of eight rows by eight columns (16 bytes a row, 128 in all, no swizzle). A
// block of 32 columns is two steps of 16, a step two cores deep. The weight tiles deal the columns of a block
// to the lanes eight in a row (tiles.h): of lane t's columns 8t .. 8t + 7, step j takes 8t + 4j .. 8t + 4j + 3,
// two of them for the first core's columns 2t, 2t + 1, two for the second's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/numeric/host_device.h"

namespace spark::engine::cuda {

constexpr int kCoreBytes = 128;

// Cores lie [step][depth][rows / 8]. Of element (row, column) of a block of `n_tiles` * 8 rows: its byte.
SPARK_HOST_DEVICE constexpr uint32_t wide_core(int n_tiles, int step, int depth, int n) {
  return static_cast<uint32_t>(((step * 2 + depth) * n_tiles + n) * kCoreBytes);
}
SPARK_HOST_DEVICE constexpr uint32_t wide_operand_offset(int n_tiles, int row, int col) {
  const int t = col >> 3, i = col & 7;
  return wide_core(n_tiles, i >> 2, (i >> 1) & 1, row >> 3) +
         static_cast<uint32_t>((row & 7) * 16 + t * 4 + (i & 1) * 2);
}
// Between the blocks 16 bytes more, so that eight blocks' equal places lie in different banks.
SPARK_HOST_DEVICE constexpr uint32_t wide_block_bytes(int n_tiles) {
  return static_cast<uint32_t>(4 * n_tiles * kCoreBytes + 16);
}

// The scales of a block's rows, in the order in which the lanes use them: lane t of four needs those of rows
// 8n + 2t and 8n + 2t + 1 of all n. Four more between the blocks, again for the banks.
SPARK_HOST_DEVICE constexpr int wide_scale_place(int n_tiles, int row) {
  return ((row & 7) >> 1) * n_tiles * 2 + (row >> 3) * 2 + (row & 1);
}
SPARK_HOST_DEVICE constexpr int wide_scale_stride(int n_tiles) {
  return n_tiles * 8 + 4;
}

// The instruction's description of an operand: its address, the step from a core to the next eight columns'
// and to the next eight rows', in units of 16 bytes.
SPARK_HOST_DEVICE constexpr uint64_t wgmma_descriptor(uint32_t address, uint32_t depth_step,
                                                      uint32_t row_step) {
  return (uint64_t{address} & 0x3FFFF) >> 4 | (uint64_t{depth_step} >> 4) << 16 |
         (uint64_t{row_step} >> 4) << 32;
}

}  // namespace spark::engine::cuda
