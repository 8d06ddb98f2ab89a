// The fabric that a node map describes, as structs: cables with their two ends, the paths (stripes) of each,
// subnets, addresses and GIDs.
//
//   const FabricLayout layout = fabric_layout(map);      // throws Error with every fault of the map
//   for (const Cable& cable : layout.cables) draw(cable.a.node, cable.a.port, cable.b.node, cable.b.port);
//   layout.rail(0);                                      // path 1 of every cable, in cable order
//
// Host parts of addresses are the node's number, rank + 1: node map subnets are /24, and a map holds no more.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/site/node_map.h"

namespace spark::ops {

enum class FabricShape { kTriangle, kRing4 };

// One end of one path of a cable.
struct StripeEnd {
  std::string device;   // RDMA
  std::string netdev;   // empty: not a device of a Spark's fabric ports
  std::string address;  // "10.12.1.1"; empty: the map states no subnet
  std::string gid;      // of the address
};

struct CablePath {
  int64_t stripe = 0;
  std::string subnet;  // "10.12.1.0/24"; may be empty on a triangle
  StripeEnd a;
  StripeEnd b;
};

struct CableEnd {
  int64_t rank = 0;
  std::string node;
  int port = -1;  // -1: unknown, the devices are not those of a Spark
};

struct Cable {
  CableEnd a;  // the end whose next neighbour in the loop is `b`
  CableEnd b;
  std::vector<CablePath> paths;  // by stripe
};

struct FabricLayout {
  FabricShape shape = FabricShape::kTriangle;
  std::vector<Cable> cables;  // from rank 0 around the loop
  int64_t stripes = 0;        // the least over all cables

  // The paths with one stripe index, one per cable: what a rail-aligned collective uses together.
  std::vector<const CablePath*> rail(int64_t stripe) const;
};

std::string end_name(const CableEnd& end);  // "node1 port 0"; "port ?" when it is not known

// Throws Error when the cables are neither a triangle of three nor a ring of four, listing every fault.
FabricLayout fabric_layout(const NodeMap& map);

std::string node_address(const std::string& subnet, int64_t rank);  // ("10.12.1.0/24", 0) -> "10.12.1.1"
std::string gid_of_ipv4(const std::string& address);  // "0000:0000:0000:0000:0000:ffff:0a0c:0101"

std::string layout_text(const FabricLayout& layout, const NodeMap& map);
Json layout_json(const FabricLayout& layout, const NodeMap& map);

}  // namespace spark::ops
