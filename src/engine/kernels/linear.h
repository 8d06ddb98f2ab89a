// Matrix products with weights [out, in], normalisation and activation quantisation.
#pragma once

#include "engine/kernels/types.h"

namespace spark::engine {

// codes, scales = FP8 block-32 activation quantiser of x (numeric/block_quant.h): amax floor 1e-4, scale
// 2^ceil(log2).
struct QuantiseArgs {
  int32_t rows = 0;
  int32_t cols = 0;             // multiple of 32
  const uint16_t* x = nullptr;  // BF16 [rows][cols]
  QuantisedRows out = {};
};

// y[m][n] = sum over k of x[m][k] * w[n][k], accumulated in FP32 in an order that depends on neither `rows`
// nor m. The reference sums in double and rounds once to FP32.
//   weight FP8 or FP4: x_q is used; per 32-column block the code products are summed, then scaled by both
//   powers of two. weight BF16 or F32: x (BF16) is used; products are of FP32 operands, exactly (no TF32).
// Exactly one of y (rounded to BF16), y_f32 and y_f64 is set. y_f64 takes sums that nobody has rounded, which
// backends with sums_in_double() can leave: a block's products may be added in FP32, blocks in double.
struct LinearArgs {
  int32_t rows = 0;
  const uint16_t* x = nullptr;  // BF16 [rows][cols]
  QuantisedRows x_q = {};
  const Weight* weight = nullptr;
  uint16_t* y = nullptr;    // BF16 [rows][y_stride]
  float* y_f32 = nullptr;   // FP32 [rows][y_stride]
  double* y_f64 = nullptr;  // FP64 [rows][y_stride]
  int64_t y_stride = 0;     // elements between rows of the output; at least weight->rows
};

// Block-diagonal projection (WO-A): x viewed [rows][groups][cols], weight FP8 [groups * out, cols] with BF16
// (unquantised) activations: y[m][g*out + n] = round_bf16( sum_k x[m][g][k] * w[g*out + n][k] ).
struct GroupedLinearArgs {
  int32_t rows = 0;
  int32_t groups = 0;
  const uint16_t* x = nullptr;  // BF16 [rows][groups * weight->cols]
  const Weight* weight = nullptr;
  uint16_t* y = nullptr;  // BF16 [rows][weight->rows]
};

// y = round_bf16( w * (x * rsqrt(mean(x^2) + eps)) ), FP32 inside. Optionally also the FP8 form of y.
struct RmsNormArgs {
  int32_t rows = 0;
  int32_t cols = 0;
  float eps = 1e-20F;
  const uint16_t* x = nullptr;  // BF16 [rows][x_stride]
  int64_t x_stride = 0;
  const uint16_t* weight = nullptr;  // BF16 [cols]
  uint16_t* y = nullptr;  // BF16 [rows][cols]; may alias x when x_stride == cols; may be null when y_q is set
  QuantisedRows y_q = {};  // may be empty
};

// Of sums that linear() and experts() have left unrounded: y = round_bf16(x) with one term; with several each
// is rounded, and y is their sum in FP32 in order, rounded again.
struct RoundPartialsArgs {
  int32_t rows = 0;
  int32_t terms = 1;
  int32_t cols = 0;
  const double* x = nullptr;  // [rows][terms][cols]
  uint16_t* y = nullptr;      // BF16 [rows][cols]
};

}  // namespace spark::engine
