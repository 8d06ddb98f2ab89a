#include "engine/kernels/cpu/tile_product.h"

#include <algorithm>

#include "engine/kernels/cpu/tile_unit.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/tile_product.cpp"
// The order matters: the choice of targets, the loop over them, then highway.h.
// clang-format off
#include "engine/kernels/cpu/simd_targets.h"
#include <hwy/foreach_target.h>
#include "engine/kernels/cpu/simd_inl.h"
#include "engine/kernels/cpu/tile_formats_inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace spark::engine::cpu::HWY_NAMESPACE {

// Rows per pass: as many accumulators as the register file holds beside the decoded weights.
#if HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM
constexpr int kMaxRows = 8;
#else
constexpr int kMaxRows = 4;
#endif
constexpr int kWide = kLanes == 4 ? 4 : 2;  // vectors per pass for one row, where decoding dominates

struct TileSource {
  const uint8_t* data;
  const uint8_t* scales;
};

constexpr int64_t kWidened = 128;  // inputs of a row that are widened together

// M rows (widened, [M][kWidened]) against V vectors of outputs of an F32 tile, from `lane` on; adds to `out`.
template <int M, int V>
HWY_INLINE void double_columns(const float* values, size_t lane, const double* x, int64_t count,
                               double* out) {
  VD sums[M][V];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v)
      sums[m][v] = hn::LoadU(DD(), out + m * kTile + lane + static_cast<size_t>(v) * kDoubles);
  }
  for (int64_t k = 0; k < count; ++k) {
    VD w[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v)
      w[v] = load_doubles(values + k * kTile + lane + static_cast<size_t>(v) * kDoubles);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const VD xk = set_double(x[m * kWidened + k]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sums[m][v] = hn::MulAdd(w[v], xk, sums[m][v]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v)
      hn::StoreU(sums[m][v], DD(), out + m * kTile + lane + static_cast<size_t>(v) * kDoubles);
  }
}

// mHC has 24 outputs: three vectors of 8 instead of four.
template <int M>
HWY_NOINLINE void double_rows(const float* values, const RowView* rows, int64_t first, int64_t count,
                              size_t outputs, double* out) {
  HWY_ALIGN double x[M * kWidened];
  for (int i = 0; i < M * kTile; ++i) out[i] = 0;
  for (int64_t begin = 0; begin < count; begin += kWidened) {
    const int64_t inputs = std::min(kWidened, count - begin);
    for (int m = 0; m < M; ++m) {
      const float* from = rows[m].x + first + begin;
      for (int64_t k = 0; k < inputs; k += kDoubles)
        hn::Store(load_doubles(from + k), DD(), x + m * kWidened + k);
    }
    const float* w = values + begin * kTile;
    if (kDoubles == 8 && outputs <= 24) {
      double_columns<M, 3>(w, 0, x, inputs, out);
    } else {
      for (size_t lane = 0; lane < outputs; lane += 2 * kDoubles)
        double_columns<M, 2>(w, lane, x, inputs, out);
    }
  }
}

void f32_product_simd(const uint8_t* data, const RowView* rows, int64_t count, int64_t first, int64_t last,
                      int64_t outputs, double* out) {
  const auto* values = reinterpret_cast<const float*>(data) + first * kBlock * kTile;
  const int64_t inputs = (last - first) * kBlock;
  const auto lanes = static_cast<size_t>(outputs);
  int64_t m = 0;
  for (; m + kMaxRows <= count; m += kMaxRows)
    double_rows<kMaxRows>(values, rows + m, first * kBlock, inputs, lanes, out + m * kTile);
  for (; m + 4 <= count; m += 4)
    double_rows<4>(values, rows + m, first * kBlock, inputs, lanes, out + m * kTile);
  for (; m < count; ++m) double_rows<1>(values, rows + m, first * kBlock, inputs, lanes, out + m * kTile);
}

