// Sums whose parts lie on several ranks, or that one rank has not rounded yet.
#pragma once

#include <cstdint>
#include <span>

namespace spark::engine {

// y = round_bf16( sum over r of x[r] ), in double, x[0] first; x[r] is [rows][terms][cols], y BF16
// [rows][cols]. With several terms each is rounded so, and y is their sum in FP32 in order, rounded again.
void add_partials(std::span<const double* const> x, int64_t rows, int64_t terms, int64_t cols, uint16_t* y);

}  // namespace spark::engine
