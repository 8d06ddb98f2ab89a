// The memory plan of the CUDA backend against what it allocates, on the emulated devices: a whole model runs
// steps of all sizes. Kernels are left out; what they would compute takes no memory.
#include "engine/forward/memory_plan.h"

#include <gtest/gtest.h>

#include <array>

#include "cuda_emulation/recording.h"
#include "engine/kernels/cuda/cuda_backend.h"
#include "golden/tiny_model.h"
#include "model/config_file.h"

namespace spark::engine {
namespace {

constexpr int32_t kSequences = 6, kContext = 6000, kRows = 512;

const LoadOptions& options() {
  static const LoadOptions all = {
      .folder = golden::synthetic_checkpoint(),
      .backend = "cuda",
      .limits = {.max_sequences = kSequences, .max_context = kContext, .max_step_rows = kRows}};
  return all;
}

uint64_t planned_scratch() {
  const std::string config = options().folder + "/config.json";
  for (const MemoryPlan::Item& item : plan_memory(model::load_model_config(config), options(), 1).items) {
    if (item.name == "scratch of operations") return item.bytes;
  }
  return 0;
}

class CudaMemory : public testing::TestWithParam<int> {
 protected:
  CudaMemory() {
    auto backend = make_cuda_backend({.device = GetParam()});  // which tests itself by kernels
    emulation::recording().skips = true;
    cuda_ = backend.get();
    model_ = load_model(options(), std::move(backend));
    for (int32_t sequence = 0; sequence < kSequences; ++sequence) model_->open_sequence(sequence);
  }
  ~CudaMemory() override { emulation::recording().skips = false; }

  // The next `count` tokens of a sequence, in one step.
  void prompt(int32_t sequence, int32_t count) {
    int32_t& length = lengths_[static_cast<size_t>(sequence)];
    std::vector<StepRow> rows;
    for (int32_t i = 0; i < count; ++i) {
      rows.push_back(
          {.sequence = sequence, .token = 5, .position = length++, .wants_logits = i + 1 == count});
    }
    model_->run(rows);
  }
  void draft(int32_t sequences) {
    std::vector<DraftRequest> requests;
    for (int32_t s = 0; s < sequences; ++s) {
      requests.push_back({.sequence = s, .anchor = 5, .position = lengths_[static_cast<size_t>(s)] - 1});
    }
    model_->draft(requests);
  }
  uint64_t scratch() const { return static_cast<uint64_t>(cuda_->scratch_bytes()); }

  const CudaBackend* cuda_ = nullptr;
  std::unique_ptr<Decoder> model_;
  std::array<int32_t, kSequences> lengths_{};
};

TEST_P(CudaMemory, ScratchIsPlanned) {
  const uint64_t planned = planned_scratch();
  // The worst order: from small steps to large ones, from short sequences to long ones.
  for (const int32_t rows : {1, 2, 3, 5, 9, 17, 33, 65, 97, 100, 129, 200, 257, 400, kRows}) prompt(0, rows);
  for (int32_t s = 1; s < kSequences; ++s) prompt(s, 1);
  for (int32_t s = 1; s <= kSequences; ++s) draft(s);
  while (lengths_[0] + kRows <= kContext) prompt(0, kRows);
  prompt(0, kContext - lengths_[0]);
  EXPECT_LE(scratch(), planned);
  // A GB10 has no kernels of a prompt's experts.
  if (GetParam() == 0) {
    EXPECT_GT(static_cast<double>(scratch()), 0.98 * static_cast<double>(planned));
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, CudaMemory, testing::Values(0, 1));

}  // namespace
}  // namespace spark::engine
