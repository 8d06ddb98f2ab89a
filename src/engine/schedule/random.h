// Random numbers as a function of (seed, position): nothing is kept between draws, so what a request draws
// does not depend on the batch it runs in, on chunking, or on being paused and resumed.
//
//   double u = uniform(seed, position);      // the only draw at this position
//
// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011).
#pragma once

#include <array>
#include <cstdint>

namespace spark::engine {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// In (0, 1], a multiple of 2^-53. `stream` separates several draws at one position.
double uniform(uint64_t seed, uint64_t position, uint32_t stream = 0);

}  // namespace spark::engine
