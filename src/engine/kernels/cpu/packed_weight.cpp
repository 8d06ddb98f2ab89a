#include "engine/kernels/cpu/packed_weight.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "common/error.h"
#include "engine/numeric/e4m3.h"
#include "engine/numeric/ue8m0.h"

namespace spark::engine::cpu {
namespace {

// Copies words of `Word` (as many inputs as it holds) of 32 outputs side by side.
template <typename Word>
void interleave(const uint8_t* rows, int64_t row_bytes, int outputs, int64_t word, Word* out) {
  for (int n = 0; n < kTile; ++n) {
    Word value = 0;
    const int64_t offset = word * static_cast<int64_t>(sizeof(Word));
    if (n < outputs && offset < row_bytes) {
      const auto size = static_cast<size_t>(std::min<int64_t>(sizeof(Word), row_bytes - offset));
      std::memcpy(&value, rows + n * row_bytes + offset, size);
    }
    out[n] = value;
  }
}

template <typename Word>
void pack_tiles(const Weight& host, int64_t row_bytes, int words_per_block, PackedWeight& packed) {
  auto* out =
      packed.data.get<Word>(static_cast<size_t>(packed.tiles * packed.blocks * words_per_block * kTile));
  const auto* data = static_cast<const uint8_t*>(host.data);
  for (int64_t tile = 0; tile < packed.tiles; ++tile) {
    const auto outputs = static_cast<int>(std::min<int64_t>(kTile, host.rows - tile * kTile));
    for (int64_t word = 0; word < packed.blocks * words_per_block; ++word, out += kTile)
      interleave(data + tile * kTile * row_bytes, row_bytes, outputs, word, out);
  }
}

// A word holds an input and the fourth after it, see tile_product.h.
void pack_fp8_tiles(const Weight& host, PackedWeight& packed) {
  auto* out =
      packed.data.get<uint8_t>(static_cast<size_t>(packed.tiles * packed.blocks * packed.block_bytes()));
  const auto* data = static_cast<const uint8_t*>(host.data);
  const auto code = [&](int64_t row, int64_t col) -> uint8_t {
    return row < host.rows && col < host.cols ? data[row * host.cols + col] : uint8_t{0};
  };
  for (int64_t tile = 0; tile < packed.tiles; ++tile) {
    for (int64_t pair = 0; pair < packed.blocks * kBlock / 2; ++pair) {
      const int64_t input = pair / 4 * 8 + pair % 4;
      for (int64_t row = tile * kTile; row < (tile + 1) * kTile; ++row) {
        *out++ = code(row, input);
        *out++ = code(row, input + 4);
      }
    }
  }
}

// One scale per 32x32 tile, which is just one tile and block here.
void pack_fp8_scales(const Weight& host, PackedWeight& packed) {
  const auto count = static_cast<size_t>(packed.tiles * packed.blocks);
  auto* out = packed.scales.get<float>(count);
  for (size_t i = 0; i < count; ++i) out[i] = ue8m0_to_float(host.scales[i]);
}

void pack_fp4_scales(const Weight& host, PackedWeight& packed) {
  auto* out = packed.scales.get<uint8_t>(static_cast<size_t>(packed.tiles * packed.blocks * kTile));
  for (int64_t tile = 0; tile < packed.tiles; ++tile) {
    for (int64_t block = 0; block < packed.blocks; ++block) {
      for (int64_t n = 0; n < kTile; ++n) {
        const int64_t row = tile * kTile + n;
        *out++ = row < host.rows ? host.scales[row * packed.blocks + block] : kUe8m0One;
      }
    }
  }
}

void reject_nan_codes(const Weight& host) {
  const auto* codes = static_cast<const uint8_t*>(host.data);
  const int64_t count = host.rows * host.cols;
  const auto is_nan = [](uint8_t code) { return (code & 0x7Fu) == kE4m3Nan; };
  const auto* bad = std::find_if(codes, codes + count, is_nan);
  if (bad == codes + count) return;
  const int64_t index = bad - codes;
  throw Error("an FP8 weight has a NaN code at row " + std::to_string(index / host.cols) + ", column " +
                  std::to_string(index % host.cols),
              {}, "the checkpoint is damaged: verify its checksums and download it again");
}

}  // namespace

int64_t PackedWeight::block_bytes() const {
  switch (format) {
    case WeightFormat::kFp8:
      return kTile * kBlock;
    case WeightFormat::kFp4:
      return kTile * kBlock / 2;
    case WeightFormat::kBf16:
      return kTile * kBlock * 2;
    case WeightFormat::kF32:
      return kTile * kBlock * 4;
  }
  return 0;
}

double PackedWeight::tile_bytes() const {
  return static_cast<double>(blocks * (block_bytes() + (format == WeightFormat::kFp4 ? kTile : 4)));
}

void pack_weight(const Weight& host, PackedWeight& packed) {
  SPARK_CHECK(host.data != nullptr && host.rows > 0 && host.cols > 0);
  packed.format = host.format;
  packed.rows = host.rows;
  packed.cols = host.cols;
  packed.blocks = blocks_of(host.cols);
  packed.tiles = (host.rows + kTile - 1) / kTile;
  switch (host.format) {
    case WeightFormat::kFp8:
      SPARK_CHECK(host.scales != nullptr);
      reject_nan_codes(host);
      pack_fp8_tiles(host, packed);
      pack_fp8_scales(host, packed);
      break;
    case WeightFormat::kFp4:
      SPARK_CHECK(host.scales != nullptr && host.cols % kBlock == 0);
      pack_tiles<uint32_t>(host, host.cols / 2, 4, packed);
      pack_fp4_scales(host, packed);
      break;
    case WeightFormat::kBf16:
      pack_tiles<uint32_t>(host, host.cols * 2, 16, packed);
      break;
    case WeightFormat::kF32:
      pack_tiles<uint32_t>(host, host.cols * 4, 32, packed);
      break;
  }
}

}  // namespace spark::engine::cpu
