// The collective transports that a profile may name, and the kernel families, as data: everything that
// differs between them is a column here, so that a rule asks `traits.neighbour_ring` rather than compares
// names.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spark::ops {

enum class Transport {
  kOneshotDirect,
  kOneshotRing4,
  kRocenanteDirect,
  kRocenanteRing4,
  kRocenanteMesh4,
  kNcclRing
};

struct TransportTraits {
  Transport id;
  const char* name;      // as in fabric.transport
  const char* prefix;    // of its variables: PREFIX_PEER_HCAS, PREFIX_GID_INDEX, ...
  const char* topology;  // value of PREFIX_TOPOLOGY
  bool neighbour_ring;   // peer maps name only the ranks before and after
  bool one_shot;         // small collectives bypass NCCL
  bool sparknet;         // one-shot by the sparknet library (else by B12X)
  int nodes;             // the only node count it works with; 0: three or four
};

std::span<const TransportTraits> transports();
const TransportTraits* find_transport(std::string_view name);  // nullptr: no such transport
std::vector<std::string> transport_names();

inline constexpr const char* kDefaultTransport = "rocenante-direct";

struct KernelFamily {
  const char* name;               // kernel_backend, --linear-backend, --moe-backend, VLLM_DS41_KERNEL_BACKEND
  const char* attention_backend;  // --attention-backend and the drafter's attention_backend
};

std::span<const KernelFamily> kernel_families();
const KernelFamily* find_kernel_family(std::string_view name);

inline constexpr const char* kDefaultKernelFamily = "b12x";

}  // namespace spark::ops
