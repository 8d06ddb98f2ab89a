// Scratch memory grows in powers of two of a step's rows, as plan/scratch_plan.h says, and what it was before
// stays with the recorded steps that use it.
#include "cuda_emulation/recording.h"
#include "engine/kernels/cuda/plan/scratch_plan.h"
#include "unit/cuda_kernels/emulated_experts.h"

namespace spark::engine {
namespace {

// Kernels of a prompt's experts take more than 96 rows.
class PromptScratch : public EmulatedExperts {
 protected:
  static constexpr int32_t kHidden = 128;

  static cuda::ScratchSizes sizes(cuda::ExpertForm form, int64_t count) {
    return cuda::expert_scratch(form, {.rows = count,
                                       .top_k = kTopK,
                                       .experts = kExperts,
                                       .hidden = kHidden,
                                       .width = kWidth,
                                       .shared_width = kWidth});
  }

  Placed experts_ = place_experts(kHidden);
};

TEST_F(PromptScratch, GrowsInPowersOfTwo) {
  emulation::recording().skips = true;
  const auto after = [&](int32_t count) {
    run(experts_, make_step(kHidden, count));
    cuda_->synchronise();
    return cuda_->scratch_bytes();
  };
  // What steps of so many rows add to what there is.
  cuda::ScratchSizes largest;
  int64_t planned = 0;
  const auto grow = [&](int64_t count) {
    for (const cuda::ExpertForm form : {cuda::ExpertForm::kStream, cuda::ExpertForm::kPrompt}) {
      const cuda::ScratchSizes wanted = sizes(form, count);
      for (size_t use = 0; use < cuda::kScratchUses; ++use) {
        if (wanted.bytes[use] > largest.bytes[use]) planned += largest.bytes[use] = wanted.bytes[use];
      }
    }
    return planned;
  };
  EXPECT_EQ(after(97), grow(128));
  EXPECT_EQ(after(100), planned);
  EXPECT_EQ(after(128), planned);
  EXPECT_EQ(after(129), grow(256));
  EXPECT_EQ(after(200), planned);
  EXPECT_EQ(after(256), planned);
  EXPECT_EQ(after(2048), grow(2048));
  EXPECT_EQ(after(100), planned) << "a smaller step after a larger one";
  // However many rows, a launch has at most so many; the shared expert takes all at once.
  const int64_t shared = kWidth * 5 + kWidth / 32 + kHidden * 2;
  EXPECT_EQ(after(4096), planned + 4096 * shared);
  emulation::recording().skips = false;
}

TEST_F(PromptScratch, OfARecordedStepStaysWithIt) {
  constexpr int32_t kFew = 100, kMore = 132;
  const Step few = make_step(kHidden, kFew), more = make_step(kHidden, kMore);
  route(few), route(more);
  const auto record = [&] { cuda_->run_recorded(1, [&] { run(experts_, few); }); };
  record();
  record();
  const std::vector<uint16_t> before = result(experts_, few);
  const int64_t small = cuda_->scratch_bytes();

  run(experts_, more);
  const std::vector<uint16_t> of_more = result(experts_, more);
  ASSERT_GT(cuda_->scratch_bytes(), small);
  // Memory that is allocated now is nobody's: the recorded step must leave it alone.
  std::vector<std::pair<uint8_t*, size_t>> others;
  for (const size_t bytes : {size_t{64}, size_t{4096}, static_cast<size_t>(small)}) {
    others.emplace_back(make(std::vector<uint8_t>(bytes, 0xA5)), bytes);
  }
  const std::vector<uint16_t> nothing(before.size(), 0xFFFF);
  cuda_->upload(few.y, nothing.data(), nothing.size() * sizeof(uint16_t));
  record();
  EXPECT_EQ(result(experts_, few), before);
  for (const auto& [memory, bytes] : others)
    EXPECT_EQ(read(memory, bytes), std::vector<uint8_t>(bytes, 0xA5));
  run(experts_, more);
  EXPECT_EQ(result(experts_, more), of_more);
}

}  // namespace
}  // namespace spark::engine
