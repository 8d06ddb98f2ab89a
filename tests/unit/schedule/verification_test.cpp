// Rejection sampling of drafts: the tokens that come out are distributed as the target says. On small
// vocabularies that is checked by adding up every possibility, with no random number at all.
#include "engine/schedule/verification.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>

#include "engine/schedule/random.h"
#include "unit/schedule/chi_square.h"

namespace spark::engine {
namespace {

using Prefix = std::vector<int32_t>;
using Table = std::map<Prefix, TokenDistribution>;  // the distribution after each prefix
constexpr double kNever = 2;                        // no draft is accepted at this
constexpr double kAlways = 1e-300;                  // every draft with a chance is, at this

void each_prefix(int32_t vocab, size_t length, const std::function<void(const Prefix&)>& visit) {
  std::function<void(Prefix&)> extend = [&](Prefix& prefix) {
    if (prefix.size() == length) return visit(prefix);
    for (int32_t token = 0; token < vocab; ++token) {
      prefix.push_back(token);
      extend(prefix);
      prefix.pop_back();
    }
  };
  Prefix prefix;
  extend(prefix);
}

Table random_table(std::mt19937_64& random, int32_t vocab, size_t depth, double holes) {
  Table table;
  std::uniform_real_distribution<double> unit(0, 1);
  for (size_t length = 0; length <= depth; ++length) {
    each_prefix(vocab, length, [&](const Prefix& prefix) {
      std::vector<double> weights(static_cast<size_t>(vocab));
      for (double& weight : weights) weight = unit(random) < holes ? 0 : std::pow(unit(random), 3);
      weights[static_cast<size_t>(random() % static_cast<uint64_t>(vocab))] += 0.05;
      table[prefix].assign_weights(weights);
    });
  }
  return table;
}

// One block: the drafts and what they are judged by.
struct Block {
  Prefix drafts;
  std::vector<TokenDistribution> proposals, targets;
  RejectionMethod method;

