#include "ops/guard/policy.h"

namespace spark::ops {

GuardDecision decide(GuardMode mode, const GuardObservation& seen, const GuardLimits& limits,
                     int64_t elapsed_ms) {
  const bool watching = mode == GuardMode::kWatching;
  // Whoever was seen running and can no longer be seen may be eating the machine.
  if (watching && seen.target == TargetSeen::kUnknown)
    return {GuardVerdict::kKill, mode, "service-unreadable"};
  if (watching && seen.target == TargetSeen::kNotRunning)
    return {GuardVerdict::kEnded, mode, "service-ended"};
  const bool running = seen.target == TargetSeen::kRunning;
  if (!running && elapsed_ms >= limits.wait_ms)
    return {GuardVerdict::kGiveUp, mode, "service-did-not-appear"};
  const GuardMode now = running ? GuardMode::kWatching : GuardMode::kWaiting;
  const GuardVerdict unsafe = running ? GuardVerdict::kKill : GuardVerdict::kGiveUp;
  if (seen.available_kib < 0) return {unsafe, now, "memory-unreadable"};
  if (seen.available_kib < limits.threshold_kib) return {unsafe, now, "low-memory"};
  return {GuardVerdict::kContinue, now, ""};
}

}  // namespace spark::ops
