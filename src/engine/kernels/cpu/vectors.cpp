#include "engine/kernels/cpu/vectors.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/kernels/cpu/packed_weight.h"
#include "engine/numeric/bf16.h"
#include "engine/numeric/e4m3.h"
#include "engine/numeric/ue8m0.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/vectors.cpp"
// The order matters: the choice of targets, the loop over them, then highway.h.
// clang-format off
#include "engine/kernels/cpu/simd_targets.h"
#include <hwy/foreach_target.h>
#include "engine/kernels/cpu/simd_inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace spark::engine::cpu::HWY_NAMESPACE {

constexpr uint32_t kInfinityBits = 0x7F800000u;

// Pairs of one rotation, at most 8 per vector: small rotary widths fill it too.
using DPair = hn::CappedTag<float, 8>;
using DPairU = hn::Rebind<uint32_t, DPair>;
constexpr int kPairLanes = static_cast<int>(hn::MaxLanes(DPair()));
using VPair = hn::Vec<DPair>;

struct RotatedPairs {
  VPair a, b;
};

// A 32-bit word holds a pair of BF16 values. Products are rounded one by one, as the contract says.
HWY_INLINE RotatedPairs rotate_pairs(const uint16_t* x, const float* cos_sin, bool inverse) {
  const DPair d;
  const DPairU du;
  const auto words = hn::BitCast(du, hn::LoadU(hn::Repartition<uint16_t, DPair>(), x));
  const VPair a = hn::BitCast(d, hn::ShiftLeft<16>(words));
  const VPair b = hn::BitCast(d, hn::And(words, hn::Set(du, 0xFFFF0000u)));
  VPair c, s;
  hn::LoadInterleaved2(d, cos_sin, c, s);
  if (inverse) s = hn::Neg(s);
  return {hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), hn::Add(hn::Mul(a, s), hn::Mul(b, c))};
}

HWY_INLINE hn::Vec<DPairU> pair_bf16_bits(VPair v) {
  const DPairU du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFFu)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x00400000u));
  const auto chosen = hn::IfThenElse(hn::RebindMask(du, hn::Ne(v, v)), quiet, rounded);
  return hn::And(chosen, hn::Set(du, 0xFFFF0000u));
}

struct ScalarPair {
  float a, b;
};
HWY_INLINE ScalarPair rotate_pair(const uint16_t* x, const float* cos_sin, bool inverse) {
  const float a = bf16_to_float(x[0]);
  const float b = bf16_to_float(x[1]);
  const float c = cos_sin[0];
  const float s = inverse ? -cos_sin[1] : cos_sin[1];
  return {a * c - b * s, a * s + b * c};
}

void rotate_simd(uint16_t* x, int64_t width, const float* cos_sin, int pairs, bool inverse) {
  uint16_t* tail = x + width - 2 * pairs;
  int i = 0;
  for (; i + kPairLanes <= pairs; i += kPairLanes) {
    const RotatedPairs r = rotate_pairs(tail + 2 * i, cos_sin + 2 * i, inverse);
    const auto words = hn::Or(hn::ShiftRight<16>(pair_bf16_bits(r.a)), pair_bf16_bits(r.b));
    const hn::Repartition<uint16_t, DPair> d16;
    hn::StoreU(hn::BitCast(d16, words), d16, tail + 2 * i);
  }
  for (; i < pairs; ++i) {
    const ScalarPair r = rotate_pair(tail + 2 * i, cos_sin + 2 * i, inverse);
    tail[2 * i] = float_to_bf16(r.a);
    tail[2 * i + 1] = float_to_bf16(r.b);
  }
}

void rotated_floats_simd(const uint16_t* x, int64_t width, const float* cos_sin, int pairs, float* out) {
  for (int64_t i = 0; i < width; i += kLanes) store(load_bf16(x + i), out + i);
  const DPair d;
  const uint16_t* from = x + width - 2 * pairs;
  float* tail = out + width - 2 * pairs;
  int i = 0;
  for (; i + kPairLanes <= pairs; i += kPairLanes) {
    const RotatedPairs r = rotate_pairs(from + 2 * i, cos_sin + 2 * i, false);
    hn::StoreInterleaved2(hn::BitCast(d, pair_bf16_bits(r.a)), hn::BitCast(d, pair_bf16_bits(r.b)), d,
                          tail + 2 * i);
  }
  for (; i < pairs; ++i) {
    const ScalarPair r = rotate_pair(from + 2 * i, cos_sin + 2 * i, false);
    tail[2 * i] = round_to_bf16(r.a);
    tail[2 * i + 1] = round_to_bf16(r.b);
  }
}

