// Experts on the emulated device, and steps of rows for them.
#pragma once

#include <vector>

#include "unit/cuda_kernels/emulated_backend.h"

namespace spark::engine {

class EmulatedExperts : public EmulatedBackend {
 protected:
  static constexpr int32_t kWidth = 64, kExperts = 4, kTopK = 2;

  struct Placed {
    int32_t hidden = 0;
    ExpertBank bank;
    ExpertWeights shared;
  };
  Placed place_experts(int32_t hidden) {
    std::vector<cases::HostWeight> host;
    for (int32_t i = 0; i < 3 * (kExperts + 1); ++i) {
      const WeightFormat format = i < 3 * kExperts ? WeightFormat::kFp4 : WeightFormat::kFp8;
      host.push_back(i % 3 == 2 ? cases::random_weight(random_, format, hidden, kWidth)
                                : cases::random_weight(random_, format, kWidth, hidden));
    }
    std::vector<ExpertWeights> experts;
    for (size_t e = 0; e < kExperts; ++e)
      experts.push_back({host[3 * e].view(), host[3 * e + 1].view(), host[3 * e + 2].view()});
    const ExpertBank bank = cuda_->place_experts(experts);
    return {hidden,
            bank,
            {place(host[3 * kExperts]), place(host[3 * kExperts + 1]), place(host[3 * kExperts + 2])}};
  }

  // Of rows whose experts a router chooses.
  struct Step {
    StepRows rows;
    QuantisedRows x;
    const float* logits = nullptr;
    const float* bias = nullptr;
    int32_t* ids = nullptr;
    float* weights = nullptr;
    uint16_t* y = nullptr;
  };
  Step make_step(int32_t hidden, int32_t count) {
    const auto n = static_cast<size_t>(count);
    const auto values = n * static_cast<size_t>(hidden);
    const cases::QuantisedHost q = cases::quantised(cases::bf16_values(random_, values));
    return {.rows = steps(count),
            .x = {make(q.codes), make(q.scales)},
            .logits = make(cases::f32_values(random_, n * kExperts)),
            .bias = make(cases::f32_values(random_, kExperts)),
            .ids = room<int32_t>(n * kTopK),
            .weights = room<float>(n * kTopK),
            .y = room<uint16_t>(values)};
  }
  void route(const Step& step) {
    cuda_->route({.step = step.rows,
                  .experts = kExperts,
                  .top_k = kTopK,
                  .logits = step.logits,
                  .bias = step.bias,
                  .ids = step.ids,
                  .weights = step.weights});
  }
  void run(const Placed& experts, const Step& step) {
    cuda_->experts({.step = step.rows,
                    .hidden = experts.hidden,
                    .width = kWidth,
                    .top_k = kTopK,
                    .x_q = step.x,
                    .ids = step.ids,
                    .weights = step.weights,
                    .bank = &experts.bank,
                    .shared = &experts.shared,
                    .y = step.y});
  }
  std::vector<uint16_t> result(const Placed& experts, const Step& step) {
    return read(step.y, static_cast<size_t>(step.rows.rows) * static_cast<size_t>(experts.hidden));
  }
};

}  // namespace spark::engine
