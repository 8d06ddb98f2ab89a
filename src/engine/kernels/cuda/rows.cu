// Row-wise kernels: quantising cast, RMS norm, embedding, Engram.
#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/norm.cuh"
#include "engine/kernels/cuda/table.cuh"

namespace spark::engine::cuda {
namespace {

__global__ void quantise_kernel(const uint16_t* x, int64_t total, uint8_t* codes, uint8_t* scales) {
  launch_dependents();
  wait_for_inputs();
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
  const bool valid = i < total;
  const Eight e = valid ? load_eight(x + i) : Eight{};
  const EightCodes q = quantise_eight(e);
  if (!valid) return;
  *reinterpret_cast<uint2*>(codes + i) = q.codes;
  if ((i & 31) == 0) scales[i / 32] = q.scale;
}

// One block per row and norm.
__global__ void __launch_bounds__(1024)
    rms_norm_kernel(const __grid_constant__ NormParams first, const __grid_constant__ NormParams second) {
  __shared__ float scratch[32];
  launch_dependents();
  const NormParams& p = blockIdx.y == 0 ? first : second;
  const int64_t row = blockIdx.x;
  const int pieces = p.cols / 8;
  uint4 weight[kMaxPieces];
  load_norm_weight(p.weight, pieces, weight);
  wait_for_inputs();
  norm_row(p, row, weight, scratch);
}

__global__ void gather_rows_kernel(const uint16_t* in, const int32_t* row, int cols, uint16_t* out) {
  launch_dependents();
  wait_for_inputs();
  const int64_t to = blockIdx.x;
  const int64_t from = row[to];
  for (int i = static_cast<int>(threadIdx.x); i < cols; i += static_cast<int>(blockDim.x)) {
    out[to * cols + i] = in[from * cols + i];
  }
}

__global__ void embed_kernel(TableView table, const int32_t* token, const int32_t* sequence,
                             int64_t first_vocab_row, const uint16_t* overrides, const int32_t* override_rows,
                             int streams, int hidden, uint16_t* h, float* pre) {
  launch_dependents();
  wait_for_inputs();
  const int64_t row = blockIdx.y;
  if (sequence[row] < 0) return;
  const int channel = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int replaced = override_rows == nullptr ? -1 : override_rows[row];
  if (channel < hidden) {
    const int64_t vocab_row = token[row] - first_vocab_row;
    uint16_t v = 0;
    if (replaced >= 0) {
      v = overrides[static_cast<int64_t>(replaced) * hidden + channel];
    } else if (vocab_row >= 0 && vocab_row < table.rows) {
      v = table_value(table, vocab_row, channel);
    }
    for (int k = 0; k < streams; ++k) h[(row * streams + k) * hidden + channel] = v;
  }
  if (channel < streams) pre[row * streams + channel] = channel == 0 ? 1.0f : 0.0f;
}

__global__ void engram_dequantise_kernel(const uint8_t* codes, const uint8_t* scales, int64_t total,
                                         uint16_t* x) {
  launch_dependents();
  wait_for_inputs();
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
  if (i >= total) return;
  const uint2 w = *reinterpret_cast<const uint2*>(codes + i);
  const float scale = ue8m0_to_float(scales[i / 32]);
  Eight e;
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    const uint32_t word = pair < 2 ? w.x : w.y;
    const float2 v = e4m3x2_to_float2(word >> (16 * (pair & 1)));
    e.v[2 * pair] = v.x * scale;
    e.v[2 * pair + 1] = v.y * scale;
  }
  store_eight(x + i, e);
}

// One block per (row, stream).
__global__ void __launch_bounds__(1024)
    engram_inject_kernel(const uint16_t* kv, const uint16_t* q_weight, const uint16_t* k_weight,
                         const uint8_t* is_image, const int32_t* sequence, int streams, int hidden, float eps,
                         uint16_t* h, float* gate) {
  __shared__ float scratch[3][32];
  launch_dependents();
  wait_for_inputs();
  const int k = static_cast<int>(blockIdx.x);
  const int64_t row = blockIdx.y;
  if (sequence[row] < 0) return;
  const uint16_t* key = kv + row * (streams + 1) * hidden + static_cast<int64_t>(k) * hidden;
  const uint16_t* value = kv + row * (streams + 1) * hidden + static_cast<int64_t>(streams) * hidden;
  uint16_t* stream = h + (row * streams + k) * hidden;
  const int pieces = hidden / 8;
  float hh = 0.0f, kk = 0.0f, dot = 0.0f;
  Eight mine[kMaxPieces];
#pragma unroll
  for (int j = 0; j < kMaxPieces; ++j) {
    const int index = j * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
    if (index >= pieces) continue;
    mine[j] = load_eight(stream + index * 8);
    const Eight y = load_eight(key + index * 8);
    const Eight a = load_eight(q_weight + static_cast<int64_t>(k) * hidden + index * 8);
    const Eight b = load_eight(k_weight + static_cast<int64_t>(k) * hidden + index * 8);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      hh = fmaf(mine[j].v[i], mine[j].v[i], hh);
      kk = fmaf(y.v[i], y.v[i], kk);
      dot = fmaf(mine[j].v[i] * (a.v[i] * b.v[i]), y.v[i], dot);
    }
  }
  hh = block_sum(hh, scratch[0]);
  kk = block_sum(kk, scratch[1]);
  dot = block_sum(dot, scratch[2]);
  const float d = static_cast<float>(hidden);
  const float rs = __frsqrt_rn(hh / d + eps) * __frsqrt_rn(kk / d + eps);
  const float score = dot * rs * (1.0f / sqrtf(d));
  float g = sigmoid(copysignf(sqrtf(fmaxf(fabsf(score), 1e-6f)), score));
  if (is_image != nullptr && is_image[row] != 0) g = 0.0f;
  if (gate != nullptr && threadIdx.x == 0) gate[row * streams + k] = g;
#pragma unroll
  for (int j = 0; j < kMaxPieces; ++j) {
    const int index = j * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
    if (index >= pieces) continue;
    const Eight v = load_eight(value + index * 8);
#pragma unroll
    for (int i = 0; i < 8; ++i) mine[j].v[i] = mine[j].v[i] + g * v.v[i];
    store_eight(stream + index * 8, mine[j]);
  }
}

}  // namespace