HWY_INLINE VU one_if(hn::Mask<DF> mask) {
  return hn::IfThenElseZero(hn::RebindMask(DU(), mask), hn::Set(DU(), 1u));
}

// The nearest E2M1 code in each 32-bit lane. See float_to_e2m1 (finite inputs only here).
HWY_INLINE VU encode_e2m1(VF v) {
  const DU du;
  const VF m = hn::Abs(v);
  VU code = hn::And(hn::ShiftRight<28>(hn::BitCast(du, v)), hn::Set(du, 8u));
  code = hn::Add(code, one_if(hn::Gt(m, set(0.25F))));
  code = hn::Add(code, one_if(hn::Ge(m, set(0.75F))));
  code = hn::Add(code, one_if(hn::Gt(m, set(1.25F))));
  code = hn::Add(code, one_if(hn::Ge(m, set(1.75F))));
  code = hn::Add(code, one_if(hn::Gt(m, set(2.5F))));
  code = hn::Add(code, one_if(hn::Ge(m, set(3.5F))));
  return hn::Add(code, one_if(hn::Gt(m, set(5.0F))));
}

HWY_INLINE void pack_nibbles(const uint8_t* codes, int count, uint8_t* packed) {
  for (int i = 0; i < count / 2; ++i)
    packed[i] = static_cast<uint8_t>(codes[2 * i] | (codes[2 * i + 1] << 4));
}

void quantise_fp4_ue8m0_simd(const float* x, int64_t n, uint8_t* packed, uint8_t* scales) {
  HWY_ALIGN uint8_t codes[kBlock];
  for (int64_t b = 0; b < n / kBlock; ++b, x += kBlock, packed += kBlock / 2) {
    const uint32_t largest = largest_magnitude(x, kBlock);
    if (largest >= kInfinityBits) {
      scales[b] = kUe8m0Nan;
      std::memset(packed, 0, kBlock / 2);
      continue;
    }
    const float amax = std::max(std::bit_cast<float>(largest), 0x1.8p-124F);
    scales[b] = ue8m0_ceil(amax * std::bit_cast<float>(0x3E2AAAABu));
    const VF inverse = set(ue8m0_to_float(static_cast<uint8_t>(254 - scales[b])));  // scale: 1 .. 253
    for (size_t i = 0; i < kBlock; i += kLanes)
      hn::StoreU(hn::TruncateTo(DU8(), encode_e2m1(hn::Mul(load(x + i), inverse))), DU8(), codes + i);
    pack_nibbles(codes, kBlock, packed);
  }
}

void quantise_fp4_e4m3_simd(const float* x, int64_t n, uint8_t* packed, uint8_t* scales) {
  HWY_ALIGN uint8_t codes[16];
  for (int64_t b = 0; b < n / 16; ++b, x += 16, packed += 8) {
    const uint32_t largest = largest_magnitude(x, 16);
    if (largest >= kInfinityBits) {
      scales[b] = kE4m3Nan;
      std::memset(packed, 0, 8);
      continue;
    }
    scales[b] = float_to_e4m3(std::max(std::bit_cast<float>(largest), 0x1.8p-7F) / 6.0F);
    const VF divisor = set(e4m3_to_float(scales[b]));
    for (size_t i = 0; i < 16; i += kLanes)
      hn::StoreU(hn::TruncateTo(DU8(), encode_e2m1(hn::Div(load(x + i), divisor))), DU8(), codes + i);
    pack_nibbles(codes, 16, packed);
  }
}

// 16 nibbles to twice their values, as floats.
HWY_INLINE void decode_sixteen(const uint8_t* packed, float* out, VF scale) {
  const hn::FixedTag<uint8_t, 16> d8;
  const hn::FixedTag<uint16_t, 8> d16;
  HWY_ALIGN static constexpr uint8_t kValues[16] = {0, 1,   2,   3,   4,   6,   8,   12,
                                                    0, 255, 254, 253, 252, 250, 248, 244};
  const auto bytes = hn::PromoteTo(d16, hn::LoadU(hn::FixedTag<uint8_t, 8>(), packed));
  const auto low = hn::And(bytes, hn::Set(d16, static_cast<uint16_t>(0x0F)));
  const auto high = hn::And(hn::ShiftLeft<4>(bytes), hn::Set(d16, static_cast<uint16_t>(0x0F00)));
  HWY_ALIGN uint8_t values[16];
  hn::Store(hn::TableLookupBytes(hn::Load(d8, kValues), hn::BitCast(d8, hn::Or(low, high))), d8, values);
  const hn::Rebind<int8_t, DF> di8;
  for (size_t i = 0; i < 16; i += kLanes) {
    const auto integers = hn::PromoteTo(DI(), hn::LoadU(di8, reinterpret_cast<const int8_t*>(values) + i));
    store(hn::Mul(hn::ConvertTo(DF(), integers), scale), out + i);
  }
}

