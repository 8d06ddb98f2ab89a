// From flags to a server that answers, until it is told to stop. Everything that can be wrong with the flags
// or the checkpoint is said before the port is bound.
#pragma once

#include "flags.h"

namespace spark::app {

// The exit code; throws Error when the server cannot start.
int serve(EngineFlags flags);

}  // namespace spark::app
