#include "ops/site/deployment_identity.h"

#include "common/hash.h"

namespace spark::ops {

Json deployment_identity(const Site& site) {
  const auto count = static_cast<int64_t>(site.nodes.nodes.size());
  Json nodes = Json::array();
  for (const Node& node : site.nodes.nodes) nodes.push_back(node.name);
  return {{"profile", site.request.profile},
          {"profile_sha256", sha256_hex(site.resolved.dump())},
          {"engine", site.profile.engine_kind == EngineKind::kNative ? "native" : "vllm"},
          {"topology", {{"nodes", std::move(nodes)}}},
          {"tensor_parallel_size", site.engine.tensor_parallel_size.value_or(count)},
          {"transport", site.profile.transport_name},
          {"kernel_backend", site.profile.kernel_backend}};
}

}  // namespace spark::ops
