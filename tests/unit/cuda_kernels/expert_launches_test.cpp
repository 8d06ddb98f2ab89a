// The launches of the experts: how many, and what the shared expert's wait for.
#include "cuda_emulation/order.h"
#include "unit/cuda_kernels/emulated_experts.h"

namespace spark::engine {
namespace {

// Where the streaming kernel has no place (64 channels), the router runs with the work list; that kernel
// (128) makes the list of few rows itself, and the shared expert's last product adds up those of at most
// eight.
class ExpertLaunches : public EmulatedExperts, public testing::WithParamInterface<int32_t> {};

TEST_P(ExpertLaunches, AreAsFewAsTheRowsAllow) {
  const int32_t hidden = GetParam();
  const Placed experts = place_experts(hidden);
  for (const int32_t count : {1, 3, 6, 9, 16, 17}) {
    const Step step = make_step(hidden, count);
    EXPECT_EQ(launches([&] { route(step); }), 1U);
    const uint64_t alone = launches([&] { run(experts, step); });
    const std::vector<uint16_t> apart = result(experts, step);
    const bool together = hidden == 64 && count <= 16;
    EXPECT_EQ(launches([&] { route(step), run(experts, step); }), together ? alone : alone + 1);
    EXPECT_EQ(result(experts, step), apart);
    // Beside the shared expert's three (or two and one that settles): the experts, and what adds them up.
    if (hidden == 128) {
      EXPECT_EQ(alone, count <= 16 ? 5U : 6U) << count;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, ExpertLaunches, testing::Values(64, 128));

// The shared expert starts behind the collapse that made its rows, beside the router. When something else has
// written them since, it starts behind that.
class SharedExpertFork : public EmulatedExperts {
 protected:
  static constexpr int32_t kHidden = 128, kRows = 2, kStreams = 4;

  // What was issued before the first place that the experts wait for, counted from the collapse's end.
  uint64_t waits_for(const std::function<void()>& between) {
    cuda_->synchronise();
    cuda_->mhc_collapse({.rows = kRows,
                         .streams = kStreams,
                         .hidden = kHidden,
                         .h = h_,
                         .pre = pre_,
                         .norm_weight = norm_,
                         .x = x_,
                         .x_q = step_.x});
    emulation::Order& order = emulation::order();
    const uint64_t collapsed = order.issued;
    between();
    order.earliest_wait = UINT64_MAX;
    run(experts_, step_);
    cuda_->synchronise();
    return order.earliest_wait - collapsed;
  }

  Placed experts_ = place_experts(kHidden);
  Step step_ = make_step(kHidden, kRows);
  uint16_t* h_ = rows(kRows, kStreams* kHidden);
  float* pre_ = make(cases::f32_values(random_, kRows* kStreams));
  uint16_t* norm_ = make(cases::norm_weights(random_, kHidden));
  uint16_t* x_ = room<uint16_t>(kRows * kHidden);
};

TEST_F(SharedExpertFork, IsAtTheCollapseOfItsRows) {
  EXPECT_EQ(waits_for([&] { route(step_); }), 0U);
}

TEST_F(SharedExpertFork, IsBehindAnUploadOfItsRows) {
  const std::vector<uint8_t> codes(kRows * kHidden, 0x38);
  EXPECT_EQ(waits_for([&] {
              route(step_);  // launched by the transfer
              cuda_->upload(step_.x.codes, codes.data(), codes.size());
            }),
            2U);
}

TEST_F(SharedExpertFork, IsBehindWhatTheCallersOwnKernelsMayHaveWritten) {
  EXPECT_EQ(waits_for([&] {
              route(step_);
              cuda_->native_stream();
            }),
            1U);
}

}  // namespace
}  // namespace spark::engine
