#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "engine/kernels/reference/arithmetic.h"
#include "engine/kernels/reference/operations.h"
#include "engine/numeric/numeric.h"

namespace spark::engine::reference {
namespace {

// One row through one expert: y [hidden], before its BF16 rounding.
std::vector<double> run_expert(const ExpertWeights& expert, const ExpertsArgs& args, int32_t row,
                               float weight) {
  const size_t width = static_cast<size_t>(args.width);
  const QuantisedRows x_q{args.x_q.codes + static_cast<int64_t>(row) * args.hidden,
                          args.x_q.scales + static_cast<int64_t>(row) * (args.hidden / 32)};
  std::vector<uint16_t> gate(width);
  std::vector<uint16_t> up(width);
  linear({.rows = 1, .x_q = x_q, .weight = &expert.w1, .y = gate.data(), .y_stride = args.width});
  linear({.rows = 1, .x_q = x_q, .weight = &expert.w3, .y = up.data(), .y_stride = args.width});
  std::vector<uint16_t> t(width);
  for (size_t i = 0; i < width; ++i) t[i] = swiglu(gate[i], up[i], weight, args.limit);
  std::vector<uint8_t> codes(width);
  std::vector<uint8_t> scales(width / 32);
  quantise_fp8_block32(t, codes, scales);
  std::vector<double> y(static_cast<size_t>(args.hidden));
  linear({.rows = 1,
          .x_q = {codes.data(), scales.data()},
          .weight = &expert.w2,
          .y_f64 = y.data(),
          .y_stride = args.hidden});
  return y;
}

}  // namespace

float router_score(float z) {
  const double wide = static_cast<double>(z);
  const float softplus = z > 20.0F ? z : static_cast<float>(std::log1p(std::exp(wide)));
  return std::sqrt(softplus);
}

void route(const RouteArgs& args) {
  const size_t experts = static_cast<size_t>(args.experts);
  const size_t top_k = static_cast<size_t>(args.top_k);
  std::vector<float> score(experts);
  std::vector<float> biased(experts);
  std::vector<int32_t> order(experts);
  for (size_t row = 0; row < static_cast<size_t>(args.step.rows); ++row) {
    const bool image = args.step.is_image != nullptr && args.step.is_image[row] != 0;
    const float* bias = image && args.image_bias != nullptr ? args.image_bias : args.bias;
    for (size_t e = 0; e < experts; ++e) {
      score[e] = router_score(args.logits[row * experts + e]);
      biased[e] = score[e] + bias[e];
    }
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return biased[static_cast<size_t>(a)] > biased[static_cast<size_t>(b)];
    });
    double sum = 0;
    for (size_t i = 0; i < top_k; ++i) sum += static_cast<double>(score[static_cast<size_t>(order[i])]);
    const float divisor = static_cast<float>(sum) + 1e-20F;
    for (size_t i = 0; i < top_k; ++i) {
      const float s = score[static_cast<size_t>(order[i])];
      args.ids[row * top_k + i] = order[i];
      args.weights[row * top_k + i] = (args.normalise ? s / divisor : s) * args.scale;
    }
  }
}

uint16_t swiglu(uint16_t gate, uint16_t up, float weight, float limit) {
  const float a = std::min(bf16_to_float(gate), limit);
  const float b = std::clamp(bf16_to_float(up), -limit, limit);
  const float silu = a / (1.0F + exp_f32(-a));
  return float_to_bf16(weight * (silu * b));
}

void experts(const ExpertsArgs& args) {
  const size_t hidden = static_cast<size_t>(args.hidden);
  const size_t top_k = static_cast<size_t>(args.top_k);
  std::vector<float> sum(hidden);
  std::vector<size_t> order(top_k);
  double* unrounded = nullptr;
  const auto add = [&](const std::vector<double>& y) {
    if (unrounded != nullptr) {
      unrounded = std::copy(y.begin(), y.end(), unrounded);
      return;
    }
    for (size_t d = 0; d < hidden; ++d) sum[d] += round_to_bf16(static_cast<float>(y[d]));
  };
  for (int32_t row = 0; row < args.step.rows; ++row) {
    if (args.step.sequence[row] < 0) continue;
    const int32_t* ids = args.ids + static_cast<size_t>(row) * top_k;
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return ids[a] < ids[b]; });
    std::fill(sum.begin(), sum.end(), 0.0F);
    if (args.y_f64 != nullptr) unrounded = args.y_f64 + static_cast<size_t>(row) * (top_k + 1) * hidden;
    for (const size_t i : order) {
      const float weight = args.weights[static_cast<size_t>(row) * top_k + i];
      add(run_expert(args.bank->experts[static_cast<size_t>(ids[i])], args, row, weight));
    }
    add(run_expert(*args.shared, args, row, 1.0F));
    if (unrounded != nullptr) continue;
    uint16_t* y = args.y + static_cast<size_t>(row) * hidden;
    for (size_t d = 0; d < hidden; ++d) y[d] = float_to_bf16(sum[d]);
  }
}

}  // namespace spark::engine::reference
