#include "ops/fabric/ports.h"

#include <array>

#include "common/error.h"

namespace spark::ops {
namespace {

constexpr std::array<PortPath, 4> kPaths = {{
    {0, 1, "enp1s0f0np0", "rocep1s0f0", "0000:01:00.0"},
    {0, 2, "enP2p1s0f0np0", "roceP2p1s0f0", "0002:01:00.0"},
    {1, 1, "enp1s0f1np1", "rocep1s0f1", "0000:01:00.1"},
    {1, 2, "enP2p1s0f1np1", "roceP2p1s0f1", "0002:01:00.1"},
}};

}  // namespace

std::span<const PortPath> port_paths() {
  return kPaths;
}

const PortPath* path_of_device(std::string_view rdma_device) {
  for (const PortPath& entry : kPaths) {
    if (rdma_device == entry.device) return &entry;
  }
  return nullptr;
}

const PortPath* path_of_netdev(std::string_view netdev) {
  for (const PortPath& entry : kPaths) {
    if (netdev == entry.netdev) return &entry;
  }
  return nullptr;
}

const PortPath& port_path(int port, int path) {
  for (const PortPath& entry : kPaths) {
    if (entry.port == port && entry.path == path) return entry;
  }
  SPARK_CHECK(false);
  return kPaths[0];
}

}  // namespace spark::ops
