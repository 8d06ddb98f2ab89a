#include "engine/kernels/cpu/rows.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "engine/kernels/cpu/packed_weight.h"
#include "engine/numeric/bf16.h"
#include "engine/numeric/ue8m0.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/rows.cpp"
// The order matters: the choice of targets, the loop over them, then highway.h.
// clang-format off
#include "engine/kernels/cpu/simd_targets.h"
#include <hwy/foreach_target.h>
#include "engine/kernels/cpu/simd_inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace spark::engine::cpu::HWY_NAMESPACE {

constexpr uint32_t kInfinityBits = 0x7F800000u;

// Quantises 32 floats; returns the scale's byte.
HWY_INLINE uint8_t quantise_block(const float* x, uint8_t* codes) {
  const uint32_t largest = largest_magnitude(x, kBlock);
  if (largest >= kInfinityBits) {
    std::memset(codes, 0, kBlock);
    return kUe8m0Nan;
  }
  const float amax = std::bit_cast<float>(largest);
  const uint8_t scale = ue8m0_ceil((amax > 1e-4F ? amax : 1e-4F) * std::bit_cast<float>(0x3B124925u));
  const VF inverse = set(ue8m0_to_float(static_cast<uint8_t>(254 - scale)));  // scale: 105 .. 247
  for (size_t i = 0; i < kBlock; i += kLanes) {
    hn::StoreU(hn::TruncateTo(DU8(), encode_e4m3(hn::Mul(load(x + i), inverse))), DU8(), codes + i);
  }
  return scale;
}

void floats_from_bf16_simd(const uint16_t* x, int64_t n, float* out) {
  const int64_t whole = n / 16 * 16;
  for (int64_t i = 0; i < whole; i += kLanes) store(load_bf16(x + i), out + i);
  for (int64_t i = whole; i < padded(n); ++i) out[i] = i < n ? bf16_to_float(x[i]) : 0.0F;
}

void floats_from_codes_simd(const uint8_t* codes, const uint8_t* scales, int64_t n, float* x, float* scale) {
  for (int64_t i = 0; i < n; i += kLanes) store(decode_e4m3(hn::LoadU(DU8(), codes + i)), x + i);
  for (int64_t b = 0; b < n / kBlock; ++b) scale[b] = ue8m0_to_float(scales[b]);
}

// Bytes in the order of RowView::pairs, eight by eight.
HWY_INLINE void pair_up(const uint8_t* codes, int64_t n, uint8_t* out) {
  const hn::FixedTag<uint8_t, 16> d8;
  HWY_ALIGN static constexpr uint8_t kOrder[16] = {0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15};
  const auto order = hn::Load(d8, kOrder);
  for (int64_t i = 0; i < n; i += 16)
    hn::StoreU(hn::TableLookupBytes(hn::LoadU(d8, codes + i), order), d8, out + i);
}
// Code values are exact in BF16.
HWY_INLINE void store_pairs(const uint8_t* codes, uint16_t* pairs) {
  HWY_ALIGN uint8_t ordered[kBlock];
  pair_up(codes, kBlock, ordered);
  for (size_t i = 0; i < kBlock; i += kLanes) {
    const VU bits = hn::BitCast(DU(), decode_e4m3(hn::Load(DU8(), ordered + i)));
    hn::StoreU(hn::TruncateTo(DU16(), hn::ShiftRight<16>(bits)), DU16(), pairs + i);
  }
}

void pairs_from_codes_simd(const uint8_t* codes, const uint8_t* scales, int64_t n, uint16_t* pairs,
                           float* scale) {
  for (int64_t i = 0; i < n; i += kBlock) store_pairs(codes + i, pairs + i);
  for (int64_t b = 0; b < n / kBlock; ++b) scale[b] = ue8m0_to_float(scales[b]);
}

void store_tile_bf16_simd(const float* tile, int64_t rows, int lanes, uint16_t* y, int64_t stride) {
  for (int64_t m = 0; m < rows; ++m, tile += kTile, y += stride) {
    if (lanes == kTile) {
      for (size_t i = 0; i < kTile; i += kLanes) store_bf16(load(tile + i), y + i);
    } else {
      for (int i = 0; i < lanes; ++i) y[i] = float_to_bf16(tile[i]);
    }
  }
}

