// From flags to a server that answers, until it is told to stop.
//
// Flags, files and memory are checked first, then the port is taken; until the model has loaded and generated
// its first token, every request is told 503 and why. Then "listening on ADDRESS" goes to standard output.
#pragma once

#include "flags.h"

namespace spark::app {

// The exit code; throws Error when the server cannot start.
int serve(const EngineFlags& flags);

}  // namespace spark::app