  Verdict judge(const std::vector<double>& accept, double last) const {
    return verify_block(drafts, proposals, targets, {.accept = accept, .last = last}, method);
  }
};

Block block_of(const Prefix& drafts, const Table& p, const Table& q, RejectionMethod method) {
  Block block{.drafts = drafts, .proposals = {}, .targets = {}, .method = method};
  for (size_t i = 0; i <= drafts.size(); ++i) {
    const Prefix before(drafts.begin(), drafts.begin() + static_cast<std::ptrdiff_t>(i));
    block.targets.push_back(p.at(before));
    if (i < drafts.size()) block.proposals.push_back(q.at(before));
  }
  return block;
}

// The largest number in [0, 1] for which `holds`, which holds below some number and not above.
double border(const std::function<bool(double)>& holds) {
  if (holds(1)) return 1;
  double low = 0, high = 1;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (holds(middle) ? low : high) = middle;
  }
  return low;
}

// Probability that just `accepted` drafts stand.
double accepted_probability(const Block& block, size_t accepted) {
  const size_t count = block.drafts.size();
  const auto threshold = [&](size_t i) {  // of draft i, counted from 1
    return border([&](double u) {
      std::vector<double> accept(count, kNever);
      if (block.method == RejectionMethod::kStandard) std::fill_n(accept.begin(), i, kAlways);
      accept[i - 1] = u;
      return block.judge(accept, 1).accepted >= static_cast<int32_t>(i);
    });
  };
  if (block.method == RejectionMethod::kStandard) {
    double probability = 1;
    for (size_t i = 1; i <= accepted; ++i) probability *= threshold(i);
    return accepted < count ? probability * (1 - threshold(accepted + 1)) : probability;
  }
  double probability = accepted > 0 ? threshold(accepted) : 1;
  for (size_t i = accepted + 1; i <= count; ++i) probability *= 1 - threshold(i);
  return probability;
}

double next_probability(const Block& block, size_t accepted, int32_t token) {
  std::vector<double> accept(block.drafts.size(), kNever);
  std::fill_n(accept.begin(), accepted, kAlways);
  const auto up_to = [&](int32_t most) {
    return border([&](double u) { return u == 0 || block.judge(accept, u).next <= most; });
  };
  return up_to(token) - (token > 0 ? up_to(token - 1) : 0);
}

// What comes out for every sequence of `depth` + 1 tokens, continued from the target where a block ends
// early. `length` says how many drafts are verified of those drawn.
std::map<Prefix, double> outcome(int32_t vocab, size_t depth, const Table& p, const Table& q,
                                 RejectionMethod method, const std::function<size_t(const Prefix&)>& length) {
  std::map<Prefix, double> mass;  // of prefixes that are settled
  each_prefix(vocab, depth, [&](const Prefix& drawn) {
    double probability = 1;
    for (size_t i = 0; i < depth; ++i) {
      probability *=
          q.at(Prefix(drawn.begin(), drawn.begin() + static_cast<std::ptrdiff_t>(i))).probability(drawn[i]);
    }
    if (probability == 0) return;
    const size_t count = length(drawn);
    const Prefix drafts(drawn.begin(), drawn.begin() + static_cast<std::ptrdiff_t>(count));
    const Block block = block_of(drafts, p, q, method);
    for (size_t accepted = 0; accepted <= count; ++accepted) {
      const double share = probability * accepted_probability(block, accepted);
      if (share == 0) continue;
      for (int32_t token = 0; token < vocab; ++token) {
        Prefix out(drafts.begin(), drafts.begin() + static_cast<std::ptrdiff_t>(accepted));
        out.push_back(token);
        mass[out] += share * next_probability(block, accepted, token);
      }
    }
  });
  std::map<Prefix, double> whole;
  for (const auto& [prefix, share] : mass) {
    each_prefix(vocab, depth + 1 - prefix.size(), [&, head = prefix, share = share](const Prefix& tail) {
      Prefix out = head;
      double probability = share;
      for (const int32_t token : tail) {
        probability *= p.at(out).probability(token);
        out.push_back(token);
      }
      whole[out] += probability;
    });
  }
  return whole;
}

double worst_error(int32_t vocab, size_t depth, const Table& p, const std::map<Prefix, double>& got) {
  double worst = 0;
  each_prefix(vocab, depth + 1, [&](const Prefix& sequence) {
    double expected = 1;
    Prefix before;
    for (const int32_t token : sequence) {
      expected *= p.at(before).probability(token);
      before.push_back(token);
    }
    const auto found = got.find(sequence);
    worst = std::max(worst, std::abs((found == got.end() ? 0 : found->second) - expected));
  });
  return worst;
}

class Exact : public testing::TestWithParam<RejectionMethod> {};

TEST_P(Exact, TheAnswerIsTheTargets) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 12; ++round) {
    const int32_t vocab = 2 + round % 2;
    const size_t depth = round < 8 ? 2 : 3;
    const double holes = round % 4 == 3 ? 0.4 : 0;  // tokens that one side never takes
    const Table p = random_table(random, vocab, depth, holes);
    const Table q = random_table(random, vocab, depth, holes);
    const auto all = outcome(vocab, depth, p, q, GetParam(), [&](const Prefix&) { return depth; });
    EXPECT_LT(worst_error(vocab, depth, p, all), 1e-9) << "round " << round;
    // Where a block ends may depend on the drafts before that place.
    const auto some = outcome(vocab, depth, p, q, GetParam(), [&](const Prefix& drawn) {
      return drawn[0] == 0 ? size_t{1} : drawn[1] == 0 ? size_t{2} : depth;
    });
    EXPECT_LT(worst_error(vocab, depth, p, some), 1e-9) << "round " << round;
  }
}

// The check would notice: whether a draft is verified must not depend on what it is.
TEST_P(Exact, ChoosingByTheDraftItselfWouldShow) {
  std::mt19937_64 random(4);
  const Table p = random_table(random, 3, 2, 0), q = random_table(random, 3, 2, 0);
  const auto biased = outcome(3, 2, p, q, GetParam(),
                              [](const Prefix& drawn) { return drawn[0] == 0 ? size_t{0} : size_t{2}; });
  EXPECT_GT(worst_error(3, 2, p, biased), 1e-3);
}

TEST_P(Exact, EqualDistributionsAcceptEverything) {
  std::mt19937_64 random(5);
  const Table p = random_table(random, 3, 3, 0.3);
  each_prefix(3, 3, [&](const Prefix& drafts) {
    const Block block = block_of(drafts, p, p, GetParam());
    for (const TokenDistribution& q : block.proposals) {
      if (q.probability(drafts[static_cast<size_t>(&q - block.proposals.data())]) == 0) return;
    }
    EXPECT_EQ(block.judge({1, 1, 1}, 0.5).accepted, 3);
  });
}

