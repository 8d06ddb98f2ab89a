// The two fabric ports of a DGX Spark and the names that they have in different places. One ConnectX-7 drives
// both; each port appears through two PCIe functions on different roots, so one cable carries two RDMA paths
// ("stripes", path 1 and path 2).
//
//   const PortPath* path = path_of_device("roceP2p1s0f1");   // port 1, path 2, enP2p1s0f1np1
#pragma once

#include <span>
#include <string_view>

namespace spark::ops {

struct PortPath {
  int port;  // 0 or 1, as on the machine's back
  int path;  // 1 or 2
  const char* netdev;
  const char* device;  // RDMA device
  const char* pci;
};

std::span<const PortPath> port_paths();  // port 0 path 1, port 0 path 2, port 1 path 1, port 1 path 2
const PortPath* path_of_device(std::string_view rdma_device);  // nullptr: not a fabric port of a Spark
const PortPath* path_of_netdev(std::string_view netdev);
const PortPath& port_path(int port, int path);

inline constexpr int kFabricMtu = 9000;        // RDMA then runs at 4096
inline constexpr int kRoceV2Ipv4GidIndex = 3;  // 0, 1: link-local v1, v2; 2: IPv4 v1; 3: IPv4 v2

}  // namespace spark::ops
