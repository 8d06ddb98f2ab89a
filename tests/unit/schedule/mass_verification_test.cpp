// Block verification in integers (what the device does) says what the scheduler's says, given the same
// numbers.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "engine/numeric/mass_distribution.h"
#include "engine/schedule/verification.h"

namespace spark::engine {
namespace {

TEST(MassVerification, AgreesWithTheScheduler) {
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  const auto uniform = [&] { return 1.0 - std::uniform_real_distribution<double>()(random); };
  int accepted = 0, drafted = 0;
  for (int trial = 0; trial < 600; ++trial) {
    const size_t count = trial % 6, vocab = 5 + random() % 200;
    TokenFilter filter{.temperature = 0.3 + uniform()};
    if (trial % 2 == 0) filter.top_p = 0.5 + 0.5 * uniform();
    if (trial % 5 == 0) filter.top_k = 10;
    const float noise = trial % 3 == 0 ? 0.0F : 0.7F;
    std::vector<TokenDistribution> targets(count + 1), proposals(count);
    std::vector<MassDistribution> target_masses(count + 1), proposal_masses(count);
    std::vector<int32_t> drafts;
    std::vector<double> accept;
    for (size_t i = 0; i <= count; ++i) {
      std::vector<float> row(vocab);
      for (float& z : row) z = 2 * normal(random);
      targets[i].assign(row, filter);
      target_masses[i].assign(row, filter);
      if (i == count) break;
      for (float& z : row) z += noise * normal(random);
      proposals[i].assign(row, filter);
      proposal_masses[i].assign(row, filter);
      drafts.push_back(proposals[i].draw(uniform()));
      accept.push_back(uniform());
    }
    const double last = uniform();
    for (const RejectionMethod method : {RejectionMethod::kBlock, RejectionMethod::kStandard}) {
      const Verdict expected = verify_block(drafts, proposals, targets, {accept, last}, method);
      const BlockVerdict actual = verify_masses(drafts, proposal_masses, target_masses, accept, last,
                                                method == RejectionMethod::kStandard);
      // Identical distributions leave nothing but rounding to draw from after a rejection.
      if (noise == 0.0F && expected.accepted < static_cast<int32_t>(count)) continue;
      EXPECT_EQ(actual.accepted, expected.accepted) << trial;
      EXPECT_EQ(actual.next, expected.next) << trial;
      accepted += actual.accepted;
      drafted += static_cast<int>(count);
    }
  }
  EXPECT_GT(accepted, drafted / 4);
  EXPECT_LT(accepted, drafted);
}

}  // namespace
}  // namespace spark::engine