void quantise_floats_simd(const float* x, int64_t n, uint8_t* codes, uint8_t* scales) {
  for (int64_t b = 0; b < n / kBlock; ++b) scales[b] = quantise_block(x + b * kBlock, codes + b * kBlock);
}

void quantise_row_simd(const uint16_t* x, int64_t n, uint8_t* codes, uint8_t* scales) {
  HWY_ALIGN float block[kBlock];
  for (int64_t b = 0; b < n / kBlock; ++b) {
    for (size_t i = 0; i < kBlock; i += kLanes) hn::Store(load_bf16(x + b * kBlock + i), DF(), block + i);
    scales[b] = quantise_block(block, codes + b * kBlock);
  }
}

// Adds term(offset) of n elements (a multiple of 32) to the 32 lanes.
template <typename Term>
HWY_INLINE double lane_sum(int64_t n, const Term& term) {
  LaneSums sums;
  for (int64_t i = 0; i < n; i += kSumLanes) {
#pragma GCC unroll 16
    for (size_t v = 0; v < kSumVectors; v += 2) term.add(sums.v + v, i + static_cast<int64_t>(v * kDoubles));
  }
  return sum_lanes(sums);
}

HWY_INLINE void add_products(VF a, VF b, VD* sums) {
  sums[0] = hn::MulAdd(low_doubles(a), low_doubles(b), sums[0]);
  sums[1] = hn::MulAdd(high_doubles(a), high_doubles(b), sums[1]);
}
HWY_INLINE void add_values(VF a, VD* sums) {
  sums[0] = hn::Add(low_doubles(a), sums[0]);
  sums[1] = hn::Add(high_doubles(a), sums[1]);
}

struct SquareBf16 {
  const uint16_t* x;
  HWY_INLINE void add(VD* sums, int64_t i) const {
    const VF v = load_bf16(x + i);
    add_products(v, v, sums);
  }
};
struct SquareF32 {
  const float* x;
  HWY_INLINE void add(VD* sums, int64_t i) const {
    const VF v = load(x + i);
    add_products(v, v, sums);
  }
};
struct ProductBf16 {
  const uint16_t* a;
  const uint16_t* b;
  HWY_INLINE void add(VD* sums, int64_t i) const { add_products(load_bf16(a + i), load_bf16(b + i), sums); }
};
struct TripleBf16 {
  const uint16_t* h;
  const uint16_t* key;
  const uint16_t* q;
  const uint16_t* k;
  HWY_INLINE void add(VD* sums, int64_t i) const {
    const VF w = hn::Mul(load_bf16(q + i), load_bf16(k + i));
    add_values(hn::Mul(hn::Mul(load_bf16(h + i), w), load_bf16(key + i)), sums);
  }
};

HWY_INLINE float reciprocal_root(double sum, int64_t n, float eps) {
  const auto mean = static_cast<float>(sum / static_cast<double>(n));
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(mean + eps)));
}

// Normalises by r, block by block, so that the quantiser finds its input in registers or L1.
HWY_INLINE void scale_row(const uint16_t* x, const uint16_t* weight, int64_t n, float r, uint16_t* y,
                          uint8_t* codes, uint8_t* scales) {
  HWY_ALIGN float block[kBlock];
  const VF root = set(r);
  for (int64_t b = 0; b < n; b += kBlock) {
    for (size_t i = 0; i < kBlock; i += kLanes) {
      const int64_t at = b + static_cast<int64_t>(i);
      const VF v = round_bf16(hn::Mul(load_bf16(weight + at), hn::Mul(load_bf16(x + at), root)));
      hn::Store(v, DF(), block + i);
    }
    if (y != nullptr) {
      for (size_t i = 0; i < kBlock; i += kLanes)
        store_bf16(load(block + i), y + b + static_cast<int64_t>(i));
    }
    if (codes != nullptr) scales[b / kBlock] = quantise_block(block, codes + b);
  }
}

