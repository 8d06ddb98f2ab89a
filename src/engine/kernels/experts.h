// The router and the expert layer.
#pragma once

#include "engine/kernels/types.h"

namespace spark::engine {

// z = logits (FP32); s = sqrt(softplus(z)), softplus(z) = z for z > 20, else log1p(exp(z)).
// The top_k best of s + bias (ties: lowest expert) in descending order of s + bias; weight = s / (sum s +
// 1e-20) * scale.
struct RouteArgs {
  StepRows step = {};
  int32_t experts = 0;
  int32_t top_k = 0;
  float scale = 1.5F;
  bool normalise = true;
  const float* logits = nullptr;      // FP32 [rows][experts]
  const float* bias = nullptr;        // FP32 [experts]
  const float* image_bias = nullptr;  // used for rows of an image span; null: bias
  int32_t* ids = nullptr;             // [rows][top_k]
  float* weights = nullptr;           // [rows][top_k]
};

// Per row and selected expert e: a = w1(x), b = w3(x) (BF16 outputs); b = clamp(b, -limit, limit), a = min(a,
// limit); t = weight_e * (silu(a) * b) in FP32; y_e = w2(quantise(round_bf16(t))) (BF16 output). y =
// round_bf16( sum over the selected experts in ascending index of y_e (FP32)  +  shared(x) ); the shared
// expert is the same formula without a weight. silu(a) = a / (1 + exp(-a)).
// y_f64, set instead of y where the backend has sums_in_double(), takes the y_e before their rounding, in
// ascending index with the shared expert's last, as LinearArgs::y_f64 does; who adds up ranks rounds them.
struct ExpertsArgs {
  StepRows step = {};
  int32_t hidden = 0;
  int32_t width = 0;
  int32_t top_k = 0;
  float limit = 10;
  QuantisedRows x_q = {};                 // the row, quantised once
  const int32_t* ids = nullptr;           // [rows][top_k]
  const float* weights = nullptr;         // [rows][top_k]
  const ExpertBank* bank = nullptr;       // FP4
  const ExpertWeights* shared = nullptr;  // FP8
  uint16_t* y = nullptr;                  // BF16 [rows][hidden]
  double* y_f64 = nullptr;                // FP64 [rows][top_k + 1][hidden]
};

}  // namespace spark::engine