// Adds a block's sums, scaled, to the totals.
template <typename Format, int M, int V>
HWY_INLINE void add_block(const TileSource& source, size_t lane, const float* const* scale, int64_t b,
                          const Sums<M, V>& sums, Sums<M, V>& totals) {
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    [[maybe_unused]] const VF factor =
        Format::scale(source.scales + b * Format::kScaleBytes, lane + static_cast<size_t>(v) * kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      if constexpr (Format::kScaled) {
        const VF sum = hn::Mul(sums[m][v], set(Format::kFactor));  // exact
        const float row = scale[m] != nullptr ? scale[m][b] : 1.0F;
        totals[m][v] = hn::MulAdd(hn::Mul(sum, set(row)), factor, totals[m][v]);
      } else {
        totals[m][v] = hn::Add(totals[m][v], sums[m][v]);
      }
    }
  }
}

template <int M, int V>
HWY_INLINE void load_totals(const float* out, size_t lane, Sums<M, V>& totals) {
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) totals[m][v] = load(out + m * kTile + lane + static_cast<size_t>(v) * kLanes);
  }
}

template <int M, int V>
HWY_INLINE void store_totals(const Sums<M, V>& totals, float* out, size_t lane) {
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store(totals[m][v], out + m * kTile + lane + static_cast<size_t>(v) * kLanes);
  }
}

// Adds a block's sums, scaled, to totals in memory; in double the terms are those of add_block().
template <typename Format, int M, int V>
HWY_INLINE void add_to_totals(const TileSource& source, size_t lane, const float* const* scale, int64_t b,
                              const Sums<M, V>& sums, float* out) {
  Sums<M, V> totals;
  load_totals<M, V>(out, lane, totals);
  add_block<Format, M, V>(source, lane, scale, b, sums, totals);
  store_totals<M, V>(totals, out, lane);
}
template <typename Format, int M, int V>
HWY_INLINE void add_to_totals(const TileSource& source, size_t lane, const float* const* scale, int64_t b,
                              const Sums<M, V>& sums, double* out) {
  Sums<M, V> terms;
  clear<M, V>(terms);
  add_block<Format, M, V>(source, lane, scale, b, sums, terms);
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      double* total = out + m * kTile + lane + static_cast<size_t>(v) * kLanes;
      hn::StoreU(hn::Add(hn::LoadU(DD(), total), low_doubles(terms[m][v])), DD(), total);
      total += kDoubles;
      hn::StoreU(hn::Add(hn::LoadU(DD(), total), high_doubles(terms[m][v])), DD(), total);
    }
  }
}

// M rows, V vectors of outputs from `lane` on, all blocks. Totals stay in registers where there is room.
template <typename Format, int M, int V>
HWY_INLINE void columns(const TileSource& source, size_t lane, const float* const* x,
                        const float* const* scale, int64_t first, int64_t last, float* out) {
  constexpr bool kKeep = M * V <= (kLanes == 16 ? 8 : 4);
  Sums<M, V> totals;
  clear<M, V>(totals);
  if (!kKeep) store_totals<M, V>(totals, out, lane);
  for (int64_t b = first; b < last; ++b) {
    Sums<M, V> sums;
    clear<M, V>(sums);
    Format::template block<M, V>(source.data + b * Format::kBlockBytes, lane, x, b * kBlock, sums);
    if (!kKeep) load_totals<M, V>(out, lane, totals);
    add_block<Format, M, V>(source, lane, scale, b, sums, totals);
    if (!kKeep) store_totals<M, V>(totals, out, lane);
  }
  if (kKeep) store_totals<M, V>(totals, out, lane);
}

// The same with totals in double.
template <typename Format, int M, int V>
HWY_INLINE void columns(const TileSource& source, size_t lane, const float* const* x,
                        const float* const* scale, int64_t first, int64_t last, double* out) {
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
    for (int v = 0; v < 2 * V; ++v)
      hn::StoreU(hn::Zero(DD()), DD(), out + m * kTile + lane + static_cast<size_t>(v) * kDoubles);
  }
  for (int64_t b = first; b < last; ++b) {
    Sums<M, V> sums;
    clear<M, V>(sums);
    Format::template block<M, V>(source.data + b * Format::kBlockBytes, lane, x, b * kBlock, sums);
    add_to_totals<Format, M, V>(source, lane, scale, b, sums, out);
  }
}