void rms_norm_row_simd(const uint16_t* x, const uint16_t* weight, int64_t n, float eps, uint16_t* y,
                       uint8_t* codes, uint8_t* scales) {
  const double sum = lane_sum(n, SquareBf16{x});
  scale_row(x, weight, n, reciprocal_root(sum, n, eps), y, codes, scales);
}

double sum_of_squares_simd(const float* x, int64_t n) {
  return lane_sum(n, SquareF32{x});
}

double dot_bf16_simd(const uint16_t* a, const uint16_t* b, int64_t n) {
  const int64_t whole = n / 32 * 32;
  double sum = lane_sum(whole, ProductBf16{a, b});
  for (int64_t i = whole; i < n; ++i)
    sum += static_cast<double>(bf16_to_float(a[i])) * static_cast<double>(bf16_to_float(b[i]));
  return sum;
}

// The sum of a few FP32 vectors, rounded once.
struct VectorSum {
  VD low, high;
  explicit HWY_INLINE VectorSum(VF first) : low(low_doubles(first)), high(high_doubles(first)) {}
  HWY_INLINE void add(VF v) {
    low = hn::Add(low, low_doubles(v));
    high = hn::Add(high, high_doubles(v));
  }
  HWY_INLINE VF rounded() const { return to_floats(low, high); }
};

template <int S>
HWY_INLINE VF weighted_streams(const uint16_t* h, const float* pre, int streams, int64_t hidden, int64_t d) {
  const int count = S > 0 ? S : streams;
  VectorSum sum(hn::Mul(set(pre[0]), load_bf16(h + d)));
  for (int k = 1; k < count; ++k) sum.add(hn::Mul(set(pre[k]), load_bf16(h + k * hidden + d)));
  return sum.rounded();
}

void collapse_row_simd(const uint16_t* h, const float* pre, const uint16_t* weight, int streams,
                       int64_t hidden, float eps, uint16_t* u, uint16_t* x, uint8_t* codes, uint8_t* scales) {
  for (int64_t d = 0; d < hidden; d += kLanes) {
    store_bf16(streams == 4 ? weighted_streams<4>(h, pre, 4, hidden, d)
                            : weighted_streams<0>(h, pre, streams, hidden, d),
               u + d);
  }
  rms_norm_row_simd(u, weight, hidden, eps, x, codes, scales);
}

template <int S>
HWY_INLINE void expand_streams(const uint16_t* y, const float* post, const float* comb, int64_t hidden,
                               uint16_t* h) {
  for (int64_t d = 0; d < hidden; d += kLanes) {
    const VF yd = load_bf16(y + d);
    VF old[S];
#pragma GCC unroll 8
    for (int i = 0; i < S; ++i) old[i] = load_bf16(h + i * hidden + d);
#pragma GCC unroll 8
    for (int j = 0; j < S; ++j) {
      VectorSum sum(hn::Mul(set(comb[j]), old[0]));
      for (int i = 1; i < S; ++i) sum.add(hn::Mul(set(comb[i * S + j]), old[i]));
      store_bf16(hn::Add(hn::Mul(set(post[j]), yd), sum.rounded()), h + j * hidden + d);
    }
  }
}

void expand_row_simd(const uint16_t* y, const float* post, const float* comb, int streams, int64_t hidden,
                     uint16_t* h) {
  switch (streams) {
    case 1:
      return expand_streams<1>(y, post, comb, hidden, h);
    case 2:
      return expand_streams<2>(y, post, comb, hidden, h);
    case 3:
      return expand_streams<3>(y, post, comb, hidden, h);
    default:
      return expand_streams<4>(y, post, comb, hidden, h);
  }
}

void mean_row_simd(const uint16_t* h, int streams, int64_t hidden, uint16_t* out) {
  const VF count = set(static_cast<float>(streams));
  for (int64_t d = 0; d < hidden; d += kLanes) {
    VectorSum sum(load_bf16(h + d));
    for (int k = 1; k < streams; ++k) sum.add(load_bf16(h + k * hidden + d));
    store_bf16(hn::Div(sum.rounded(), count), out + d);
  }
}

EngramSums engram_sums_simd(const uint16_t* h, const uint16_t* key, const uint16_t* q_weight,
                            const uint16_t* k_weight, int64_t hidden) {
  return {lane_sum(hidden, SquareBf16{h}), lane_sum(hidden, SquareBf16{key}),
          lane_sum(hidden, TripleBf16{h, key, q_weight, k_weight})};
}

