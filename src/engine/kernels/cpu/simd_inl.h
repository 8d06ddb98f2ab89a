// Vectors of up to 16 floats, whatever the instruction set has, and the number formats in them. Included once
// per target by the kernels (hence the toggling guard).
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "engine/kernels/cpu/simd_targets.h"

#if defined(SPARK_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPARK_CPU_SIMD_INL_H_
#undef SPARK_CPU_SIMD_INL_H_
#else
#define SPARK_CPU_SIMD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace spark::engine::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using DU = hn::Rebind<uint32_t, DF>;
using DI = hn::Rebind<int32_t, DF>;
using DU16 = hn::Rebind<uint16_t, DF>;
using DI16 = hn::Rebind<int16_t, DF>;
using DF16 = hn::Rebind<hwy::float16_t, DF>;
using DU8 = hn::Rebind<uint8_t, DF>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;

// Half as many doubles: sums whose last bits would show are formed in these.
using DD = hn::Repartition<double, DF>;
using DU64 = hn::Repartition<uint64_t, DF>;
using DFHalf = hn::Half<DF>;
using VD = hn::Vec<DD>;

constexpr size_t kLanes = hn::MaxLanes(DF());
constexpr size_t kDoubles = kLanes / 2;
// Sums along a row use 32 logical lanes on every target, see sum_lanes().
constexpr size_t kSumLanes = 32;
constexpr size_t kSumVectors = kSumLanes / kDoubles;

HWY_INLINE VF set(float x) {
  return hn::Set(DF(), x);
}
HWY_INLINE VF zero() {
  return hn::Zero(DF());
}
HWY_INLINE VF load(const float* p) {
  return hn::LoadU(DF(), p);
}
HWY_INLINE void store(VF v, float* p) {
  hn::StoreU(v, DF(), p);
}

HWY_INLINE VF load_bf16(const uint16_t* p) {
  return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), hn::LoadU(DU16(), p))));
}

// Round to nearest even; a NaN stays one.
HWY_INLINE VU bf16_bits(VF v) {
  const DU du;
  const VU bits = hn::BitCast(du, v);
  const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const VU rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFFu)));
  const VU quiet = hn::Or(bits, hn::Set(du, 0x00400000u));
  return hn::IfThenElse(hn::RebindMask(du, hn::Ne(v, v)), quiet, rounded);
}
HWY_INLINE VF round_bf16(VF v) {
  return hn::BitCast(DF(), hn::And(bf16_bits(v), hn::Set(DU(), 0xFFFF0000u)));
}
HWY_INLINE void store_bf16(VF v, uint16_t* p) {
  hn::StoreU(hn::TruncateTo(DU16(), hn::ShiftRight<16>(bf16_bits(v))), DU16(), p);
}

// e4m3(code) * 2^-8: the code's bits are those of a half-precision number with another exponent bias, and the
// hardware converts halves, subnormals included, at full speed. NaN codes come out as 480 * 2^-8.
constexpr float kE4m3HalfScale = 256.0F;
HWY_INLINE VF half_to_float(hn::Vec<DU16> half) {
  return hn::PromoteTo(DF(), hn::BitCast(DF16(), half));
}
HWY_INLINE VF decode_e4m3_half(hn::Vec<DU8> codes) {
  const DI16 di;
  const auto high = hn::BitCast(di, hn::ShiftLeft<8>(hn::PromoteTo(DU16(), codes)));
  const auto spread = hn::BitCast(DU16(), hn::ShiftRight<1>(high));
  return half_to_float(hn::And(spread, hn::Set(DU16(), static_cast<uint16_t>(0xBF80))));
}
HWY_INLINE VF decode_e4m3(hn::Vec<DU8> codes) {
  return hn::Mul(decode_e4m3_half(codes), set(kE4m3HalfScale));
}

// The nearest E4M3 code in each 32-bit lane, for |v| < 464. See float_to_e4m3.
HWY_INLINE VU encode_e4m3(VF v) {
  const DU du;
  const VU bits = hn::BitCast(du, v);
  const VU sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(du, 0x80u));
  const VF magnitude = hn::Abs(v);
  const VU m = hn::BitCast(du, magnitude);
  const VU odd = hn::And(hn::ShiftRight<20>(m), hn::Set(du, 1u));
  const VU rounded = hn::Add(m, hn::Add(odd, hn::Set(du, 0x7FFFFu)));
  const VU normal = hn::Sub(hn::ShiftRight<20>(rounded), hn::Set(du, 120u << 3));
  const VU small = hn::Sub(hn::BitCast(du, hn::Add(magnitude, set(16384.0F))), hn::Set(du, 0x46800000u));
  const auto is_small = hn::RebindMask(du, hn::Lt(magnitude, set(0.015625F)));
  return hn::Or(sign, hn::IfThenElse(is_small, small, normal));
}

