// Work on single rows: conversions, activation quantisation, normalisation, residual streams. One call does
// one row; the backend spreads rows over threads. All widths are multiples of 32 unless a comment says
// otherwise.
#pragma once

#include <cstdint>

namespace spark::engine::cpu {

// BF16 to FP32, padded with zeros to a multiple of 32; any n.
void floats_from_bf16(const uint16_t* x, int64_t n, float* out);
// E4M3 code values to x, UE8M0 scales to scale.
void floats_from_codes(const uint8_t* codes, const uint8_t* scales, int64_t n, float* x, float* scale);
// E4M3 code values as pairs of the tile unit (RowView::pairs), UE8M0 scales to scale.
void pairs_from_codes(const uint8_t* codes, const uint8_t* scales, int64_t n, uint16_t* pairs, float* scale);
// Tile results [rows][32] to `lanes` columns of the output.
void store_tile_bf16(const float* tile, int64_t rows, int lanes, uint16_t* y, int64_t stride);
void store_tile_f32(const float* tile, int64_t rows, int lanes, float* y, int64_t stride);
void store_tile_f64(const double* tile, int64_t rows, int lanes, double* y, int64_t stride);

// The FP8 block-32 quantiser, from BF16 and from FP32 values that were rounded to BF16.
void quantise_row(const uint16_t* x, int64_t n, uint8_t* codes, uint8_t* scales);
void quantise_floats(const float* x, int64_t n, uint8_t* codes, uint8_t* scales);

// y = round_bf16(w * (x * rsqrt(mean(x^2) + eps))). `y` may be x or null; codes may be null.
void rms_norm_row(const uint16_t* x, const uint16_t* weight, int64_t n, float eps, uint16_t* y,
                  uint8_t* codes, uint8_t* scales);

// Sums in double, in the fixed order of 32 lanes: of x^2, and the dot product of BF16 vectors (any n).
double sum_of_squares(const float* x, int64_t n);
double dot_bf16(const uint16_t* a, const uint16_t* b, int64_t n);

// mHC, one row of S streams. `u` may be null, codes may be null.
void collapse_row(const uint16_t* h, const float* pre, const uint16_t* weight, int streams, int64_t hidden,
                  float eps, uint16_t* u, uint16_t* x, uint8_t* codes, uint8_t* scales);
void expand_row(const uint16_t* y, const float* post, const float* comb, int streams, int64_t hidden,
                uint16_t* h);
void mean_row(const uint16_t* h, int streams, int64_t hidden, uint16_t* out);

// Sums of products for one stream of the Engram gate: sum h^2, sum key^2, sum h * w * key.
struct EngramSums {
  double h = 0;
  double key = 0;
  double dot = 0;
};
EngramSums engram_sums(const uint16_t* h, const uint16_t* key, const uint16_t* q_weight,
                       const uint16_t* k_weight, int64_t hidden);
// h = round_bf16(h + gate * value)
void add_scaled(const uint16_t* value, float gate, int64_t hidden, uint16_t* h);
// round_bf16(e4m3(code) * 2^(scale - 127)); NaN codes stay NaN.
void dequantise_row(const uint8_t* codes, const uint8_t* scales, int64_t n, uint16_t* x);

// The gated unit of one expert on a tile: a, b [rows][32] are products before their BF16 rounding, weight
// [rows]. Writes 32 code values of the quantised result per row, and its scale; the values as floats, as
// pairs of the tile unit, or both (each may be null). `a` is scratch: it is changed.
struct GatedOutput {
  float* codes = nullptr;
  uint16_t* pairs = nullptr;
  int64_t stride = 0;  // of both, in values
  float* scales = nullptr;
  int64_t scales_stride = 0;
};
void gated_tiles(float* a, const float* b, int64_t rows, float limit, const float* weight,
                 const GatedOutput& out);
// sum += round_bf16(tile), 32 values each.
void add_rounded(const float* tile, float* sum);

}  // namespace spark::engine::cpu
