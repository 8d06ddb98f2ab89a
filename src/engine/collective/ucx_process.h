// What UCX does to the process that merely links it, put right: it prints on standard output, which is the
// program's, and takes SIGHUP for itself (to print its queues), so that a closed terminal no longer ends
// anything.
#pragma once

namespace spark::engine {

// Once, at the start of main(). UCX's messages go to the log, unless UCX_LOG_FILE says where else; SIGHUP
// does again what it did before, unless UCX_DEBUG_SIGNO asks for it by name.
void tame_ucx();

}  // namespace spark::engine