HWY_INLINE VD set_double(double x) {
  return hn::Set(DD(), x);
}
HWY_INLINE VD low_doubles(VF v) {
  return hn::PromoteTo(DD(), hn::LowerHalf(DFHalf(), v));
}
HWY_INLINE VD high_doubles(VF v) {
  return hn::PromoteTo(DD(), hn::UpperHalf(DFHalf(), v));
}
HWY_INLINE VF to_floats(VD low, VD high) {
  return hn::Combine(DF(), hn::DemoteTo(DFHalf(), high), hn::DemoteTo(DFHalf(), low));
}
HWY_INLINE VD load_doubles(const float* p) {
  return hn::PromoteTo(DD(), hn::LoadU(DFHalf(), p));
}

// A 4x4 matrix as four rows.
using D4 = hn::FixedTag<float, 4>;
using V4 = hn::Vec<D4>;
struct Matrix4 {
  V4 r[4];
};
HWY_INLINE Matrix4 transposed(const Matrix4& a) {
  const D4 d;
  const hn::Repartition<uint64_t, D4> d64;
  const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, a.r[0], a.r[1]));
  const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d, a.r[2], a.r[3]));
  const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d, a.r[0], a.r[1]));
  const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d, a.r[2], a.r[3]));
  return {{hn::BitCast(d, hn::InterleaveLower(d64, low01, low23)),
           hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23)),
           hn::BitCast(d, hn::InterleaveLower(d64, high01, high23)),
           hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23))}};
}

// exp in double for arguments of FP32 results: x = n ln 2 + r, |r| <= ln 2 / 2, Taylor series to r^10
// (truncation 2e-13). n comes out of an addition that leaves it in the low bits.
HWY_INLINE VD exp_double(VD x) {
  const VD clamped = hn::Min(hn::Max(x, set_double(-120.0)), set_double(100.0));
  const VD shifted = hn::MulAdd(clamped, set_double(1.4426950408889634), set_double(0x1.8p52));
  const VD n = hn::Sub(shifted, set_double(0x1.8p52));
  VD r = hn::NegMulAdd(n, set_double(0x1.62e42feep-1), clamped);  // ln 2 in two parts, the first of 32 bits
  r = hn::NegMulAdd(n, set_double(1.9082149292705877e-10), r);
  VD p = hn::MulAdd(r, set_double(1.0 / 3628800), set_double(1.0 / 362880));
  p = hn::MulAdd(r, p, set_double(1.0 / 40320));
  p = hn::MulAdd(r, p, set_double(1.0 / 5040));
  p = hn::MulAdd(r, p, set_double(1.0 / 720));
  p = hn::MulAdd(r, p, set_double(1.0 / 120));
  p = hn::MulAdd(r, p, set_double(1.0 / 24));
  p = hn::MulAdd(r, p, set_double(1.0 / 6));
  p = hn::MulAdd(r, p, set_double(0.5));
  p = hn::MulAdd(r, p, set_double(1.0));
  p = hn::MulAdd(r, p, set_double(1.0));
  const DU64 du;
  const auto bits = hn::Add(hn::BitCast(du, p), hn::ShiftLeft<52>(hn::BitCast(du, shifted)));
  return hn::IfThenElse(hn::Ne(x, x), x, hn::BitCast(DD(), bits));
}
// The FP32 value nearest to exp(x) but for one case in a hundred thousand; exp(-inf) = 0, NaN stays NaN.
HWY_INLINE VF exp_float(VF x) {
  return to_floats(exp_double(low_doubles(x)), exp_double(high_doubles(x)));
}

// The sum of 32 lanes in a fixed tree, the same for every vector width.
struct LaneSums {
  VD v[kSumVectors];
  HWY_INLINE LaneSums() {
    for (size_t i = 0; i < kSumVectors; ++i) v[i] = hn::Zero(DD());
  }
};
HWY_INLINE double sum_lanes(const LaneSums& sums) {
  HWY_ALIGN double lanes[8];
  constexpr size_t kPerEight = 8 / kDoubles;
  for (size_t i = 0; i < kPerEight; ++i) {
    const VD a = hn::Add(sums.v[i], sums.v[i + kPerEight]);
    const VD b = hn::Add(sums.v[i + 2 * kPerEight], sums.v[i + 3 * kPerEight]);
    hn::Store(hn::Add(a, b), DD(), lanes + i * kDoubles);
  }
  for (size_t half = 4; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// The largest magnitude of n floats (a multiple of 16) as bits: NaN lies above infinity above all numbers.
HWY_INLINE uint32_t largest_magnitude(const float* x, size_t n) {
  const DI di;
  auto largest = hn::Zero(di);
  for (size_t i = 0; i < n; i += kLanes) largest = hn::Max(largest, hn::BitCast(di, hn::Abs(load(x + i))));
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest)));
}

}  // namespace spark::engine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
