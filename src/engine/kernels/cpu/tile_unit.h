// Products on Intel's tile unit (AMX, TDPBF16PS): E4M3 and E2M1 codes are exact in BF16, and the order in
// which the unit adds is the one that tile_product.h defines, so the bits are those of every other path.
//
// Used where the processor has it (with AVX-512 VBMI), the system lets the process use it, and the
// environment variable SPARK_CPU_AMX is not 0.
#pragma once

#include <cstdint>

#include "engine/kernels/cpu/tile_product.h"

namespace spark::engine::cpu {

bool tile_unit_usable();
// For tests: without it from now on, or with it again where it is usable.
void allow_tile_unit(bool allowed);

// BF16 values as pairs (RowView::pairs), padded with zeros to a multiple of 32; those below kLeastPlain
// become zeros. Only where tile_unit_usable().
void pairs_from_bf16(const uint16_t* x, int64_t n, uint16_t* pairs);

// Blocks first .. last-1 of one tile of FP8 or FP4 codes against `count` rows, whose `pairs` lie equally far
// apart, with room for 15 more rows after the last (read, not used). out [count][32], as tile_product(). Only
// where tile_unit_usable().
void tile_unit_product(WeightFormat format, const uint8_t* data, const uint8_t* scales, const RowView* rows,
                       int64_t count, int64_t first, int64_t last, float* out);
void tile_unit_product(WeightFormat format, const uint8_t* data, const uint8_t* scales, const RowView* rows,
                       int64_t count, int64_t first, int64_t last, double* out);

}  // namespace spark::engine::cpu
