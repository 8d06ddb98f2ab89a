// Whether the block-scaled matrix instruction does on this device what the kernels below sm121 believe of it.
// They were written from documents, so every start asks the device itself.
#pragma once

#include <string>

namespace spark::engine::cuda::sm121 {

// Empty, or what the current device's instruction did instead of what plan/block_scaled.h says: fragments,
// the lanes and bytes that give the scales, E2M1 containers, and products 22 bits apart in one sum. One small
// launch. Throws Error when the device cannot run it.
std::string block_scaled_fault();

}  // namespace spark::engine::cuda::sm121
