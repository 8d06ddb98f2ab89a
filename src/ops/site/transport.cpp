#include "ops/site/transport.h"

#include <array>

namespace spark::ops {
namespace {

constexpr std::array<TransportTraits, 6> kTransports = {{
    {Transport::kOneshotDirect, "oneshot-direct", "SPARKNET_ROCE", "direct", false, true, true, 3},
    {Transport::kOneshotRing4, "oneshot-ring4", "SPARKNET_ROCE", "ring4", true, true, true, 4},
    {Transport::kRocenanteDirect, "rocenante-direct", "B12X_ROCE", "direct", false, true, false, 3},
    {Transport::kRocenanteRing4, "rocenante-ring4", "B12X_ROCE", "ring4", true, true, false, 4},
    {Transport::kRocenanteMesh4, "rocenante-mesh4", "B12X_ROCE", "mesh4", true, true, false, 4},
    {Transport::kNcclRing, "nccl-ring", "B12X_ROCE", "direct", true, false, false, 0},
}};

constexpr std::array<KernelFamily, 2> kFamilies = {{{"b12x", "B12X"}, {"tilelang", "TILELANG"}}};

}  // namespace

std::span<const TransportTraits> transports() {
  return kTransports;
}

const TransportTraits* find_transport(std::string_view name) {
  for (const TransportTraits& traits : kTransports) {
    if (name == traits.name) return &traits;
  }
  return nullptr;
}

std::vector<std::string> transport_names() {
  std::vector<std::string> names;
  for (const TransportTraits& traits : kTransports) names.emplace_back(traits.name);
  return names;
}

std::span<const KernelFamily> kernel_families() {
  return kFamilies;
}

const KernelFamily* find_kernel_family(std::string_view name) {
  for (const KernelFamily& family : kFamilies) {
    if (name == family.name) return &family;
  }
  return nullptr;
}

}  // namespace spark::ops