void decode_fp4_row_simd(const uint8_t* packed, const uint8_t* scales, int64_t n, float* x, float* scale) {
  for (int64_t i = 0; i < n; i += 16) decode_sixteen(packed + i / 2, x + i, set(1.0F));
  for (int64_t b = 0; b < n / kBlock; ++b) scale[b] = 0.5F * ue8m0_to_float(scales[b]);
}

void decode_window_record_simd(const uint8_t* record, int64_t width, float* out) {
  const uint8_t* scales = record + width;
  for (int64_t i = 0; i < width; i += kBlock) {
    const VF scale = set(ue8m0_to_float(scales[i / kBlock]));
    for (size_t k = 0; k < kBlock; k += kLanes) {
      const int64_t at = i + static_cast<int64_t>(k);
      store(hn::Mul(decode_e4m3(hn::LoadU(DU8(), record + at)), scale), out + at);
    }
  }
}

void decode_main_record_simd(const uint8_t* record, int64_t width, float* out) {
  const uint8_t* scales = record + width / 2;
  for (int64_t i = 0; i < width; i += 16)
    decode_sixteen(record + i / 2, out + i, set(0.5F * kE4m3Values[scales[i / 16]]));
}

void pool_pair_simd(const float* kv0, const float* score0, const float* kv1, const float* score1,
                    int64_t width, uint16_t* pooled) {
  for (int64_t c = 0; c < width; c += kLanes) {
    const VF s0 = load(score0 + c);
    const VF s1 = load(score1 + c);
    const VF largest = hn::IfThenElse(hn::Lt(s0, s1), s1, s0);
    const VF e0 = exp_float(hn::Sub(s0, largest));
    const VF e1 = exp_float(hn::Sub(s1, largest));
    const VF sum = hn::Add(e0, e1);
    const VF first = hn::Mul(hn::Div(e0, sum), load(kv0 + c));
    store_bf16(hn::Add(first, hn::Mul(hn::Div(e1, sum), load(kv1 + c))), pooled + c);
  }
}

// The sum of the four rows, in double and rounded once.
HWY_INLINE V4 sum_of_rows(const Matrix4& a) {
  const D4 d;
  const hn::FixedTag<float, 2> half;
  const hn::FixedTag<double, 2> wide;
  auto low = hn::PromoteTo(wide, hn::LowerHalf(half, a.r[0]));
  auto high = hn::PromoteTo(wide, hn::UpperHalf(half, a.r[0]));
#pragma GCC unroll 4
  for (int i = 1; i < 4; ++i) {
    low = hn::Add(low, hn::PromoteTo(wide, hn::LowerHalf(half, a.r[i])));
    high = hn::Add(high, hn::PromoteTo(wide, hn::UpperHalf(half, a.r[i])));
  }
  return hn::Combine(d, hn::DemoteTo(half, high), hn::DemoteTo(half, low));
}
HWY_INLINE void divide_by_column_sums(Matrix4& a, V4 eps) {
  const V4 divisor = hn::Add(sum_of_rows(a), eps);
  for (V4& row : a.r) row = hn::Div(row, divisor);
}

// comb: the exponentials of the row softmax in, the result out.
HWY_INLINE void sinkhorn4(float* comb, int iterations, float eps) {
  const D4 d;
  const V4 e = hn::Set(d, eps);
  Matrix4 a;
  for (int i = 0; i < 4; ++i) a.r[i] = hn::LoadU(d, comb + 4 * i);
  a = transposed(a);
  const V4 sums = sum_of_rows(a);
  for (V4& column : a.r) column = hn::Add(hn::Div(column, sums), e);
  a = transposed(a);
  divide_by_column_sums(a, e);
  for (int i = 1; i < iterations; ++i) {
    a = transposed(a);
    divide_by_column_sums(a, e);
    a = transposed(a);
    divide_by_column_sums(a, e);
  }
  for (int i = 0; i < 4; ++i) hn::StoreU(a.r[i], d, comb + 4 * i);
}

