// The reference backend: plain C++, one thread, sums in double. Slow on purpose: it is what the others are
// tested against.
#pragma once

#include <memory>

#include "engine/kernels/backend.h"

namespace spark::engine {

std::unique_ptr<Backend> make_reference_backend();

}  // namespace spark::engine
