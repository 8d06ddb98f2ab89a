// The environment that a neighbour ring needs. NCCL opens connections for every algorithm it might use, also
// to the opposite rank, to which there is no cable; run-time connection prevents that, and NCCL ties it to
// cuMem.
#pragma once

#include <span>
#include <string>

#include "ops/site/transport.h"

namespace spark::ops {

struct RequiredVariable {
  const char* name;
  const char* value;
};

// Variables that have one value on every neighbour ring. The channel counts and VLLM_ENABLE_ROCE_ALLREDUCE
// depend on node count and transport: see below.
std::span<const RequiredVariable> ring_policy();

// "0" for nccl-ring, "1" for B12X one-shot rings, "" (absent) for sparknet.
std::string ring_roce_allreduce(const TransportTraits& transport);

// Variables that must be empty or absent on a ring, arguments that must be absent, and arguments that must
// be 1.
std::span<const char* const> ring_forbidden_variables();
std::span<const char* const> ring_forbidden_arguments();
std::span<const char* const> ring_single_groups();

}  // namespace spark::ops
