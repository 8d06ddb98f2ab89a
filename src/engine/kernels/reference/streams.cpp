#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/kernels/reference/arithmetic.h"
#include "engine/kernels/reference/operations.h"
#include "engine/numeric/numeric.h"

namespace spark::engine::reference {
namespace {

// Divides every row (or column) of a square matrix by its sum + eps.
void divide_by_sums(std::vector<float>& c, int32_t size, bool rows, float eps) {
  const auto at = [&](int32_t outer, int32_t inner) -> float& {
    return c[static_cast<size_t>(rows ? outer * size + inner : inner * size + outer)];
  };
  for (int32_t outer = 0; outer < size; ++outer) {
    double sum = 0;
    for (int32_t inner = 0; inner < size; ++inner) sum += static_cast<double>(at(outer, inner));
    const float divisor = static_cast<float>(sum) + eps;
    for (int32_t inner = 0; inner < size; ++inner) at(outer, inner) /= divisor;
  }
}

void softmax_rows(std::vector<float>& c, int32_t size) {
  for (int32_t i = 0; i < size; ++i) {
    const std::span<float> row(c.data() + i * size, static_cast<size_t>(size));
    const float largest = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (float& value : row) {
      value = exp_f32(value - largest);
      sum += static_cast<double>(value);
    }
    for (float& value : row) value /= static_cast<float>(sum);
  }
}

}  // namespace

void embed(const EmbedArgs& args) {
  const size_t hidden = static_cast<size_t>(args.hidden);
  const uint16_t* table = static_cast<const uint16_t*>(args.table->data);
  for (int32_t t = 0; t < args.step.rows; ++t) {
    const int64_t row = args.step.token[t] - args.first_vocab_row;
    const uint16_t* source = nullptr;
    if (args.override_rows != nullptr && args.override_rows[t] >= 0) {
      source = args.overrides + static_cast<size_t>(args.override_rows[t]) * hidden;
    } else if (row >= 0 && row < args.table->rows) {
      source = table + static_cast<size_t>(row) * hidden;
    }
    for (int32_t k = 0; k < args.streams; ++k) {
      uint16_t* h =
          args.h +
          (static_cast<size_t>(t) * static_cast<size_t>(args.streams) + static_cast<size_t>(k)) * hidden;
      if (source != nullptr) {
        std::copy_n(source, hidden, h);
      } else {
        std::fill_n(h, hidden, uint16_t{0});
      }
      args.pre[t * args.streams + k] = k == 0 ? 1.0F : 0.0F;
    }
  }
}

MhcCoefficients mhc_coefficients(std::span<const float> m, std::span<const float> scale,
                                 std::span<const float> base, int32_t streams, int32_t iterations,
                                 float eps) {
  const size_t s = static_cast<size_t>(streams);
  MhcCoefficients out{std::vector<float>(s), std::vector<float>(s), std::vector<float>(s * s)};
  for (size_t k = 0; k < s; ++k) {
    out.pre[k] = sigmoid(m[k] * scale[0] + base[k]) + eps;
    out.post[k] = 2.0F * sigmoid(m[s + k] * scale[1] + base[s + k]);
  }
  for (size_t i = 0; i < s * s; ++i) out.comb[i] = m[2 * s + i] * scale[2] + base[2 * s + i];
  softmax_rows(out.comb, streams);
  for (float& value : out.comb) value += eps;
  divide_by_sums(out.comb, streams, false, eps);
  for (int32_t i = 1; i < iterations; ++i) {
    divide_by_sums(out.comb, streams, true, eps);
    divide_by_sums(out.comb, streams, false, eps);
  }
  return out;
}

void mhc_mix(const MhcMixArgs& args) {
  const size_t streams = static_cast<size_t>(args.streams);
  const size_t width = streams * static_cast<size_t>(args.hidden);
  const size_t mixes = (2 + streams) * streams;
  std::vector<float> x(width);
  std::vector<float> m(mixes);
  for (size_t row = 0; row < static_cast<size_t>(args.rows); ++row) {
    const std::span<const uint16_t> h(args.h + row * width, width);
    to_float(h, x);
    const float rs = rsqrt_f32(mean_square(h) + args.norm_eps);
    for (size_t n = 0; n < mixes; ++n) {
      m[n] = dot(x, {static_cast<const float*>(args.fn->data) + n * width, width}) * rs;
    }
    const MhcCoefficients c =
        mhc_coefficients(m, {args.scale, 3}, {args.base, mixes}, args.streams, args.iterations, args.eps);
    std::copy(c.pre.begin(), c.pre.end(), args.pre + row * streams);
    std::copy(c.post.begin(), c.post.end(), args.post + row * streams);
    std::copy(c.comb.begin(), c.comb.end(), args.comb + row * streams * streams);
  }
}

void mhc_collapse(const MhcCollapseArgs& args) {
  const size_t hidden = static_cast<size_t>(args.hidden);
  const size_t streams = static_cast<size_t>(args.streams);
  std::vector<uint16_t> u(hidden);
  for (size_t row = 0; row < static_cast<size_t>(args.rows); ++row) {
    const uint16_t* h = args.h + row * streams * hidden;
    for (size_t d = 0; d < hidden; ++d) {
      double sum = 0;
      for (size_t k = 0; k < streams; ++k) {
        sum += static_cast<double>(args.pre[row * streams + k] * bf16_to_float(h[k * hidden + d]));
      }
      u[d] = float_to_bf16(static_cast<float>(sum));
    }
    if (args.u != nullptr) std::copy(u.begin(), u.end(), args.u + row * hidden);
    QuantisedRows x_q;
    if (args.x_q.codes != nullptr) {
      x_q = {args.x_q.codes + row * hidden, args.x_q.scales + row * (hidden / 32)};
    }
    rms_norm({.rows = 1,
              .cols = args.hidden,
              .eps = args.norm_eps,
              .x = u.data(),
              .x_stride = args.hidden,
              .weight = args.norm_weight,
              .y = args.x == nullptr ? nullptr : args.x + row * hidden,
              .y_q = x_q});
  }
}

void mhc_expand(const MhcExpandArgs& args) {
  const size_t hidden = static_cast<size_t>(args.hidden);
  const size_t streams = static_cast<size_t>(args.streams);
  std::vector<float> old(streams);
  for (size_t row = 0; row < static_cast<size_t>(args.rows); ++row) {
    uint16_t* h = args.h + row * streams * hidden;
    const float* post = args.post + row * streams;
    const float* comb = args.comb + row * streams * streams;
    for (size_t d = 0; d < hidden; ++d) {
      for (size_t i = 0; i < streams; ++i) old[i] = bf16_to_float(h[i * hidden + d]);
      const float y = bf16_to_float(args.y[row * hidden + d]);
      for (size_t j = 0; j < streams; ++j) {
        double sum = 0;
        for (size_t i = 0; i < streams; ++i) sum += static_cast<double>(comb[i * streams + j] * old[i]);
        h[j * hidden + d] = float_to_bf16(post[j] * y + static_cast<float>(sum));
      }
    }
  }
}

void stream_mean(const StreamMeanArgs& args) {
  const size_t hidden = static_cast<size_t>(args.hidden);
  const size_t streams = static_cast<size_t>(args.streams);
  for (size_t row = 0; row < static_cast<size_t>(args.rows); ++row) {
    const uint16_t* h = args.h + row * streams * hidden;
    for (size_t d = 0; d < hidden; ++d) {
      double sum = 0;
      for (size_t k = 0; k < streams; ++k) sum += static_cast<double>(bf16_to_float(h[k * hidden + d]));
      args.out[row * static_cast<size_t>(args.out_stride) + d] =
          float_to_bf16(static_cast<float>(sum) / static_cast<float>(streams));
    }
  }
}

void gather_rows(const GatherRowsArgs& args) {
  const size_t cols = static_cast<size_t>(args.cols);
  for (size_t i = 0; i < static_cast<size_t>(args.rows); ++i) {
    std::copy_n(args.in + static_cast<size_t>(args.row[i]) * cols, cols, args.out + i * cols);
  }
}

void engram_dequantise(const EngramDequantiseArgs& args) {
  const size_t n = static_cast<size_t>(args.rows) * static_cast<size_t>(args.cols);
  dequantise_fp8_block32({args.codes, n}, {args.scales, n / 32}, std::span<uint16_t>(args.x, n));
}

void engram_inject(const EngramInjectArgs& args) {
  const size_t hidden = static_cast<size_t>(args.hidden);
  const size_t streams = static_cast<size_t>(args.streams);
  const float root = static_cast<float>(std::pow(static_cast<double>(args.hidden), -0.5));
  for (size_t row = 0; row < static_cast<size_t>(args.step.rows); ++row) {
    const uint16_t* kv = args.kv + row * (streams + 1) * hidden;
    const uint16_t* value = kv + streams * hidden;
    for (size_t k = 0; k < streams; ++k) {
      uint16_t* h = args.h + (row * streams + k) * hidden;
      const uint16_t* key = kv + k * hidden;
      const float rs = rsqrt_f32(mean_square({h, hidden}) + args.norm_eps) *
                       rsqrt_f32(mean_square({key, hidden}) + args.norm_eps);
      double sum = 0;
      for (size_t d = 0; d < hidden; ++d) {
        const float w =
            bf16_to_float(args.q_weight[k * hidden + d]) * bf16_to_float(args.k_weight[k * hidden + d]);
        sum += static_cast<double>(bf16_to_float(h[d]) * w * bf16_to_float(key[d]));
      }
      const float dot_product = static_cast<float>(sum) * rs * root;
      const float magnitude = std::sqrt(std::max(std::fabs(dot_product), 1e-6F));
      const bool image = args.step.is_image != nullptr && args.step.is_image[row] != 0;
      const float gate = image ? 0.0F : sigmoid(std::copysign(magnitude, dot_product));
      for (size_t d = 0; d < hidden; ++d) {
        h[d] = float_to_bf16(bf16_to_float(h[d]) + gate * bf16_to_float(value[d]));
      }
      if (args.gate != nullptr) args.gate[row * streams + k] = gate;
    }
  }
}

}  // namespace spark::engine::reference
