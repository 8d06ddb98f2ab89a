// Vectors of up to 16 floats, whatever the instruction set has, and the number formats in them. Included once
// per target by the kernels (hence the toggling guard).
#include <cstddef>
#include <cstdint>

#include "engine/kernels/cpu/simd_targets.h"
#include <hwy/highway.h>

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

constexpr size_t kLanes = hn::MaxLanes(DF());
// Sums along a row use 64 logical lanes on every target, see sum_lanes().
constexpr size_t kSumLanes = 64;
constexpr size_t kSumVectors = kSumLanes / kLanes;

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

// 2^k for k in -126 .. 127, one per lane.
HWY_INLINE VF power_of_two(hn::Vec<DI> k) {
  return hn::BitCast(DF(), hn::ShiftLeft<23>(hn::Add(k, hn::Set(DI(), 127))));
}

// exp to 1 ulp: x = n ln 2 + r, |r| <= ln 2 / 2, Taylor series to r^7 (truncation 6e-9), then 2^n in two
// steps so that results near the ends of the range are right. exp(-inf) = 0; NaN stays NaN.
HWY_INLINE VF exp_ps(VF x) {
  const VF clamped = hn::Min(hn::Max(x, set(-105.0F)), set(89.0F));
  const VF n = hn::Round(hn::Mul(clamped, set(1.44269504F)));
  VF r = hn::NegMulAdd(n, set(0.693145752F), clamped);  // ln 2 in two parts, the first of 16 bits
  r = hn::NegMulAdd(n, set(1.42860682e-6F), r);
  VF p = hn::MulAdd(r, set(1.0F / 5040), set(1.0F / 720));
  p = hn::MulAdd(r, p, set(1.0F / 120));
  p = hn::MulAdd(r, p, set(1.0F / 24));
  p = hn::MulAdd(r, p, set(1.0F / 6));
  p = hn::MulAdd(r, p, set(0.5F));
  const VF tail = hn::MulAdd(hn::Mul(r, r), p, r);
  const VF e = hn::Add(set(1.0F), tail);
  const auto k = hn::ConvertTo(DI(), n);
  const auto k1 = hn::ShiftRight<1>(k);
  const VF result = hn::Mul(hn::Mul(e, power_of_two(k1)), power_of_two(hn::Sub(k, k1)));
  return hn::IfThenElse(hn::Ne(x, x), x, result);
}
HWY_INLINE VF sigmoid(VF x) {
  return hn::Div(set(1.0F), hn::Add(set(1.0F), exp_ps(hn::Neg(x))));
}

// The sum of 64 lanes in a fixed tree, the same for every vector width.
struct LaneSums {
  VF v[kSumVectors];
  HWY_INLINE LaneSums() {
    for (size_t i = 0; i < kSumVectors; ++i) v[i] = zero();
  }
};
HWY_INLINE float sum_lanes(const LaneSums& sums) {
  HWY_ALIGN float lanes[16];
  constexpr size_t kPerSixteen = 16 / kLanes;
  for (size_t i = 0; i < kPerSixteen; ++i) {
    const VF a = hn::Add(sums.v[i], sums.v[i + kPerSixteen]);
    const VF b = hn::Add(sums.v[i + 2 * kPerSixteen], sums.v[i + 3 * kPerSixteen]);
    hn::Store(hn::Add(a, b), DF(), lanes + i * kLanes);
  }
  for (size_t half = 8; half > 0; half /= 2) {
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