// Out: float, or double for totals that are not to be rounded.
template <typename Format, int M, typename Out>
HWY_NOINLINE void rows_pass(const TileSource& source, const RowView* rows, int64_t count, int64_t first,
                            int64_t last, Out* out) {
  constexpr int kVectors = M == 1 ? kWide : 2;
  const float* x[M];
  const float* scale[M];
  for (int m = 0; m < M; ++m) {
    const RowView& row = rows[std::min<int64_t>(m, count - 1)];
    x[m] = row.x;
    scale[m] = row.scale;
  }
  for (size_t lane = 0; lane < kTile; lane += kVectors * kLanes)
    columns<Format, M, kVectors>(source, lane, x, scale, first, last, out);
}

// One of a block's two sums.
template <int M>
HWY_INLINE void unpacked_half(const float* w, const float* const* x, int64_t k, Sums<M, 2>& sums) {
  for (int eight = 0; eight < kBlock; eight += 8) {
#pragma GCC unroll 4
    for (int i = eight; i < eight + kHalfEight; ++i) {
      const VF wk[2] = {load(w + i * kTile), load(w + i * kTile + kLanes)};
      accumulate<M, 2>(wk, x, k + i, sums);
    }
  }
}

// M rows against the unpacked weights w [inputs][outputs] of block b; adds to `out`.
template <typename Format, int M, typename Out>
HWY_INLINE void unpacked_block(const TileSource& source, const float* w, const RowView* rows, int64_t count,
                               int64_t b, Out* out) {
  const float* x[M];
  const float* scale[M];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const RowView& row = rows[std::min<int64_t>(m, count - 1)];
    x[m] = row.x;
    scale[m] = row.scale;
  }
  for (size_t lane = 0; lane < kTile; lane += 2 * kLanes) {
    Sums<M, 2> sums, others;
    clear<M, 2>(sums);
    clear<M, 2>(others);
    unpacked_half<M>(w + lane, x, b * kBlock, sums);
    unpacked_half<M>(w + kHalfEight * kTile + lane, x, b * kBlock + kHalfEight, others);
    add<M, 2>(others, sums);
    add_to_totals<Format, M, 2>(source, lane, scale, b, sums, out);
  }
}

// More rows than one pass takes: a block is unpacked once for all of them. Sums are those of columns().
template <typename Format, typename Out>
HWY_NOINLINE void unpacked_rows(const TileSource& source, const RowView* rows, int64_t count, int64_t first,
                                int64_t last, Out* out) {
  HWY_ALIGN float w[kBlock * kTile];
  std::fill_n(out, (count + kMaxRows - 1) / kMaxRows * kMaxRows * kTile, Out(0));
  for (int64_t b = first; b < last; ++b) {
    Format::unpack(source.data + b * Format::kBlockBytes, w);
    for (int64_t m = 0; m < count; m += kMaxRows) {
      const int64_t left = count - m;
      if (left > kMaxRows / 2) {
        unpacked_block<Format, kMaxRows>(source, w, rows + m, left, b, out + m * kTile);
      } else {
        unpacked_block<Format, kMaxRows / 2>(source, w, rows + m, left, b, out + m * kTile);
      }
    }
  }
}

template <typename Format, typename Out>
void all_rows(const TileSource& source, const RowView* rows, int64_t count, int64_t first, int64_t last,
              Out* out) {
  if constexpr (Format::kScaled) {
    if (count > kMaxRows + 2) return unpacked_rows<Format>(source, rows, count, first, last, out);
  }
  for (int64_t m = 0; m < count;) {
    const int64_t left = count - m;
    int64_t taken = std::min<int64_t>(left, kMaxRows);
    if (left == 1) {
      rows_pass<Format, 1>(source, rows + m, 1, first, last, out + m * kTile);
    } else if (left == 2) {
      rows_pass<Format, 2>(source, rows + m, 2, first, last, out + m * kTile);
    } else if (left <= 4 || kMaxRows == 4) {
      taken = std::min<int64_t>(left, 4);
      rows_pass<Format, 4>(source, rows + m, taken, first, last, out + m * kTile);
    } else {
      rows_pass<Format, kMaxRows>(source, rows + m, taken, first, last, out + m * kTile);
    }
    m += taken;
  }
}

