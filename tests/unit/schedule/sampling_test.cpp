#include "engine/schedule/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "common/error.h"
#include "engine/schedule/fair_queue.h"
#include "engine/schedule/random.h"

namespace spark::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Known answers of the generator's authors (Random123, kat_vectors).
TEST(Philox, KnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Uniform, LiesAboveZeroAndHasTheRightMean) {
  double sum = 0, lowest = 1, highest = 0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const double value = uniform(7, static_cast<uint64_t>(i));
    sum += value;
    lowest = std::min(lowest, value);
    highest = std::max(highest, value);
  }
  EXPECT_GT(lowest, 0);
  EXPECT_LE(highest, 1);
  EXPECT_NEAR(sum / kDraws, 0.5, 0.004);  // four standard errors
  EXPECT_NE(uniform(7, 1), uniform(8, 1));
  EXPECT_NE(uniform(7, 1), uniform(7, 1, 1));
}

TEST(Sampler, GreedyTakesTheLowestOfEquals) {
  Sampler sampler;
  const std::vector<float> logits = {1, 3, 3, -kInfinity};
  EXPECT_EQ(sampler.choose(logits, {.temperature = 0}, 0), 1);
  const std::vector<int32_t> banned = {1};
  EXPECT_EQ(sampler.choose(logits, {.temperature = 0}, 0, banned), 2);
  // A temperature so low that all others have no weight draws among the equal largest ones.
  for (int position = 0; position < 50; ++position) {
    const int32_t token = sampler.choose(logits, {.temperature = 1e-9}, position);
    EXPECT_TRUE(token == 1 || token == 2);
  }
}

// The share of each token over many draws against its probability: chi-square at four standard deviations.
void expect_distribution(const std::vector<float>& logits, SamplingParams params,
                         std::vector<double> expected, const std::vector<int32_t>& banned = {}) {
  constexpr int kDraws = 20000;
  double total = 0;
  for (const double weight : expected) total += weight;
  std::vector<int> seen(logits.size());
  Sampler sampler;
  for (int position = 0; position < kDraws; ++position) {
    ++seen[static_cast<size_t>(sampler.choose(logits, params, position, banned))];
  }
  double chi_square = 0;
  int degrees = -1;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == 0) {
      EXPECT_EQ(seen[i], 0) << "token " << i;
      continue;
    }
    const double mean = kDraws * expected[i] / total;
    chi_square += (seen[i] - mean) * (seen[i] - mean) / mean;
    ++degrees;
  }
  EXPECT_LT(chi_square, degrees + 4 * std::sqrt(2.0 * degrees) + 4);
}

TEST(Sampler, DrawsFromTheDistributionAskedFor) {
  // Probabilities 0.4, 0.3, 0.2, 0.1 in mixed order.
  const std::vector<float> logits = {std::log(0.2f), std::log(0.4f), std::log(0.1f), std::log(0.3f)};
  expect_distribution(logits, {.seed = 1}, {2, 4, 1, 3});
  expect_distribution(logits, {.temperature = 0.5, .seed = 2}, {4, 16, 1, 9});
  expect_distribution(logits, {.top_k = 2, .seed = 3}, {0, 4, 0, 3});
  expect_distribution(logits, {.top_k = 99, .seed = 3}, {2, 4, 1, 3});
  expect_distribution(logits, {.top_p = 0.69, .seed = 4}, {0, 4, 0, 3});
  expect_distribution(logits, {.top_p = 0.71, .seed = 5}, {2, 4, 0, 3});
  expect_distribution(logits, {.top_p = 1e-9, .seed = 6}, {0, 1, 0, 0});
  expect_distribution(logits, {.min_p = 0.6, .seed = 7}, {0, 4, 0, 3});
  // top_p counts in what top_k left: 4/7 of the weight is below 0.6.
  expect_distribution(logits, {.top_p = 0.6, .top_k = 2, .seed = 8}, {0, 4, 0, 3});
  expect_distribution(logits, {.top_p = 0.5, .top_k = 2, .seed = 9}, {0, 4, 0, 0});
  expect_distribution(logits, {.seed = 10}, {2, 0, 1, 3}, {1});
}

TEST(Sampler, TopKKeepsTheLowerOfEquals) {
  expect_distribution({1, 1, 1, 1}, {.top_k = 2}, {1, 1, 0, 0});
  expect_distribution({1, 1, 1, 1}, {.top_p = 0.6}, {1, 1, 1, 0});
}

