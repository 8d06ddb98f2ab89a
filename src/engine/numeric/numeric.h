// The room's public header: number formats and their arrays. It computes nothing else.
//
//   bf16.h         bf16_to_float, float_to_bf16, round_to_bf16
//   e4m3.h         e4m3_to_float, float_to_e4m3 (saturating), kE4m3Values
//   e2m1.h         e2m1_to_float, float_to_e2m1, pack_e2m1, unpack_e2m1_even/_odd, kE2m1Values
//   ue8m0.h        ue8m0_to_float, ue8m0_ceil, ceil_log2
//   block_quant.h  quantise_*, dequantise_*, fake_quantise_*: activations per block, weights per tile
//   records.h      encode_ and decode_ of window, main and index cache records, and their sizes
//
// Conventions: BF16 values are uint16_t bits, codes and scales uint8_t; rounding is to nearest even in FP32
// without flushing subnormals; nothing allocates; a span of the wrong size is a programming error
// (SPARK_CHECK).
#pragma once

#include "engine/numeric/bf16.h"
#include "engine/numeric/block_quant.h"
#include "engine/numeric/e2m1.h"
#include "engine/numeric/e4m3.h"
#include "engine/numeric/records.h"
#include "engine/numeric/ue8m0.h"