// As many matrices side by side as there are doubles in a vector: a[i][j] has element (i, j) of each. One
// matrix alone waits for its divisions. The operations on an element are those of sinkhorn4().
using VHalf = hn::Vec<DFHalf>;
HWY_INLINE VHalf sum_of_four(VHalf a, VHalf b, VHalf c, VHalf d) {
  const VD first = hn::Add(hn::PromoteTo(DD(), a), hn::PromoteTo(DD(), b));
  return hn::DemoteTo(DFHalf(), hn::Add(hn::Add(first, hn::PromoteTo(DD(), c)), hn::PromoteTo(DD(), d)));
}
HWY_INLINE void divide_by_row_sums(VHalf (&a)[4][4], VHalf eps) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const VHalf divisor = hn::Add(sum_of_four(a[i][0], a[i][1], a[i][2], a[i][3]), eps);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) a[i][j] = hn::Div(a[i][j], divisor);
  }
}
HWY_INLINE void divide_by_column_sums(VHalf (&a)[4][4], VHalf eps) {
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const VHalf divisor = hn::Add(sum_of_four(a[0][j], a[1][j], a[2][j], a[3][j]), eps);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) a[i][j] = hn::Div(a[i][j], divisor);
  }
}

// comb: [count][16], count <= kDoubles.
HWY_NOINLINE void sinkhorn4_together(float* comb, int count, int iterations, float eps) {
  HWY_ALIGN float lanes[16 * kDoubles];
  for (size_t lane = 0; lane < kDoubles; ++lane) {
    const float* from = comb + 16 * std::min(static_cast<int>(lane), count - 1);
    for (size_t i = 0; i < 16; ++i) lanes[i * kDoubles + lane] = from[i];
  }
  const VHalf e = hn::Set(DFHalf(), eps);
  VHalf a[4][4];
#pragma GCC unroll 16
  for (size_t i = 0; i < 16; ++i) a[i / 4][i % 4] = hn::Load(DFHalf(), lanes + i * kDoubles);
  divide_by_row_sums(a, hn::Zero(DFHalf()));
#pragma GCC unroll 16
  for (size_t i = 0; i < 16; ++i) a[i / 4][i % 4] = hn::Add(a[i / 4][i % 4], e);
  divide_by_column_sums(a, e);
  for (int i = 1; i < iterations; ++i) {
    divide_by_row_sums(a, e);
    divide_by_column_sums(a, e);
  }
#pragma GCC unroll 16
  for (size_t i = 0; i < 16; ++i) hn::Store(a[i / 4][i % 4], DFHalf(), lanes + i * kDoubles);
  for (int m = 0; m < count; ++m) {
    for (size_t i = 0; i < 16; ++i)
      comb[16 * m + static_cast<int>(i)] = lanes[i * kDoubles + static_cast<size_t>(m)];
  }
}

HWY_INLINE void divide_lines(float* c, int size, int outer_step, int inner_step, float eps) {
  for (int o = 0; o < size; ++o) {
    double sum = 0;
    for (int i = 0; i < size; ++i) sum += static_cast<double>(c[o * outer_step + i * inner_step]);
    const float divisor = static_cast<float>(sum) + eps;
    for (int i = 0; i < size; ++i) c[o * outer_step + i * inner_step] /= divisor;
  }
}

HWY_INLINE void sinkhorn(float* comb, int size, int iterations, float eps) {
  divide_lines(comb, size, size, 1, 0.0F);
  for (int i = 0; i < size * size; ++i) comb[i] += eps;
  divide_lines(comb, size, 1, size, eps);
  for (int i = 1; i < iterations; ++i) {
    divide_lines(comb, size, size, 1, eps);
    divide_lines(comb, size, 1, size, eps);
  }
}

