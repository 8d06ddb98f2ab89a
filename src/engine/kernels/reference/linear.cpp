#include <algorithm>
#include <vector>

#include "common/error.h"
#include "engine/kernels/reference/arithmetic.h"
#include "engine/kernels/reference/operations.h"
#include "engine/numeric/numeric.h"

namespace spark::engine::reference {
namespace {

// The inputs of one row as FP32: BF16 values, or codes times their scales.
void decode_input_row(const LinearArgs& args, int64_t row, std::span<float> out) {
  const int64_t cols = args.weight->cols;
  const bool quantised =
      args.weight->format == WeightFormat::kFp8 || args.weight->format == WeightFormat::kFp4;
  if (quantised) {
    dequantise_fp8_block32({args.x_q.codes + row * cols, static_cast<size_t>(cols)},
                           {args.x_q.scales + row * (cols / 32), static_cast<size_t>(cols / 32)}, out);
  } else {
    to_float({args.x + row * cols, static_cast<size_t>(cols)}, out);
  }
}

}  // namespace

void quantise(const QuantiseArgs& args) {
  const size_t cols = static_cast<size_t>(args.cols);
  for (size_t row = 0; row < static_cast<size_t>(args.rows); ++row) {
    quantise_fp8_block32({args.x + row * cols, cols}, {args.out.codes + row * cols, cols},
                         {args.out.scales + row * (cols / 32), cols / 32});
  }
}

void decode_weight_row(const Weight& weight, int64_t n, std::span<float> out) {
  const size_t cols = static_cast<size_t>(weight.cols);
  const size_t row = static_cast<size_t>(n);
  switch (weight.format) {
    case WeightFormat::kBf16:
      to_float({static_cast<const uint16_t*>(weight.data) + row * cols, cols}, out);
      return;
    case WeightFormat::kF32:
      std::copy_n(static_cast<const float*>(weight.data) + row * cols, cols, out.begin());
      return;
    case WeightFormat::kFp8: {
      const uint8_t* codes = static_cast<const uint8_t*>(weight.data) + row * cols;
      const uint8_t* scales = weight.scales + (row / 32) * ((cols + 31) / 32);
      for (size_t k = 0; k < cols; ++k) out[k] = e4m3_to_float(codes[k]) * ue8m0_to_float(scales[k / 32]);
      return;
    }
    case WeightFormat::kFp4: {
      const uint8_t* packed = static_cast<const uint8_t*>(weight.data) + row * (cols / 2);
      dequantise_fp4_block32_ue8m0({packed, cols / 2}, {weight.scales + row * (cols / 32), cols / 32}, out);
      return;
    }
  }
}

void linear(const LinearArgs& args) {
  const Weight& weight = *args.weight;
  const size_t cols = static_cast<size_t>(weight.cols);
  std::vector<float> inputs(static_cast<size_t>(args.rows) * cols);
  for (int64_t m = 0; m < args.rows; ++m) {
    decode_input_row(args, m, {inputs.data() + static_cast<size_t>(m) * cols, cols});
  }
  std::vector<float> w(cols);
  for (int64_t n = 0; n < weight.rows; ++n) {
    decode_weight_row(weight, n, w);
    for (int64_t m = 0; m < args.rows; ++m) {
      const double y = dot_double({inputs.data() + static_cast<size_t>(m) * cols, cols}, w);
      const int64_t at = m * args.y_stride + n;
      if (args.y != nullptr) {
        args.y[at] = float_to_bf16(static_cast<float>(y));
      } else if (args.y_f32 != nullptr) {
        args.y_f32[at] = static_cast<float>(y);
      } else {
        args.y_f64[at] = y;
      }
    }
  }
}

void grouped_linear(const GroupedLinearArgs& args) {
  const Weight& weight = *args.weight;
  const int64_t out = weight.rows / args.groups;
  const size_t cols = static_cast<size_t>(weight.cols);
  std::vector<float> w(cols);
  std::vector<float> input(cols);
  for (int64_t n = 0; n < weight.rows; ++n) {
    decode_weight_row(weight, n, w);
    for (int64_t m = 0; m < args.rows; ++m) {
      to_float({args.x + (m * args.groups + n / out) * weight.cols, cols}, input);
      args.y[m * weight.rows + n] = float_to_bf16(dot(input, w));
    }
  }
}

void rms_norm(const RmsNormArgs& args) {
  const size_t cols = static_cast<size_t>(args.cols);
  std::vector<uint16_t> y(cols);
  for (int64_t row = 0; row < args.rows; ++row) {
    const uint16_t* x = args.x + row * args.x_stride;
    const float r = rsqrt_f32(mean_square({x, cols}) + args.eps);
    for (size_t i = 0; i < cols; ++i) {
      y[i] = float_to_bf16(bf16_to_float(args.weight[i]) * (bf16_to_float(x[i]) * r));
    }
    const size_t at = static_cast<size_t>(row) * cols;
    if (args.y != nullptr) std::copy(y.begin(), y.end(), args.y + at);
    if (args.y_q.codes != nullptr) {
      quantise_fp8_block32(y, {args.y_q.codes + at, cols}, {args.y_q.scales + at / 32, cols / 32});
    }
  }
}

}  // namespace spark::engine::reference
