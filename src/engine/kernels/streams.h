// The residual streams: embedding, mHC mixes, collapse and expand, stream means, Engram injection.
// S streams of D channels; h is BF16 [rows][S][D].
#pragma once

#include "engine/kernels/types.h"

namespace spark::engine {

// h[t][k] = table[token[t]] for every stream k; pre[t] = (1, 0, .., 0). Rows with a non-null
// `override_rows[t] >= 0` take that row of `overrides` instead of the table (image spans).
struct EmbedArgs {
  StepRows step = {};
  int32_t streams = 0;
  int32_t hidden = 0;
  const Weight* table = nullptr;  // BF16 [vocab, hidden]
  int64_t first_vocab_row =
      0;  // token ids below it or beyond table->rows give zeros (vocabulary-parallel ranks)
  const uint16_t* overrides = nullptr;     // BF16 [n][hidden] or null
  const int32_t* override_rows = nullptr;  // [rows] or null
  uint16_t* h = nullptr;
  float* pre = nullptr;  // [rows][S]
};

// The 24 (2S + S*S) coefficients of one sublayer, per row, all FP32:
//   rs = rsqrt(mean over S*D of h^2 + norm_eps); m = (h . fn^T) * rs
//   pre[k] = sigmoid(m[k] * scale[0] + base[k]) + eps;  post[k] = 2 * sigmoid(m[S+k] * scale[1] + base[S+k])
//   comb = Sinkhorn of softmax over j of m[2S + S*i + j] * scale[2] + base[..], + eps: first the column
//   division, then (iterations - 1) times rows then columns, every divisor + eps. comb[i][j]: source stream
//   i, destination stream j.
struct MhcMixArgs {
  int32_t rows = 0;
  int32_t streams = 0;
  int32_t hidden = 0;
  int32_t iterations = 20;
  float eps = 1e-6F;
  float norm_eps = 1e-20F;
  const uint16_t* h = nullptr;
  const Weight* fn = nullptr;    // F32 [2S + S*S, S*D]
  const float* scale = nullptr;  // [3]
  const float* base = nullptr;   // [2S + S*S]
  float* pre = nullptr;          // [rows][S]
  float* post = nullptr;         // [rows][S]
  float* comb = nullptr;         // [rows][S][S]
};

// u = round_bf16( sum_k pre[k] * h[k] ); x = rmsnorm(u, weight); optionally x quantised. `u` itself is
// written when set.
struct MhcCollapseArgs {
  int32_t rows = 0;
  int32_t streams = 0;
  int32_t hidden = 0;
  float norm_eps = 1e-20F;
  const uint16_t* h = nullptr;
  const float* pre = nullptr;
  const uint16_t* norm_weight = nullptr;  // BF16 [D]
  uint16_t* u = nullptr;                  // BF16 [rows][D] or null
  uint16_t* x = nullptr;                  // BF16 [rows][D]
  QuantisedRows x_q = {};                 // may be empty
};

// h[j] = round_bf16( post[j] * y + sum_i comb[i][j] * h[i] ) in place; the four-term sum is formed first (i
// ascending).
struct MhcExpandArgs {
  int32_t rows = 0;
  int32_t streams = 0;
  int32_t hidden = 0;
  const uint16_t* y = nullptr;  // BF16 [rows][D]
  const float* post = nullptr;
  const float* comb = nullptr;
  uint16_t* h = nullptr;
};

// out[t] = round_bf16( (sum over streams of h) / S ), FP32 sum in stream order. For the drafter's auxiliary
// input.
struct StreamMeanArgs {
  int32_t rows = 0;
  int32_t streams = 0;
  int32_t hidden = 0;
  const uint16_t* h = nullptr;
  uint16_t* out = nullptr;  // BF16 [rows][out_stride]
  int64_t out_stride = 0;
};

// out[i] = in[row[i]]: the rows whose logits are wanted, before the vocabulary head.
struct GatherRowsArgs {
  int32_t rows = 0;  // of out
  int32_t cols = 0;
  const uint16_t* in = nullptr;  // BF16 [..][cols]
  const int32_t* row = nullptr;  // [rows], indices into `in`
  uint16_t* out = nullptr;       // BF16 [rows][cols]
};

// Engram injection, per row and stream k, with key[k] = kv[k*D ..], val = kv[S*D ..], w[k] = q_weight[k] *
// k_weight[k]:
//   rs = rsqrt(mean(h[k]^2) + eps) * rsqrt(mean(key[k]^2) + eps);  dot = (sum_d h*w*key) * rs * D^-0.5
//   g  = sigmoid(copysign(sqrt(max(|dot|, 1e-6)), dot)), 0 for image rows;  h[k] = round_bf16(h[k] + g * val)
struct EngramInjectArgs {
  StepRows step = {};
  int32_t streams = 0;
  int32_t hidden = 0;
  float norm_eps = 1e-20F;
  const uint16_t* kv = nullptr;        // BF16 [rows][(S+1)*D]
  const uint16_t* q_weight = nullptr;  // BF16 [S][D]
  const uint16_t* k_weight = nullptr;  // BF16 [S][D]
  uint16_t* h = nullptr;
  float* gate = nullptr;  // FP32 [rows][S] or null (for tests)
};

// x[t] = the Engram rows of one token side by side, dequantised: round_bf16(e4m3(code) * 2^(scale-127)).
struct EngramDequantiseArgs {
  int32_t rows = 0;
  int32_t cols = 0;                 // columns * head width, multiple of 32
  const uint8_t* codes = nullptr;   // E4M3 [rows][cols]
  const uint8_t* scales = nullptr;  // UE8M0 [rows][cols/32]
  uint16_t* x = nullptr;            // BF16 [rows][cols]
};

}  // namespace spark::engine