template <typename Out>
HWY_INLINE void packed_product(WeightFormat format, const TileSource& source, const RowView* rows,
                               int64_t count, int64_t first, int64_t last, Out* out) {
  switch (format) {
    case WeightFormat::kFp8:
      return all_rows<Fp8>(source, rows, count, first, last, out);
    case WeightFormat::kFp4:
      return all_rows<Fp4>(source, rows, count, first, last, out);
    case WeightFormat::kBf16:
      return all_rows<Bf16>(source, rows, count, first, last, out);
    case WeightFormat::kF32:
      return;  // f32_product_simd
  }
}

void tile_product_simd(WeightFormat format, const uint8_t* data, const uint8_t* scales, const RowView* rows,
                       int64_t count, int64_t first, int64_t last, float* out) {
  packed_product(format, {data, scales}, rows, count, first, last, out);
}
void tile_product_double_simd(WeightFormat format, const uint8_t* data, const uint8_t* scales,
                              const RowView* rows, int64_t count, int64_t first, int64_t last, double* out) {
  packed_product(format, {data, scales}, rows, count, first, last, out);
}

}  // namespace spark::engine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spark::engine::cpu {

HWY_EXPORT(tile_product_simd);
HWY_EXPORT(tile_product_double_simd);
HWY_EXPORT(f32_product_simd);

namespace {

const uint8_t* scales_of(const PackedWeight& weight, int64_t tile) {
  const uint8_t* scales = weight.scales.as<uint8_t>();
  if (weight.format == WeightFormat::kFp8) scales += tile * weight.blocks * 4;
  if (weight.format == WeightFormat::kFp4) scales += tile * weight.blocks * kTile;
  return scales;
}

// Rows with pairs alone go nowhere else, few or many.
bool on_tile_unit(const RowView& row, int64_t count) {
  return row.pairs != nullptr && (row.x == nullptr || count >= kTileUnitRows);
}

}  // namespace

bool takes_tile_unit(WeightFormat format, int64_t rows) {
  const bool codes = format == WeightFormat::kFp8 || format == WeightFormat::kFp4;
  return codes && rows >= kTileUnitRows && tile_unit_usable();
}

void tile_product_double(const PackedWeight& weight, int64_t tile, const RowView* rows, int64_t count,
                         int64_t first, int64_t last, double* out) {
  if (weight.format == WeightFormat::kF32) {
    HWY_DYNAMIC_DISPATCH(f32_product_simd)
    (weight.tile_data(tile), rows, count, first, last, std::min<int64_t>(kTile, weight.rows - tile * kTile),
     out);
    return;
  }
  if (on_tile_unit(*rows, count)) {
    return tile_unit_product(weight.format, weight.tile_data(tile), scales_of(weight, tile), rows, count,
                             first, last, out);
  }
  HWY_DYNAMIC_DISPATCH(tile_product_double_simd)
  (weight.format, weight.tile_data(tile), scales_of(weight, tile), rows, count, first, last, out);
}

void tile_product(const PackedWeight& weight, int64_t tile, const RowView* rows, int64_t count, int64_t first,
                  int64_t last, float* out) {
  if (weight.format == WeightFormat::kF32) {
    double sums[kRowGroup * kTile];
    for (int64_t m = 0; m < count; m += kRowGroup) {
      const int64_t group = std::min<int64_t>(kRowGroup, count - m);
      tile_product_double(weight, tile, rows + m, group, first, last, sums);
      for (int64_t i = 0; i < group * kTile; ++i) out[m * kTile + i] = static_cast<float>(sums[i]);
    }
    return;
  }
  if (on_tile_unit(*rows, count)) {
    return tile_unit_product(weight.format, weight.tile_data(tile), scales_of(weight, tile), rows, count,
                             first, last, out);
  }
  HWY_DYNAMIC_DISPATCH(tile_product_simd)
  (weight.format, weight.tile_data(tile), scales_of(weight, tile), rows, count, first, last, out);
}

void tile_product_fp4(const uint32_t* words, const uint8_t* scales, int64_t blocks, const RowView* rows,
                      int64_t count, float* out) {
  const auto* data = reinterpret_cast<const uint8_t*>(words);
  if (on_tile_unit(*rows, count))
    return tile_unit_product(WeightFormat::kFp4, data, scales, rows, count, 0, blocks, out);
  HWY_DYNAMIC_DISPATCH(tile_product_simd)
  (WeightFormat::kFp4, data, scales, rows, count, 0, blocks, out);
}

}  // namespace spark::engine::cpu
#endif
