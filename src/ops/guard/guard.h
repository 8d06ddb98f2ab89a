// The memory guard's loop. Everything it will ever need is opened, locked and written to before the first
// sample; afterwards there is no heap, no new process, no new file except the ready file (before the service
// exists) and, at the moment of a kill, no dependency on anything but the kernel.
//
//   GuardOptions options = ...;
//   int code = run_guard(options);       // the exit code of the program
#pragma once

#include "ops/guard/options.h"

namespace spark::ops {

// What a test observes: called once when the guard is armed (after its first sample), and after every sample.
struct GuardHooks {
  void (*armed)(void* context) = nullptr;
  bool (*sampled)(void* context) =
      nullptr;  // false ends the loop with exit code 0, as if the service had ended
  void* context = nullptr;
};

int run_guard(const GuardOptions& options, const GuardHooks& hooks = {});

// The other two commands: talk to the running guard of the service, print what it says.
int print_guard_status(const GuardOptions& options);
int switch_guard(const GuardOptions& options);

}  // namespace spark::ops