// The prefix of top_p is found by ordering ever more of the list; a flat distribution needs most of it.
TEST(Sampler, TopPOnAWideFlatDistribution) {
  std::vector<float> logits(5000);
  for (size_t i = 0; i < logits.size(); ++i)
    logits[i] = -1e-6f * static_cast<float>((i * 7919) % logits.size());
  Sampler sampler;
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  std::map<int32_t, size_t> rank;
  for (size_t i = 0; i < order.size(); ++i) rank[order[i]] = i;
  size_t worst = 0;
  for (int position = 0; position < 600; ++position) {
    worst = std::max(worst, rank[sampler.choose(logits, {.top_p = 0.5}, position)]);
  }
  EXPECT_LT(worst, 2510u);
  EXPECT_GT(worst, 2300u);
}

TEST(Sampler, OneSeedOneAnswer) {
  const std::vector<float> logits = {0, 0, 0, 0, 0, 0, 0, 0};
  Sampler a, b;
  b.choose(logits, {}, 999);  // what was drawn before does not matter
  bool seeds_differ = false;
  for (int position = 0; position < 64; ++position) {
    const int32_t token = a.choose(logits, {.seed = 5}, position);
    EXPECT_EQ(token, b.choose(logits, {.seed = 5}, position));
    seeds_differ = seeds_differ || token != b.choose(logits, {.seed = 6}, position);
  }
  EXPECT_TRUE(seeds_differ);
}

TEST(Sampler, RefusesLogitsThatAreNoNumbers) {
  Sampler sampler;
  for (const float bad : {std::nanf(""), kInfinity}) {
    const std::vector<float> logits = {0, bad, 1};
    EXPECT_THROW(sampler.choose(logits, {}, 0), Error);
    EXPECT_THROW(sampler.choose(logits, {.temperature = 0}, 0), Error);
    EXPECT_THROW(sampler.logprobs(logits, 0, 1), Error);
  }
  const std::vector<float> nothing = {-kInfinity, -kInfinity};
  EXPECT_THROW(sampler.choose(nothing, {}, 0), Error);
  const std::vector<float> one = {2};
  const std::vector<int32_t> banned = {0};
  EXPECT_THROW(sampler.choose(one, {}, 0, banned), Error);
}

TEST(Sampler, LogprobsAreOfTheWholeDistribution) {
  const Sampler sampler;
  const std::vector<float> logits = {std::log(0.2f), std::log(0.4f), std::log(0.1f), std::log(0.2f),
                                     std::log(0.1f)};
  const TokenLogprobs seen = sampler.logprobs(logits, 2, 3);
  EXPECT_NEAR(seen.chosen, std::log(0.1), 1e-6);
  ASSERT_EQ(seen.top.size(), 3u);
  EXPECT_EQ(seen.top[0].token, 1);
  EXPECT_EQ(seen.top[1].token, 0);  // of equals the lower
  EXPECT_EQ(seen.top[2].token, 3);
  EXPECT_NEAR(seen.top[0].logprob, std::log(0.4), 1e-6);
  EXPECT_EQ(sampler.logprobs(logits, 0, 0).top.size(), 0u);
  EXPECT_EQ(sampler.logprobs(logits, 0, 20).top.size(), 5u);
}

TEST(FairQueue, ClientsTakeTurns) {
  FairQueue<int> queue;
  for (int i = 0; i < 4; ++i) queue.push("a", i);
  queue.push("b", 10);
  queue.push("c", 20);
  queue.push("b", 11);
  std::vector<int> order;
  while (auto item = queue.pop()) order.push_back(*item);
  EXPECT_EQ(order, (std::vector<int>{0, 10, 20, 1, 11, 2, 3}));
  EXPECT_TRUE(queue.empty());
}

TEST(FairQueue, RemovesWhatIsUnwanted) {
  FairQueue<int> queue;
  for (int i = 0; i < 4; ++i) queue.push("a", i);
  queue.push("b", 4);
  EXPECT_EQ(queue.remove_if([](int item) { return item % 2 == 0; }), (std::vector<int>{0, 2, 4}));
  EXPECT_EQ(queue.size(), 2u);
  queue.push("b", 5);
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_EQ(queue.pop(), 5);
  EXPECT_EQ(queue.pop(), 3);
  EXPECT_EQ(queue.pop(), std::nullopt);
}

}  // namespace
}  // namespace spark::engine