void launch_quantise(const Launch& on, const QuantiseArgs& args) {
  const int64_t total = static_cast<int64_t>(args.rows) * args.cols;
  if (total == 0) return;
  constexpr int kThreads = 128;
  launch_kernel(on, quantise_kernel, dim3(static_cast<unsigned>(ceil_div(total, kThreads * 8))), kThreads, 0,
                1, args.x, total, args.out.codes, args.out.scales);
}

NormParams norm_params(const RmsNormArgs& args) {
  require_width(args.cols, "an RMS norm");
  return {.x = args.x,
          .x_stride = args.x_stride == 0 ? args.cols : args.x_stride,
          .cols = args.cols,
          .eps = args.eps,
          .weight = args.weight,
          .y = args.y,
          .codes = args.y_q.codes,
          .scales = args.y_q.scales};
}

void launch_rms_norm(const Launch& on, const RmsNormArgs& args) {
  const NormParams p = norm_params(args);
  launch_kernel(on, rms_norm_kernel, dim3(static_cast<unsigned>(args.rows)), row_threads(args.cols), 0, 1, p,
                p);
}

void launch_rms_norms(const Launch& on, const RmsNormArgs& first, const RmsNormArgs& second) {
  launch_kernel(on, rms_norm_kernel, dim3(static_cast<unsigned>(first.rows), 2),
                row_threads(std::max(first.cols, second.cols)), 0, 1, norm_params(first),
                norm_params(second));
}

void launch_gather_rows(const Launch& on, const GatherRowsArgs& args) {
  launch_kernel(on, gather_rows_kernel, dim3(static_cast<unsigned>(args.rows)), 256, 0, 1, args.in, args.row,
                args.cols, args.out);
}

void launch_embed(const Launch& on, const EmbedArgs& args, const PreparedWeight& table) {
  launch_kernel(
      on, embed_kernel,
      dim3(static_cast<unsigned>(ceil_div(args.hidden, 256)), static_cast<unsigned>(args.step.rows)), 256, 0,
      1, table_view(table), args.step.token, args.step.sequence, args.first_vocab_row, args.overrides,
      args.override_rows, args.streams, args.hidden, args.h, args.pre);
}

void launch_engram_dequantise(const Launch& on, const EngramDequantiseArgs& args) {
  const int64_t total = static_cast<int64_t>(args.rows) * args.cols;
  launch_kernel(on, engram_dequantise_kernel, dim3(static_cast<unsigned>(ceil_div(total, 128 * 8))), 128, 0,
                1, args.codes, args.scales, total, args.x);
}

void launch_engram_inject(const Launch& on, const EngramInjectArgs& args) {
  require_width(args.hidden, "an Engram injection");
  launch_kernel(on, engram_inject_kernel,
                dim3(static_cast<unsigned>(args.streams), static_cast<unsigned>(args.step.rows)),
                row_threads(args.hidden), 0, 1, args.kv, args.q_weight, args.k_weight, args.step.is_image,
                args.step.sequence, args.streams, args.hidden, args.norm_eps, args.h, args.gate);
}

}  // namespace spark::engine::cuda