// Certain targets: the drafts stand up to the first that is not the target's token, whatever the numbers.
TEST_P(Exact, GreedyIsASpecialCase) {
  std::mt19937_64 random(6);
  for (int round = 0; round < 200; ++round) {
    Block block{.drafts = {}, .proposals = {}, .targets = {}, .method = GetParam()};
    size_t right = 0;
    bool still = true;
    for (int i = 0; i < 6; ++i) {
      const auto token = static_cast<int32_t>(random() % 3), draft = static_cast<int32_t>(random() % 3);
      block.targets.emplace_back().assign_certain(token);
      if (i == 5) break;
      block.drafts.push_back(draft);
      if (round % 2 == 0) {
        block.proposals.emplace_back().assign_certain(draft);
      } else {
        block.proposals.emplace_back().assign_weights(std::vector<double>{1, 2, 3});
      }
      still = still && token == draft;
      right += still ? 1 : 0;
    }
    std::vector<double> accept(5);
    for (double& u : accept) u = uniform(random(), 1);
    const Verdict verdict = block.judge(accept, uniform(random(), 2));
    // A likely draft may be refused in favour of the same token: the tokens are the same.
    Prefix out(block.drafts.begin(), block.drafts.begin() + verdict.accepted);
    out.push_back(verdict.next);
    for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], block.targets[i].tokens()[0]);
    EXPECT_EQ(static_cast<size_t>(verdict.accepted), right);
  }
}

// With real random numbers and a deeper block.
TEST_P(Exact, DrawnAnswersFit) {
  std::mt19937_64 random(7);
  constexpr int32_t kVocab = 4;
  constexpr size_t kDepth = 4;
  const Table p = random_table(random, kVocab, kDepth, 0), q = random_table(random, kVocab, kDepth, 0);
  constexpr int kDraws = 40000;
  std::vector<double> seen(64), expected(64);
  for (uint64_t seed = 0; seed < kDraws; ++seed) {
    Prefix drafts;
    std::vector<double> accept;
    for (uint32_t i = 0; i < kDepth; ++i) {
      drafts.push_back(q.at(drafts).draw(uniform(seed, 0, 256 + i)));
      accept.push_back(uniform(seed, 0, 1 + i));
    }
    const Block block = block_of(drafts, p, q, GetParam());
    const Verdict verdict = block.judge(accept, uniform(seed, 0, 128));
    Prefix out(drafts.begin(), drafts.begin() + verdict.accepted);
    out.push_back(verdict.next);
    for (uint32_t i = 1; out.size() < 3; ++i) out.push_back(p.at(out).draw(uniform(seed, i)));
    ++seen[static_cast<size_t>(out[0] * 16 + out[1] * 4 + out[2])];
  }
  each_prefix(kVocab, 3, [&](const Prefix& out) {
    expected[static_cast<size_t>(out[0] * 16 + out[1] * 4 + out[2])] =
        p.at({}).probability(out[0]) * p.at({out[0]}).probability(out[1]) *
        p.at({out[0], out[1]}).probability(out[2]);
  });
  EXPECT_GT(fits(seen, expected), 0.01);
}

INSTANTIATE_TEST_SUITE_P(Methods, Exact,
                         testing::Values(RejectionMethod::kBlock, RejectionMethod::kStandard));

TEST(Verification, BlocksAcceptMore) {
  std::mt19937_64 random(8);
  double gained = 0;
  for (int round = 0; round < 6; ++round) {
    const Table p = random_table(random, 3, 3, 0), q = random_table(random, 3, 3, 0);
    double expected[2] = {0, 0};
    each_prefix(3, 3, [&](const Prefix& drafts) {
      for (const auto method : {RejectionMethod::kBlock, RejectionMethod::kStandard}) {
        const Block block = block_of(drafts, p, q, method);
        double probability = 1;
        for (size_t i = 0; i < 3; ++i) probability *= block.proposals[i].probability(drafts[i]);
        for (size_t n = 1; n <= 3; ++n) {
          expected[static_cast<int>(method)] +=
              probability * static_cast<double>(n) * accepted_probability(block, n);
        }
      }
    });
    EXPECT_GE(expected[0], expected[1] - 1e-9);
    gained += expected[0] - expected[1];
  }
  EXPECT_GT(gained, 0.1);
}

}  // namespace
}  // namespace spark::engine
