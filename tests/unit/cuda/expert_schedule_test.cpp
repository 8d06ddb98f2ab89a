// Who does what in the streaming kernel of the routed experts.
#include "engine/kernels/cuda/plan/expert_schedule.h"

#include <gtest/gtest.h>

#include <vector>

namespace spark::engine::cuda {
namespace {

TEST(SmallDivisor, DividesEverythingBelowTwoToTheSixteen) {
  for (const uint32_t d : {1U, 2U, 3U, 6U, 7U, 18U, 24U, 72U, 255U, 256U, 1000U, 65535U}) {
    const SmallDivisor divisor = SmallDivisor::of(d);
    for (uint32_t n = 0; n <= 0xFFFF; ++n) ASSERT_EQ(divisor.quotient(n), n / d) << n << " / " << d;
  }
}

TEST(ExpertSchedule, EveryUnitHasOnePlaceAndComesBehindWhatItNeeds) {
  for (const uint32_t items : {0U, 1U, 6U, 36U, 576U}) {
    for (const auto& [ups, downs] :
         {std::pair{18U, 8U}, std::pair{24U, 8U}, std::pair{6U, 1U}, std::pair{1U, 3U}}) {
      const ExpertSchedule s = {items, SmallDivisor::of(ups), SmallDivisor::of(downs)};
      std::vector<uint32_t> up(items * ups), down(items * downs);
      for (uint32_t place = 0; place < s.size(); ++place) {
        const ExpertUnit unit = s.at(place);
        ASSERT_LT(unit.item, items);
        ASSERT_LT(unit.part, unit.down ? downs : ups);
        EXPECT_EQ(unit.down, place >= s.up_count());
        ++(unit.down ? down : up)[unit.item * (unit.down ? downs : ups) + unit.part];
      }
      EXPECT_EQ(up, std::vector<uint32_t>(items * ups, 1U));
      EXPECT_EQ(down, std::vector<uint32_t>(items * downs, 1U));
    }
  }
}

}  // namespace
}  // namespace spark::engine::cuda
