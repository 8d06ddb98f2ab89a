// Where the rows of the step lie in shared memory as the B operand of wgmma (sm90/wgmma.cuh).
//
// A block of 32 columns of eight rows is 512 bytes, 64 a row, in the instruction's 64-byte swizzle: of a
// row's four chunks of 16 bytes, chunk c lies at place c ^ (row / 2 % 4), so that eight rows' chunks of one
// number lie in different banks. Chunks 0 and 1 are the first step of 16 columns, 2 and 3 the second.
//
// The weight tiles deal the columns of a block to the lanes eight in a row (tiles.h). So of lane t's columns
// 8t .. 8t + 7 two go to each chunk, at its elements 2t and 2t + 1.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/numeric/host_device.h"

namespace spark::engine::cuda {

constexpr uint32_t kWideEightBytes = 512;  // a block of eight rows; also how operands are aligned
constexpr uint32_t kWideStepBytes = 32;    // from the first step of a row's block to the second

SPARK_HOST_DEVICE constexpr uint32_t wide_block_bytes(int n_tiles) {
  return static_cast<uint32_t>(n_tiles) * kWideEightBytes;
}
// The place of a row's chunk in its block.
SPARK_HOST_DEVICE constexpr uint32_t wide_chunk(int row, int chunk) {
  return static_cast<uint32_t>((row >> 3) * 512 + (row & 7) * 64 + ((chunk ^ ((row >> 1) & 3)) << 4));
}
SPARK_HOST_DEVICE constexpr uint32_t wide_operand_offset(int row, int col) {
  const int t = col >> 3, i = col & 7;
  return wide_chunk(row, i >> 1) + static_cast<uint32_t>(t * 4 + (i & 1) * 2);
}

// The scales of a block's rows, in the order in which the lanes use them: lane t of four needs those of rows
// 8n + 2t and 8n + 2t + 1 of all n. Four more between the blocks, so that they lie in different banks.
SPARK_HOST_DEVICE constexpr int wide_scale_place(int n_tiles, int row) {
  return ((row & 7) >> 1) * n_tiles * 2 + (row >> 3) * 2 + (row & 1);
}
SPARK_HOST_DEVICE constexpr int wide_scale_stride(int n_tiles) {
  return n_tiles * 8 + 4;
}

// The instruction's description of an operand at `address`: the step between eight rows in units of 16 bytes,
// and the 64-byte swizzle.
SPARK_HOST_DEVICE constexpr uint64_t wgmma_descriptor(uint32_t address) {
  return (uint64_t{address} & 0x3FFFF) >> 4 | uint64_t{1} << 16 | uint64_t{kWideEightBytes >> 4} << 32 |
         uint64_t{2} << 62;
}
// The description of what lies so many bytes behind.
SPARK_HOST_DEVICE constexpr uint64_t wgmma_operand_at(uint64_t descriptor, uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

}  // namespace spark::engine::cuda
