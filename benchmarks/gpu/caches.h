// Caches of random records for measurements.
#pragma once

#include "harness.h"

namespace spark::bench_gpu {

struct Caches {
  engine::PagedCache window;
  engine::PagedCache main;
  engine::PagedCache keys;
};

// Enough blocks for `sequences` of `context` tokens at a compression ratio; the window cache's table repeats
// two blocks.
Caches make_caches(engine::Backend& backend, int sequences, int context, int ratio);

// `selected`: [rows][512] random visible entries, ascending.
int32_t* make_selection(engine::Backend& backend, int rows, int visible, int count);

}  // namespace spark::bench_gpu
