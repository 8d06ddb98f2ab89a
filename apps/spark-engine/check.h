// --check: everything that can be wrong with a launch, without launching.
#pragma once

#include "flags.h"

namespace spark::app {

// Prints what would be used, and the memory plan. 0; throws Error that lists all that is wrong.
int check(const EngineFlags& flags);

}  // namespace spark::app
