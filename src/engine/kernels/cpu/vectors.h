// Work on attention vectors: rotation, the FP4 quantisers, records, pooling, mHC coefficients. One call does
// one vector. Widths are multiples of 32.
#pragma once

#include <cstdint>

namespace spark::engine::cpu {

// Rotates the last 2*pairs of `width` BF16 channels in place; cos_sin [pairs][2].
void rotate(uint16_t* x, int64_t width, const float* cos_sin, int pairs, bool inverse);
// The same out of place, to FP32 values that were rounded to BF16.
void rotated_floats(const uint16_t* x, int64_t width, const float* cos_sin, int pairs, float* out);

// From values already rounded to BF16: FP4 with UE8M0 per 32 and with E4M3 per 16.
void quantise_fp4_ue8m0(const float* x, int64_t n, uint8_t* packed, uint8_t* scales);
void quantise_fp4_e4m3(const float* x, int64_t n, uint8_t* packed, uint8_t* scales);
// Code values doubled (so that they are integers) and half the scale per 32.
void decode_fp4_row(const uint8_t* packed, const uint8_t* scales, int64_t n, float* x, float* scale);

// Records to FP32.
void decode_window_record_f32(const uint8_t* record, int64_t width, float* out);
void decode_main_record_f32(const uint8_t* record, int64_t width, float* out);

// Ratio-2 pooling of one pair, see PoolPairsArgs.
void pool_pair(const float* kv0, const float* score0, const float* kv1, const float* score1, int64_t width,
               uint16_t* pooled);

// The coefficients of `rows` rows from their 2S + S*S products (m: [rows][32], all are read): see MhcMixArgs.
// pre, post [rows][S], comb [rows][S * S]. `m` is scratch: it is changed.
void mhc_coefficients(float* m, int rows, const float* scale, const float* base, int streams, int iterations,
                      float eps, float* pre, float* post, float* comb);

}  // namespace spark::engine::cpu