void add_scaled_simd(const uint16_t* value, float gate, int64_t hidden, uint16_t* h) {
  const VF g = set(gate);
  for (int64_t d = 0; d < hidden; d += kLanes)
    store_bf16(hn::Add(load_bf16(h + d), hn::Mul(g, load_bf16(value + d))), h + d);
}

void dequantise_row_simd(const uint8_t* codes, const uint8_t* scales, int64_t n, uint16_t* x) {
  const DU du;
  for (int64_t i = 0; i < n; i += kLanes) {
    const auto code = hn::LoadU(DU8(), codes + i);
    const VU magnitude = hn::And(hn::PromoteTo(du, code), hn::Set(du, 0x7Fu));
    const auto is_nan = hn::RebindMask(DF(), hn::Eq(magnitude, hn::Set(du, 0x7Fu)));
    const VF nan = hn::BitCast(DF(), hn::Set(du, 0x7FC00000u));
    const VF value = hn::IfThenElse(is_nan, nan, decode_e4m3(code));
    store_bf16(hn::Mul(value, set(ue8m0_to_float(scales[i / kBlock]))), x + i);
  }
}

// Two passes: rows wait for their divisions together, and for their scales together.
void gated_tiles_simd(float* a, const float* b, int64_t rows, float limit, const float* weight,
                      const GatedOutput& out) {
  const VF high = set(limit);
  const VF low = set(-limit);
  for (int64_t m = 0; m < rows; ++m) {
    const VF row_weight = set(weight[m]);
    for (int64_t i = m * kTile; i < (m + 1) * kTile; i += kLanes) {
      VF gate = round_bf16(load(a + i));
      VF up = round_bf16(load(b + i));
      gate = hn::IfThenElse(hn::Gt(gate, high), high, gate);  // comparisons keep NaN, Min would not
      up = hn::IfThenElse(hn::Gt(up, high), high, up);
      up = hn::IfThenElse(hn::Lt(up, low), low, up);
      const VF silu = hn::Div(gate, hn::Add(set(1.0F), exp_float(hn::Neg(gate))));
      store(round_bf16(hn::Mul(row_weight, hn::Mul(silu, up))), a + i);
    }
  }
  HWY_ALIGN uint8_t bytes[kTile];
  for (int64_t m = 0; m < rows; ++m) {
    out.scales[m * out.scales_stride] = ue8m0_to_float(quantise_block(a + m * kTile, bytes));
    if (out.pairs != nullptr) store_pairs(bytes, out.pairs + m * out.stride);
    if (out.codes == nullptr) continue;
    float* codes = out.codes + m * out.stride;
    for (size_t i = 0; i < kTile; i += kLanes) store(decode_e4m3(hn::Load(DU8(), bytes + i)), codes + i);
  }
}

void add_rounded_simd(const float* tile, float* sum) {
  for (size_t i = 0; i < kTile; i += kLanes)
    store(hn::Add(load(sum + i), round_bf16(load(tile + i))), sum + i);
}

}  // namespace spark::engine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spark::engine::cpu {

HWY_EXPORT(floats_from_bf16_simd);
HWY_EXPORT(floats_from_codes_simd);
HWY_EXPORT(pairs_from_codes_simd);
HWY_EXPORT(store_tile_bf16_simd);
HWY_EXPORT(quantise_floats_simd);
HWY_EXPORT(quantise_row_simd);
HWY_EXPORT(rms_norm_row_simd);
HWY_EXPORT(sum_of_squares_simd);
HWY_EXPORT(dot_bf16_simd);
HWY_EXPORT(collapse_row_simd);
HWY_EXPORT(expand_row_simd);
HWY_EXPORT(mean_row_simd);
HWY_EXPORT(engram_sums_simd);
HWY_EXPORT(add_scaled_simd);
HWY_EXPORT(dequantise_row_simd);
HWY_EXPORT(gated_tiles_simd);
HWY_EXPORT(add_rounded_simd);

