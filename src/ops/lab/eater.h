// The process that takes a node's memory for the fault `memory`.
#pragma once

#include <cstdint>

namespace spark::ops {

// How much to take now. /proc/meminfo of a node is renewed by its first process, which may get no processor
// for a while: what is missing after the first bite may be a figure from before it, and is taken in small
// bites, so that too much is never more than one of these.
int64_t next_bite(int64_t available, int64_t wanted, bool first);

// Takes memory until MemAvailable is at most `bytes`, says so on standard output, then sleeps for ever.
[[noreturn]] void eat_memory(int64_t available_bytes);

}  // namespace spark::ops
