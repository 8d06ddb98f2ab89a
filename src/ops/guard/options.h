// How a guard is told what to do: flags, and the environment that `spark render` writes into its unit.
//
//   export THRESHOLD_GIB=5 INTERVAL=0.25 CONTAINER_NAME=dsv41 MEMGUARD_PHASE=startup
//   export WAIT_FOR_CONTAINER_SECONDS=120 READY_FILE=/run/user/1000/ready
//   spark-guard
#pragma once

#include <optional>

#include "ops/guard/policy.h"
#include "ops/guard/text.h"

namespace spark::ops {

enum class GuardStage { kStartup, kSteady };
const char* guard_stage_name(GuardStage stage);

struct GuardOptions {
  FixedText<128> service;  // container, or systemd unit without ".service"
  GuardStage stage = GuardStage::kStartup;
  GuardLimits limits;
  PathText ready_file;     // created after the first sample; may be empty
  PathText root;           // prefix of /proc and /sys, for recorded trees; empty: none
  PathText run_folder;     // of the socket and the status file
  PathText docker_socket;  // empty: containers are not looked for
  PathText pid_file;       // of a service that is neither container nor unit; may be empty
  bool watch_kernel_log = true;
};

enum class GuardRequest { kGuard, kStatus, kSwitch, kHelp, kVersion };

struct GuardCommand {
  GuardRequest request = GuardRequest::kGuard;
  GuardOptions options;
  FixedText<512> fault;  // of the usage; empty: none
};

// `environment` is the process's. Flags win over the environment.
GuardCommand read_guard_command(int argc, const char* const* argv, const char* const* environment);

// "5" GiB, "0.25" s, without the C library's locale. Negative: not a number of that kind.
int64_t whole_number_of(std::string_view text);
int64_t milliseconds_of(std::string_view seconds);

inline constexpr const char* kGuardUsage =
    "spark-guard: kills a service before the machine runs out of memory.\n"
    "\n"
    "  spark-guard [options]              guard (what the environment says, flags first)\n"
    "  spark-guard status [options]       what the guard of this service does\n"
    "  spark-guard switch [options]       change phase, threshold and interval of the running guard, in "
    "place\n"
    "\n"
    "  --service NAME          container, or systemd unit without .service      CONTAINER_NAME\n"
    "  --threshold-gib N       kill below this much MemAvailable                THRESHOLD_GIB\n"
    "  --threshold-mib N       the same, finer\n"
    "  --interval SECONDS      between samples, at least 0.01                   INTERVAL\n"
    "  --phase startup|steady                                                   MEMGUARD_PHASE\n"
    "  --wait SECONDS          for the service to appear                        WAIT_FOR_CONTAINER_SECONDS\n"
    "  --ready-file PATH       created after the first sample                   READY_FILE\n"
    "  --run-folder PATH       of socket and status file                        RUNTIME_DIRECTORY\n"
    "  --docker-socket PATH    default /run/docker.sock; \"\": no containers\n"
    "  --pid-file PATH         of a service that is neither container nor unit\n"
    "  --root PATH             read /proc and /sys below it (recorded trees)\n"
    "  --no-kernel-log         do not watch the kernel's messages\n"
    "\n"
    "Exit codes: 0 the service ended by itself, 1 it was killed or could not be guarded, 2 usage.\n";

}  // namespace spark::ops
