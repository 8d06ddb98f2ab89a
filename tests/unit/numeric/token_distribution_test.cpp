#include "engine/numeric/token_distribution.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "common/error.h"

namespace spark::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> noise(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = std::round(normal(random) * 4) / 4;  // equal ones occur
  return logits;
}

TEST(LargestLogit, IsTheFirstOfEqualsInRowsOfAnyLength) {
  for (const size_t count : {1, 2, 15, 16, 17, 640, 1023, 1024, 1025, 2048, 5000, 129280}) {
    std::vector<float> logits = noise(count, static_cast<uint32_t>(count));
    const auto expected = std::max_element(logits.begin(), logits.end()) - logits.begin();
    EXPECT_EQ(largest_logit(logits), expected) << count;
    EXPECT_EQ(checked_maximum(logits), logits[static_cast<size_t>(expected)]);
    const std::vector<int32_t> banned = {static_cast<int32_t>(expected)};
    logits[static_cast<size_t>(expected)] = -50;
    if (count > 1) {
      const auto second = std::max_element(logits.begin(), logits.end()) - logits.begin();
      logits[static_cast<size_t>(expected)] = 50;
      EXPECT_EQ(largest_logit(logits, banned), second) << count;
    }
  }
  std::vector<float> same(3000, 1.0F);
  EXPECT_EQ(largest_logit(same), 0);
  same[2999] = 2;
  EXPECT_EQ(largest_logit(same), 2999);
  const std::vector<float> nothing(40, -kInfinity);
  EXPECT_THROW(largest_logit(nothing), Error);
  EXPECT_THROW(largest_logit({}), Error);
}

TEST(LargestLogit, NoticesWhatIsNoNumberAnywhere) {
  for (const float bad : {std::nanf(""), kInfinity}) {
    for (const size_t at : {0, 1, 15, 16, 1023, 1024, 2047, 2100}) {
      std::vector<float> logits = noise(2101, 5);
      logits[at] = bad;
      EXPECT_THROW(largest_logit(logits), Error) << at;
      try {
        TokenDistribution().assign(logits, {.temperature = 1});
        ADD_FAILURE() << at;
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("token " + std::to_string(at)), std::string::npos);
      }
    }
  }
}

TEST(TokenDistribution, ProbabilitiesAreTheWeightsShares) {
  const std::vector<float> logits = noise(700, 6);
  for (const TokenFilter& filter :
       {TokenFilter{.temperature = 1}, TokenFilter{.temperature = 0.6, .top_k = 30},
        TokenFilter{.temperature = 1.5, .top_p = 0.7}, TokenFilter{.temperature = 1, .min_p = 0.05},
        TokenFilter{.temperature = 2, .top_p = 0.5, .top_k = 300}}) {
    TokenDistribution p;
    const std::vector<int32_t> banned = {3, 699, largest_logit(logits)};
    p.assign(logits, filter, banned);
    double sum = 0;
    int32_t last = -1;
    for (size_t i = 0; i < p.tokens().size(); ++i) {
      EXPECT_GT(p.tokens()[i], last);
      last = p.tokens()[i];
      EXPECT_EQ(std::count(banned.begin(), banned.end(), last), 0);
      const double a = p.probability(last), b = p.probability(p.tokens()[0]);
      const double gap = static_cast<double>(logits[static_cast<size_t>(last)]) -
                         static_cast<double>(logits[static_cast<size_t>(p.tokens()[0])]);
      EXPECT_NEAR(std::log(a / b), gap / filter.temperature, 1e-9);
      sum += a;
    }
    EXPECT_NEAR(sum, 1, 1e-12);
    for (const int32_t token : banned) EXPECT_EQ(p.probability(token), 0);
    EXPECT_EQ(p.probability(-1), 0);
    EXPECT_EQ(p.probability(5000), 0);
    EXPECT_EQ(p.draw(1e-18), p.tokens().front());
    EXPECT_EQ(p.draw(1), p.tokens().back());
  }
}

TEST(TokenDistribution, TemperatureZeroIsCertain) {
  TokenDistribution p;
  p.assign(noise(100, 7), {});
  EXPECT_EQ(p.tokens().size(), 1u);
  EXPECT_EQ(p.tokens()[0], largest_logit(noise(100, 7)));
  EXPECT_EQ(p.probability(p.tokens()[0]), 1);
  p.assign_weights(std::vector<double>{0, 3, 0, 1});
  EXPECT_EQ(p.tokens().size(), 2u);
  EXPECT_EQ(p.probability(1), 0.75);
  EXPECT_EQ(p.draw(0.75), 1);
  EXPECT_EQ(p.draw(0.76), 3);
}

}  // namespace
}  // namespace spark::engine
