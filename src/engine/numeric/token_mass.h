// Choosing tokens in integers: the arithmetic that host and device share, so that both choose the same.
//
// A logit l of a row with the largest logit max weighs exp((l - max) / temperature), rounded to units of
// 2^-46: its mass. Sums of masses are sums of integers, so they have no order, and whoever adds them,
// in whatever pieces, gets the same. What is left is one exponential per token, and that is a fixed sequence
// of IEEE operations (build without contraction of products and sums).
//
// TokenDistribution (token_distribution.h) is the same in FP64 without the rounding: draws differ where the
// random number lies within about 2^-40 of a border between two tokens.
#pragma once

#include <cstdint>

#include "engine/numeric/host_device.h"

namespace spark::engine {

inline constexpr double kMassUnits = 0x1p46;           // of a weight of one; 2^17 of them fit in 64 bits
inline constexpr double kResidualUnits = 0x1p60;       // of a probability of one
inline constexpr int32_t kTokenNotANumber = -1;        // a logit of the row is NaN or +infinity
inline constexpr int32_t kEveryTokenExcluded = -2;     // nothing may be chosen
inline constexpr int64_t kMaxMassVocabulary = 131072;  // tokens whose masses surely add up within 64 bits

// e^x for x in (-708, 0], to about one unit in the last place; 0 below -40, where masses are zero.
SPARK_HOST_DEVICE inline double exp_of_negative(double x) {
  if (!(x >= -40.0)) return 0.0;
  // x = n ln 2 + r, |r| <= ln 2 / 2; ln 2 in two parts, the first short enough for an exact product.
  const double shifted = x * 0x1.71547652b82fep+0 + 0x1.8p52;
  const double n = shifted - 0x1.8p52;
  const double r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
  double e = 1.0 / 6227020800.0;  // 1 / 13!
  e = e * r + 1.0 / 479001600.0;
  e = e * r + 1.0 / 39916800.0;
  e = e * r + 1.0 / 3628800.0;
  e = e * r + 1.0 / 362880.0;
  e = e * r + 1.0 / 40320.0;
  e = e * r + 1.0 / 5040.0;
  e = e * r + 1.0 / 720.0;
  e = e * r + 1.0 / 120.0;
  e = e * r + 1.0 / 24.0;
  e = e * r + 1.0 / 6.0;
  e = e * r + 0.5;
  e = e * r + 1.0;
  e = e * r + 1.0;
  double power = 1.0;  // 2^n, n in -58 .. 0
  const int halvings = -static_cast<int>(n);
  for (int bit = 0; bit < 6; ++bit) {
    if ((halvings >> bit & 1) != 0)
      power *= bit == 0   ? 0x1p-1
               : bit == 1 ? 0x1p-2
               : bit == 2 ? 0x1p-4
               : bit == 3 ? 0x1p-8
               : bit == 4 ? 0x1p-16
                          : 0x1p-32;
  }
  return e * power;
}

// The mass of a logit under a temperature above 0; 0 when its weight is below min_p.
SPARK_HOST_DEVICE inline uint64_t token_mass(float logit, float largest, double temperature, double min_p) {
  const double weight =
      exp_of_negative((static_cast<double>(logit) - static_cast<double>(largest)) / temperature);
  return weight >= min_p ? static_cast<uint64_t>(weight * kMassUnits + 0.5) : 0;
}

// The bits of a float, ordered like the values: +0 and -0 are equal, a NaN is below everything.
SPARK_HOST_DEVICE inline uint32_t ordered_logit(float value, uint32_t bits) {
  if (value != value) return 0;
  if (value == 0) return 0x80000000u;
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
// Likelier tokens rank higher, of equal ones the lower token.
SPARK_HOST_DEVICE inline uint64_t token_rank(uint32_t ordered, uint32_t token) {
  return static_cast<uint64_t>(ordered) << 32 | (0xFFFFFFFFu - token);
}

// The part of `total` that a share in (0, 1] stands for, rounded up: 1 .. total.
SPARK_HOST_DEVICE inline uint64_t mass_share(double share, uint64_t total) {
  const double exact = share * static_cast<double>(total);
  uint64_t mass = exact >= 0x1p63 ? total : static_cast<uint64_t>(exact);
  if (static_cast<double>(mass) < exact) ++mass;
  if (mass < 1) mass = 1;
  return mass > total ? total : mass;
}

// Target probability over proposal probability of a draft.
SPARK_HOST_DEVICE inline double draft_quotient(uint64_t target, uint64_t target_total, uint64_t proposal,
                                               uint64_t proposal_total) {
  const double p = static_cast<double>(target) / static_cast<double>(target_total);
  // A draft whose proposal has no mass was drawn from something finer than masses: certain to be rare.
  if (proposal == 0) return target == 0 ? 0.0 : 2.0;
  return p / (static_cast<double>(proposal) / static_cast<double>(proposal_total));
}

// max(scale p - q, 0) of one token in units of 1 / kResidualUnits, where p = target * target_unit and q =
// proposal * proposal_unit: target_unit = scale / sum of the targets, proposal_unit = 1 / sum of the
// proposals.
SPARK_HOST_DEVICE inline uint64_t residual_mass(uint64_t target, double target_unit, uint64_t proposal,
                                                double proposal_unit) {
  const double rest =
      static_cast<double>(target) * target_unit - static_cast<double>(proposal) * proposal_unit;
  return rest > 0 ? static_cast<uint64_t>(rest * kResidualUnits) : 0;
}

// h of block verification (schedule/verification.h): the rest is a sum of residual masses.
SPARK_HOST_DEVICE inline double acceptance_threshold(double prefix, uint64_t rest) {
  const double r = static_cast<double>(rest) / kResidualUnits;
  const double denominator = r + 1.0 - prefix;
  return denominator > 0 ? r / denominator : 1.0;
}

}  // namespace spark::engine
