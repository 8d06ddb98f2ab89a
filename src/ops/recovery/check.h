// Is the recovery policy on this machine, and in effect?
//
//   Findings findings = check_recovery(host, policy, answer);     // errors: not so; warnings: cheap to
//   correct
//
// The files are compared byte by byte with their modes; what is in effect is judged by the doctor's live
// rules of the same names, from one probe of the machine (probe_here).
#pragma once

#include "ops/doctor/live.h"
#include "ops/recovery/host.h"
#include "ops/recovery/policy.h"

namespace spark::ops {

Findings check_recovery(const Host& host, const RecoveryPolicy& policy, const NodeAnswer& answer);

}  // namespace spark::ops
