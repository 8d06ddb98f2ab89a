// Choosing in integers: against the sampler's FP64 distribution, and what only integers promise.
#include "engine/numeric/mass_distribution.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace spark::engine {
namespace {

std::vector<float> mass_row(std::mt19937_64& random, size_t count, double sigma, bool ties) {
  std::normal_distribution<double> normal(0, sigma);
  std::vector<float> row(count);
  for (float& z : row) {
    z = static_cast<float>(normal(random));
    if (ties) z = std::round(z * 2) / 2;
  }
  return row;
}

double mass_uniform(std::mt19937_64& random) {
  return 1.0 - std::uniform_real_distribution<double>()(random);
}

TEST(MassArithmetic, ExponentialIsGoodToTheLastPlaces) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 200000; ++i) {
    const double x = -40.0 * std::pow(mass_uniform(random), i % 3 + 1);
    const double expected = std::exp(x);
    EXPECT_NEAR(exp_of_negative(x), expected, expected * 0x1p-51) << x;
  }
  EXPECT_EQ(exp_of_negative(0.0), 1.0);
  EXPECT_EQ(exp_of_negative(-0.0), 1.0);
  EXPECT_EQ(exp_of_negative(-40.5), 0.0);
  EXPECT_EQ(exp_of_negative(-std::numeric_limits<double>::infinity()), 0.0);
  EXPECT_EQ(exp_of_negative(std::nan("")), 0.0);
}

TEST(MassArithmetic, RanksOrderLikeValuesThenTokens) {
  const auto rank = [](float v, uint32_t token) {
    return token_rank(ordered_logit(v, std::bit_cast<uint32_t>(v)), token);
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float ascending[] = {-kInfinity, -3e38F, -1, -1e-40F, 0, 1e-40F, 2, 3e38F, kInfinity};
  for (size_t i = 1; i < std::size(ascending); ++i)
    EXPECT_LT(rank(ascending[i - 1], 0), rank(ascending[i], 99));
  EXPECT_GT(rank(0.0F, 3), rank(-0.0F, 4));
  EXPECT_GT(rank(-0.0F, 3), rank(0.0F, 4));
  EXPECT_LT(rank(std::nanf(""), 0), rank(-kInfinity, 1));
}

TEST(MassArithmetic, SharesRoundUpAndStayWithin) {
  EXPECT_EQ(mass_share(1.0, 10), 10U);
  EXPECT_EQ(mass_share(0x1p-53, 10), 1U);
  EXPECT_EQ(mass_share(0.5, 10), 5U);
  EXPECT_EQ(mass_share(0.51, 10), 6U);
  const uint64_t most = static_cast<uint64_t>(kMassUnits) * 131072;
  EXPECT_EQ(mass_share(1.0, most), most);
  EXPECT_LE(mass_share(std::nextafter(1.0, 0.0), most - 1), most - 1);
}

// With random numbers nothing ever lies within 2^-40 of a border: both choose the same token.
TEST(MassDistribution, DrawsWhatTheSamplerDraws) {
  std::mt19937_64 random(2);
  TokenDistribution exact;
  MassDistribution masses;
  for (int trial = 0; trial < 400; ++trial) {
    const size_t count = 1 + random() % 2000;
    const std::vector<float> row = mass_row(random, count, 0.2 + 4 * mass_uniform(random), trial % 4 == 0);
    TokenFilter filter;
    filter.temperature = trial % 7 == 0 ? 0.0 : 0.1 + 1.5 * mass_uniform(random);
    filter.top_p = trial % 2 == 0 ? 1.0 : mass_uniform(random);
    filter.top_k = trial % 3 == 0 ? static_cast<int32_t>(1 + random() % 50) : 0;
    filter.min_p = trial % 5 == 0 ? 0.2 * mass_uniform(random) : 0.0;
    std::vector<int32_t> banned;
    while (banned.size() < random() % 4 && banned.size() + 1 < count)
      banned.push_back(static_cast<int32_t>(random() % (count - 1)));
    exact.assign(row, filter, banned);
    masses.assign(row, filter, banned);
    ASSERT_EQ(masses.trouble(), 0);
    for (const int32_t token : exact.tokens()) {
      const double share = static_cast<double>(masses.masses()[static_cast<size_t>(token)]) /
                           static_cast<double>(masses.total());
      EXPECT_NEAR(share, exact.probability(token), 0x1p-38);
    }
    size_t kept = 0;
    for (const uint64_t mass : masses.masses()) kept += mass != 0 ? 1 : 0;
    EXPECT_LE(kept, exact.tokens().size());
    for (int i = 0; i < 20; ++i) {
      const double uniform = mass_uniform(random);
      EXPECT_EQ(masses.draw(uniform), exact.draw(uniform)) << trial;
    }
  }
}

TEST(MassDistribution, SaysWhyThereIsNothingToDraw) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  MassDistribution p;
  p.assign(std::vector<float>{1, std::nanf(""), 2}, {.temperature = 1});
  EXPECT_EQ(p.draw(0.5), kTokenNotANumber);
  p.assign(std::vector<float>{1, kInfinity}, {});
  EXPECT_EQ(p.draw(0.5), kTokenNotANumber);
  p.assign(std::vector<float>{-kInfinity, -kInfinity}, {.temperature = 1});
  EXPECT_EQ(p.draw(0.5), kEveryTokenExcluded);
  p.assign(std::vector<float>{1, 2}, {}, std::vector<int32_t>{0, 1});
  EXPECT_EQ(p.draw(0.5), kEveryTokenExcluded);
}

TEST(MassDistribution, TiesAtTheBordersGoToTheLowerTokens) {
  MassDistribution p;
  p.assign(std::vector<float>{1, 5, 5, 5, 1}, {.temperature = 1, .top_k = 2});
  EXPECT_EQ(p.masses()[1], static_cast<uint64_t>(kMassUnits));
  EXPECT_EQ(p.masses()[2], static_cast<uint64_t>(kMassUnits));
  EXPECT_EQ(p.masses()[3], 0U);
  p.assign(std::vector<float>{1, 1, 1, 1}, {.temperature = 1, .top_p = 0.5});
  EXPECT_EQ(p.total(), 2 * static_cast<uint64_t>(kMassUnits));
  EXPECT_EQ(p.draw(1.0), 1);
}

}  // namespace
}  // namespace spark::engine