// All of one row but the Sinkhorn iterations; comb gets the exponentials of its row softmax.
HWY_INLINE void mhc_gates(float* m, const float* scale, const float* base, int streams, float eps, float* pre,
                          float* post, float* comb) {
  const int mixes = 2 * streams + streams * streams;
  // Arguments of exp for all of them at once: -z for the sigmoids, z - max for the softmax rows.
  for (int i = 0; i < mixes; ++i) {
    const int group = i < streams ? 0 : i < 2 * streams ? 1 : 2;
    m[i] = m[i] * scale[group] + base[i];
  }
  for (int i = 0; i < 2 * streams; ++i) m[i] = -m[i];
  for (int row = 0; row < streams; ++row) {
    float* logits = m + 2 * streams + row * streams;
    const float largest = *std::max_element(logits, logits + streams);
    for (int j = 0; j < streams; ++j) logits[j] -= largest;
  }
  HWY_ALIGN double e[kTile];
  for (size_t i = 0; i < kTile; i += kDoubles) hn::Store(exp_double(load_doubles(m + i)), DD(), e + i);
  for (int k = 0; k < streams; ++k) {
    pre[k] = static_cast<float>(1.0 / (1.0 + e[k])) + eps;
    post[k] = 2.0F * static_cast<float>(1.0 / (1.0 + e[streams + k]));
  }
  for (int i = 2 * streams; i < mixes; ++i) comb[i - 2 * streams] = static_cast<float>(e[i]);
}

void mhc_coefficients_simd(float* m, int rows, const float* scale, const float* base, int streams,
                           int iterations, float eps, float* pre, float* post, float* comb) {
  const int square = streams * streams;
  for (int row = 0; row < rows; ++row) {
    mhc_gates(m + row * kTile, scale, base, streams, eps, pre + row * streams, post + row * streams,
              comb + row * square);
  }
  for (int row = 0; row < rows;) {
    const int count = std::min(rows - row, static_cast<int>(kDoubles));
    float* at = comb + row * square;
    if (streams == 4 && count > 1) {
      sinkhorn4_together(at, count, iterations, eps);
      row += count;
      continue;
    }
    if (streams == 4) {
      sinkhorn4(at, iterations, eps);
    } else {
      sinkhorn(at, streams, iterations, eps);
    }
    ++row;
  }
}

}  // namespace spark::engine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spark::engine::cpu {

HWY_EXPORT(rotate_simd);
HWY_EXPORT(rotated_floats_simd);
HWY_EXPORT(quantise_fp4_ue8m0_simd);
HWY_EXPORT(quantise_fp4_e4m3_simd);
HWY_EXPORT(decode_fp4_row_simd);
HWY_EXPORT(decode_window_record_simd);
HWY_EXPORT(decode_main_record_simd);
HWY_EXPORT(pool_pair_simd);
HWY_EXPORT(mhc_coefficients_simd);

void rotate(uint16_t* x, int64_t width, const float* cos_sin, int pairs, bool inverse) {
  HWY_DYNAMIC_DISPATCH(rotate_simd)(x, width, cos_sin, pairs, inverse);
}
void rotated_floats(const uint16_t* x, int64_t width, const float* cos_sin, int pairs, float* out) {
  HWY_DYNAMIC_DISPATCH(rotated_floats_simd)(x, width, cos_sin, pairs, out);
}
void quantise_fp4_ue8m0(const float* x, int64_t n, uint8_t* packed, uint8_t* scales) {
  HWY_DYNAMIC_DISPATCH(quantise_fp4_ue8m0_simd)(x, n, packed, scales);
}
void quantise_fp4_e4m3(const float* x, int64_t n, uint8_t* packed, uint8_t* scales) {
  HWY_DYNAMIC_DISPATCH(quantise_fp4_e4m3_simd)(x, n, packed, scales);
}
void decode_fp4_row(const uint8_t* packed, const uint8_t* scales, int64_t n, float* x, float* scale) {
  HWY_DYNAMIC_DISPATCH(decode_fp4_row_simd)(packed, scales, n, x, scale);
}
void decode_window_record_f32(const uint8_t* record, int64_t width, float* out) {
  HWY_DYNAMIC_DISPATCH(decode_window_record_simd)(record, width, out);
}
void decode_main_record_f32(const uint8_t* record, int64_t width, float* out) {
  HWY_DYNAMIC_DISPATCH(decode_main_record_simd)(record, width, out);
}
void pool_pair(const float* kv0, const float* score0, const float* kv1, const float* score1, int64_t width,
               uint16_t* pooled) {
  HWY_DYNAMIC_DISPATCH(pool_pair_simd)(kv0, score0, kv1, score1, width, pooled);
}
void mhc_coefficients(float* m, int rows, const float* scale, const float* base, int streams, int iterations,
                      float eps, float* pre, float* post, float* comb) {
  HWY_DYNAMIC_DISPATCH(mhc_coefficients_simd)
  (m, rows, scale, base, streams, iterations, eps, pre, post, comb);
}

}  // namespace spark::engine::cpu
#endif
