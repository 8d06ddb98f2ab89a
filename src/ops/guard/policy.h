// What the memory guard decides, as a pure function of what it sees. One step of section "guard loop" of
// docs/guard.md.
//
//   GuardDecision decision = decide(state, {.target = TargetSeen::kRunning, .available_kib = 2'000'000},
//   limits, 12'000);
//   // kKill, "low-memory": below the threshold while the service runs
#pragma once

#include <cstdint>

namespace spark::ops {

enum class GuardMode { kWaiting, kWatching };  // before and after the service was seen running

enum class TargetSeen {
  kRunning,
  kNotRunning,
  kUnknown,  // nobody who could know answers
};

struct GuardObservation {
  TargetSeen target = TargetSeen::kUnknown;
  int64_t available_kib = -1;  // MemAvailable; negative: cannot be read
};

struct GuardLimits {
  int64_t threshold_kib = 0;
  int64_t interval_ms = 0;
  int64_t wait_ms = 0;  // for the service to appear
};

enum class GuardVerdict {
  kContinue,
  kKill,   // end the service, then leave with exit code 1
  kEnded,  // the service has ended by itself: leave with 0
  kGiveUp  // leave with 1; no service is touched
};

struct GuardDecision {
  GuardVerdict verdict = GuardVerdict::kContinue;
  GuardMode mode = GuardMode::kWaiting;  // from now on
  const char* reason = "";  // of everything but kContinue: "low-memory", "memory-unreadable", ...
};

GuardDecision decide(GuardMode mode, const GuardObservation& seen, const GuardLimits& limits,
                     int64_t elapsed_ms);

}  // namespace spark::ops