void floats_from_bf16(const uint16_t* x, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(floats_from_bf16_simd)(x, n, out);
}
void floats_from_codes(const uint8_t* codes, const uint8_t* scales, int64_t n, float* x, float* scale) {
  HWY_DYNAMIC_DISPATCH(floats_from_codes_simd)(codes, scales, n, x, scale);
}
void pairs_from_codes(const uint8_t* codes, const uint8_t* scales, int64_t n, uint16_t* pairs, float* scale) {
  HWY_DYNAMIC_DISPATCH(pairs_from_codes_simd)(codes, scales, n, pairs, scale);
}
void store_tile_bf16(const float* tile, int64_t rows, int lanes, uint16_t* y, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(store_tile_bf16_simd)(tile, rows, lanes, y, stride);
}
void store_tile_f32(const float* tile, int64_t rows, int lanes, float* y, int64_t stride) {
  for (int64_t m = 0; m < rows; ++m)
    std::memcpy(y + m * stride, tile + m * kTile, static_cast<size_t>(lanes) * sizeof(float));
}
void store_tile_f64(const double* tile, int64_t rows, int lanes, double* y, int64_t stride) {
  for (int64_t m = 0; m < rows; ++m)
    std::memcpy(y + m * stride, tile + m * kTile, static_cast<size_t>(lanes) * sizeof(double));
}
void quantise_row(const uint16_t* x, int64_t n, uint8_t* codes, uint8_t* scales) {
  HWY_DYNAMIC_DISPATCH(quantise_row_simd)(x, n, codes, scales);
}
void quantise_floats(const float* x, int64_t n, uint8_t* codes, uint8_t* scales) {
  HWY_DYNAMIC_DISPATCH(quantise_floats_simd)(x, n, codes, scales);
}
void rms_norm_row(const uint16_t* x, const uint16_t* weight, int64_t n, float eps, uint16_t* y,
                  uint8_t* codes, uint8_t* scales) {
  HWY_DYNAMIC_DISPATCH(rms_norm_row_simd)(x, weight, n, eps, y, codes, scales);
}
double sum_of_squares(const float* x, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(sum_of_squares_simd)(x, n);
}
double dot_bf16(const uint16_t* a, const uint16_t* b, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(dot_bf16_simd)(a, b, n);
}
void collapse_row(const uint16_t* h, const float* pre, const uint16_t* weight, int streams, int64_t hidden,
                  float eps, uint16_t* u, uint16_t* x, uint8_t* codes, uint8_t* scales) {
  HWY_DYNAMIC_DISPATCH(collapse_row_simd)(h, pre, weight, streams, hidden, eps, u, x, codes, scales);
}
void expand_row(const uint16_t* y, const float* post, const float* comb, int streams, int64_t hidden,
                uint16_t* h) {
  HWY_DYNAMIC_DISPATCH(expand_row_simd)(y, post, comb, streams, hidden, h);
}
void mean_row(const uint16_t* h, int streams, int64_t hidden, uint16_t* out) {
  HWY_DYNAMIC_DISPATCH(mean_row_simd)(h, streams, hidden, out);
}
EngramSums engram_sums(const uint16_t* h, const uint16_t* key, const uint16_t* q_weight,
                       const uint16_t* k_weight, int64_t hidden) {
  return HWY_DYNAMIC_DISPATCH(engram_sums_simd)(h, key, q_weight, k_weight, hidden);
}
void add_scaled(const uint16_t* value, float gate, int64_t hidden, uint16_t* h) {
  HWY_DYNAMIC_DISPATCH(add_scaled_simd)(value, gate, hidden, h);
}
void dequantise_row(const uint8_t* codes, const uint8_t* scales, int64_t n, uint16_t* x) {
  HWY_DYNAMIC_DISPATCH(dequantise_row_simd)(codes, scales, n, x);
}
void gated_tiles(float* a, const float* b, int64_t rows, float limit, const float* weight,
                 const GatedOutput& out) {
  HWY_DYNAMIC_DISPATCH(gated_tiles_simd)(a, b, rows, limit, weight, out);
}
void add_rounded(const float* tile, float* sum) {
  HWY_DYNAMIC_DISPATCH(add_rounded_simd)(tile, sum);
}

}  // namespace spark::engine::cpu
#endif
