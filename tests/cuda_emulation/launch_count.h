// How many kernels the emulated device has run since the program began.
#pragma once

#include <cstdint>

namespace spark::emulation {

uint64_t kernels_run();

}  // namespace spark::emulation
