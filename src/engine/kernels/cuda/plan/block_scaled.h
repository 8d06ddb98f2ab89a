// Which lane holds what in the block-scaled matrix instruction of SM121, and how E2M1 codes lie in memory so
// that a lane gets its operands with one mask and one rotation.
//
//   mma.m16n8k32, kind::mxf8f6f4.block_scale.scale_vec::1X: D[16][8] = (A[16][32] sA[16]) (B[32][8] sB[8]) +
//   C
//
// Lane 4g + t holds (PTX ISA, "Matrix fragments for mma.m16n8k32"; scale lanes as in CUTLASS's traits of the
// instruction):
//   A register r: row g + 8 (r & 1), slots 4t + 16 (r >> 1) + 0..3, one in a byte
//   B register r: column g, slots 4t + 16 r + 0..3
//   C, D register q: row g + 8 (q >> 1), column 2t + (q & 1)
//   scale of A: row g + 8 (t & 1), taken from the lanes with t >> 1 == thread-id; scale of B: column g, from
//   t == thread-id; byte-id names the byte of the register. We keep the same value in all lanes that could be
//   asked, and thread-id 0.
//
// The columns of a 32-block are dealt to the slots as everywhere in tiles.h: lane t holds columns 8t .. 8t +
// 7, the first four in its lower slots. So the FP8 tile serves both kinds of instruction as it is.
//
// An E2M1 element of this instruction lies in the middle of its byte: 00SEEM00.
#pragma once

#include "engine/kernels/cuda/plan/tiles.h"

namespace spark::engine::cuda {

// Column of a 32-block that slot k of the instruction stands for.
SPARK_HOST_DEVICE constexpr int block_scaled_column(int k) {
  return ((k & 15) >> 2) * 8 + (k >> 4) * 4 + (k & 3);
}

// Row of A of which the lane gives the scale.
SPARK_HOST_DEVICE constexpr int block_scaled_row(int lane) {
  return (lane >> 2) + 8 * (lane & 1);
}

// Eight codes of a row (columns 8t .. 8t + 7) in a word: the first four in the middle of its bytes, the
// others where a rotation by four brings them there.
constexpr uint32_t kFp4ContainerMask = 0x3C3C3C3Cu;

SPARK_HOST_DEVICE constexpr uint32_t fp4_container_code(uint32_t code, int element) {
  const uint32_t middle = code << (8 * (element & 3) + 2);
  return element < 4 ? middle : rotate_right(middle, 4);
}

// The A operand of a 16x32 block.
struct BlockScaledOperand {
  uint32_t a[4];
};

// From a lane's 16 bytes of an FP8 tile.
SPARK_HOST_DEVICE constexpr BlockScaledOperand fp8_operand(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  return {{x, z, y, w}};
}

struct Fp4Containers {
  uint32_t low, high;  // columns 8t .. 8t + 3 and 8t + 4 .. 8t + 7
};
SPARK_HOST_DEVICE constexpr Fp4Containers fp4_containers(uint32_t word) {
  return {word & kFp4ContainerMask, (word << 4 | word >> 28) & kFp4ContainerMask};
}

// From a lane's words of a block of an FP4 tile.
SPARK_HOST_DEVICE constexpr BlockScaledOperand fp4_operand(uint32_t row_g, uint32_t row_g8) {
  const Fp4Containers g = fp4_containers(row_g), g8 = fp4_containers(row_g8);
  return {{g.low, g8.low, g.high, g8.high}};
}

// Byte of an FP4 tile's scales where the two scales of row block_scaled_row(lane) lie side by side.
SPARK_HOST_DEVICE constexpr int fp4_lane_scales(int lane) {
  return (lane >> 2) * 4 + (lane & 1) * 2;
}

}  // namespace spark::engine::cuda
