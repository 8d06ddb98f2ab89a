// Weights in the layout that the products want: tiles of 32 outputs, and inside a tile the outputs of one
// input side by side, so that a vector lane is an output. A product then needs no horizontal sums, and the
// order in which an output is summed is the same for every vector width.
//
// Inputs come in blocks of 32 (the last one padded with zeros), outputs beyond `rows` are zeros. Per tile and
// block:
//   FP8  : 16 x 32 words of 16 bits: of each output the codes of inputs k (low byte) and k+4, for
//          k = 0 1 2 3 8 9 10 11 16 ...; scale[block], FP32
//   FP4  : 4 x 32 words of 32 bits: nibbles of inputs 8i .. 8i+7 (lowest first); scale[block][32], UE8M0
//   BF16 : 16 x 32 words of 32 bits: inputs 2i (low half) and 2i+1; F32  : 32 x 32 floats.
// Storage is as compact as the checkpoint's.
#pragma once

#include <cstdint>

#include "engine/kernels/cpu/buffer.h"
#include "engine/kernels/types.h"

namespace spark::engine::cpu {

constexpr int kTile = 32;
constexpr int kBlock = 32;

constexpr int64_t blocks_of(int64_t n) {
  return (n + kBlock - 1) / kBlock;
}
constexpr int64_t padded(int64_t n) {
  return blocks_of(n) * kBlock;
}

struct PackedWeight {
  WeightFormat format = WeightFormat::kBf16;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t blocks = 0;  // of 32 inputs
  int64_t tiles = 0;   // of 32 outputs
  Buffer data;
  Buffer scales;

  int64_t block_bytes() const;  // of one tile and block, without scales
  double tile_bytes() const;    // of one tile, with scales
  const uint8_t* tile_data(int64_t tile) const { return data.as<uint8_t>() + tile * blocks * block_bytes(); }
};

// Throws Error when the weight holds a NaN code (a broken file: the FP8 decoder has no NaN).
void pack_weight(const Weight& host, PackedWeight& packed);

}  // namespace spark::engine::cpu
